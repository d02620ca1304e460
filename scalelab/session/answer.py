"""The answer in Python: it shows itself, and gives a frame, a dict, a job script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from scalelab.errors import SpecError
from scalelab.inputs.guessed import Guided, ShownText, by_guess
from scalelab.inputs.numerals import Interval
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import sentences
from scalelab.recommend.answer.text import answer_html, answer_text

if TYPE_CHECKING:
    import pandas as pd

    from scalelab.report.html import Figures

_GUESSED = by_guess(
    {
        "answer.explain()": "why reason reasons explanation because details text",
        "answer.table, a frame": "df frame dataframe data results to_df to_pandas "
        "as_frame allocations head columns query loc iloc",
        "answer.rows": "options alternatives candidates configurations",
        "answer.chosen": "best choice recommended recommendation allocation pick "
        "selected winner row",
        "answer.chosen.gpus": "gpus num_gpus n_gpus world_size",
        "answer.chosen.num_nodes": "nodes num_nodes",
        "answer.chosen.time_s": "time time_s duration runtime eta",
        "answer.chosen.hours": "hours",
        "answer.chosen.gpu_hours": "gpu_hours device_hours",
        "answer.chosen.batch": "batch batch_size global_batch_size local_batch",
        "answer.chosen.scaling_efficiency": "efficiency speedup",
        "answer.chosen.probability": "probability chance",
        "answer.chosen.amounts": "energy carbon co2 kwh",
        "answer.learning_rate": "lr lr_rule rate",
        "answer.cost, or answer.price": "money usd dollars",
        "answer.meets_constraints": "ok feasible is_feasible meets success valid",
        "answer.to_dict()": "json as_dict dict to_json_dict asdict",
        "answer.table.to_csv('answer.csv')": "to_csv save export csv",
        "answer.sbatch()": "script job_script slurm slurm_script pbs qsub job",
        "answer.figures.trade_off": "plot show figure chart draw",
        "run.report()": "report html",
        "answer.next_trial": "next next_measurement measure_next todo",
        "answer.knee": "diminishing_returns limit saturation",
        "answer.notes or answer.unsupported": "warnings caveats assumptions doubts",
        "answer.sentences or print(answer)": "summary message describe",
    }
)


class Answering(Protocol):
    """The run that gave an answer."""

    def job_script(self, answer: Recommendation, site: str | None = None) -> str:
        """Return the batch job's script for the recommended allocation."""

    def figures_of(self, answer: Recommendation | None) -> Figures:
        """Return the report's figures with an answer."""


class Answer(Guided, Recommendation):
    """A recommendation that can be looked at, in a console and in a notebook."""

    _instead: ClassVar[Mapping[str, str]] = _GUESSED

    @classmethod
    def of(cls, found: Recommendation, run: Answering | None = None) -> Self:
        """Return the same answer, to be looked at."""
        answer = cls(
            **{field.name: getattr(found, field.name) for field in fields(found)}
        )
        object.__setattr__(answer, "_run", run)
        return answer

    @property
    def sentences(self) -> tuple[str, ...]:
        """Everything that the answer says, apart from its table."""
        return tuple(chain(*sentences(self).values()))

    @property
    def table(self) -> pd.DataFrame:
        """A row per allocation, the units in the names: :meth:`to_frame`."""
        return self.to_frame()

    @property
    def cost(self) -> Interval | None:
        """The cost of the recommended row in :attr:`currency`; None: no price."""
        return self.chosen.cost

    def explain(self) -> str:
        """Return all that stands behind the answer, as ``--explain`` prints it."""
        return ShownText(answer_text(self, explain=True))

    def sbatch(self, site: str | None = None) -> str:
        """Return the script of the recommended job; see :meth:`Run.job_script`.

        Parameters
        ----------
        site
            Name or path of the profile of a SLURM or PBS site; default: the run's own.

        Raises
        ------
        SpecError
            If the site has no batch system, or the run was imported.
        """
        return ShownText(self._asked.job_script(self, site))

    @property
    def figures(self) -> Figures:
        """The report's figures with this answer, by name."""
        return self._asked.figures_of(self)

    @property
    def _asked(self) -> Answering:
        run: Answering | None = getattr(self, "_run", None)
        if run is None:
            raise SpecError(
                "This answer is a copy that knows no run. Write "
                "run.job_script(answer), or run.figures_of(answer).",
                code="answer_without_run",
            )
        return run

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, those of ``scalelab recommend --json``."""
        return self.to_json()

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a frame, the units in the names."""
        import pandas as pd

        return pd.DataFrame([row.to_record(self.currency) for row in self.rows])

    def __repr__(self) -> str:
        return answer_text(self)

    def _repr_html_(self) -> str:
        return answer_html(self)
