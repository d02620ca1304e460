"""The scaling table: what forms of computing centres and papers print.

Strong and weak scaling stand apart, and what was measured apart from what is predicted.
The rows are the answer's own, so that a table never says another figure than it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from scalelab.errors import SpecError
from scalelab.inputs.guessed import Guided, ShownText, by_guess
from scalelab.inputs.lines import aligned, between_words
from scalelab.inputs.numerals import (
    Interval,
    counted,
    duration,
    duration_ends,
    estimate,
    number,
    percent,
)
from scalelab.inputs.problems import one_of
from scalelab.kinds.resources import DEVICE_HOURS
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import MeasuredStep, OutlookRow, ScalingSeries
from scalelab.recommend.answer.sentences import allocated, what_times_hold

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("md", "txt", "csv")
_COMMON = {"strong": "global batch", "weak": "local batch"}
_WIDTH = 100


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ScalingTable(Guided):
    """The scaling table of an answer that was asked for it.

    Parameters
    ----------
    num_runs
        How often the job is to run, for the device-hours to ask for.
    job
        What the times are of, in words.
    """

    _instead: ClassVar[Mapping[str, str]] = by_guess(
        {
            "table.to_frame()": "df frame data to_pandas rows dataframe",
            "table.text('md')": "to_markdown markdown md to_text to_latex to_string",
            "table.text('csv')": "to_csv csv save",
        }
    )

    answer: Recommendation
    num_runs: int
    job: str

    def text(self, form: str = "md") -> str:
        """Return the table as Markdown (``md``), plain text (``txt``) or ``csv``.

        Raises
        ------
        SpecError
            If the form is another.
        """
        if form not in FORMATS:
            raise SpecError(
                f"format={form!r} is unknown. {one_of(FORMATS, form)}",
                code="unknown_format",
            )
        if form == "csv":
            return self.to_frame().to_csv(index=False)

        if form == "md":
            shown = replace(self, answer=self.answer.in_markdown())
            return ShownText("\n\n".join(shown._blocks(form)))

        # a sentence is a block of one line
        blocks = (
            block if "\n" in block else between_words(block, _WIDTH)
            for block in self._blocks(form)
        )
        return ShownText("\n\n".join(blocks))

    def to_frame(self) -> pd.DataFrame:
        """Return a row per allocation of each series, the units in the names."""
        import pandas as pd

        return pd.DataFrame(
            [
                _record(series, row, measured, self.answer.currency)
                for series in self.answer.scaling
                for row, measured in zip(series.rows, series.measured, strict=True)
            ]
        )

    def __repr__(self) -> str:
        return self.text("txt")

    def _blocks(self, form: str) -> Iterator[str]:
        head = "## " if form == "md" else ""
        for series in self.answer.scaling:
            yield f"{head}{self._title(series)}"
            yield self._base(series)

            pairs = [*zip(series.rows, series.measured, strict=True)]
            for title, is_measured in (("Measured", True), ("Predicted", False)):
                some = [pair for pair in pairs if (pair[1] is not None) == is_measured]
                if some:
                    lines = self._lines(series, some, form, is_measured=is_measured)
                    above = [f"{title}:", ""] if form == "md" else [f"{title}:"]
                    yield "\n".join([*above, *lines])

        if not self.answer.scaling:
            yield "No batch was measured on two device counts: there is no scaling."

        yield self._to_ask_for()

    def _title(self, series: ScalingSeries) -> str:
        on = f" on {self.answer.device_name}" if self.answer.device_name else ""
        return (
            f"{series.scaling.capitalize()} scaling of {self.answer.workload}{on}: "
            f"{_COMMON[series.scaling]} {series.batch:,} on every row"
        )

    def _base(self, series: ScalingSeries) -> str:
        pairs = zip(series.rows, series.measured, strict=True)
        base, measured = next((row, m) for row, m in pairs if row.is_baseline and m)
        step, plan = measured.step_time_s, self.answer.chosen.batch
        is_strong = series.scaling == "strong"
        batch = plan.global_batch_size if is_strong else plan.local_batch_size
        instead = (
            f" The {_COMMON[series.scaling]} of the answer, {batch:,}, was measured on "
            "one device count alone."
        )

        return (
            f"Base: {allocated(self.answer, base)}, the smallest that was measured: "
            f"{duration(step.value)} a step, {duration(base.time_s.value)} "
            f"[{duration_ends(base.time_s)}] for the job ({self.job}). Speedup and "
            "efficiency are of samples per second, against it."
            f"{instead if batch != series.batch else ''}"
        )

    def _lines(
        self,
        series: ScalingSeries,
        pairs: Sequence[tuple[OutlookRow, MeasuredStep | None]],
        form: str,
        *,
        is_measured: bool,
    ) -> list[str]:
        titles = self._titles(series, is_measured=is_measured)
        cells = [self._cells(series, *pair) for pair in pairs]
        if form == "txt":
            return aligned([titles, *cells], left=[False] * len(titles))
        rule = ["---:"] * len(titles)
        return [f"| {' | '.join(line)} |" for line in (titles, rule, *cells)]

    def _titles(self, series: ScalingSeries, *, is_measured: bool) -> list[str]:
        mass = percent(self.answer.interval)
        devices = self.answer.device_word.split()[-1]
        measured = ["measured step", "least-most", "runs"] if is_measured else []
        basis = [] if is_measured else ["basis"]
        return [
            *("nodes", f"{devices}s", "local batch", *measured, "fitted step", mass),
            *("samples/s", "speedup", f"{series.scaling} efficiency", mass),
            *("job", mass, self.answer.device_hour_word.split()[-1], *basis),
        ]

    def _cells(
        self, series: ScalingSeries, row: OutlookRow, measured: MeasuredStep | None
    ) -> list[str]:
        passes = row.batch.gradient_accumulation_steps
        times = f" x {passes}" if passes > 1 else ""
        share = row.scaling_efficiency

        runs = []
        if measured is not None:
            step = measured.step_time_s
            ends = duration_ends(step) if measured.num_runs > 1 else ""
            runs = [duration(step.value), ends, f"{measured.num_runs}"]

        return [
            *(f"{row.num_nodes}", f"{row.world_size}"),
            *(f"{row.batch.local_batch_size}{times}", *runs),
            *(duration(row.step_time_s.value), duration_ends(row.step_time_s)),
            estimate(row.throughput_samples_per_s),
            number(_speedup(series, row).value),
            *(percent(share.value), f"{percent(share.lo)}-{percent(share.hi)}"),
            *(duration(row.time_s.value), duration_ends(row.time_s)),
            number(row.gpu_hours.value),
            *([] if measured else [row.basis]),
        ]

    def _to_ask_for(self) -> str:
        chosen, mass = self.answer.chosen, percent(self.answer.interval)
        hours = self.num_runs * chosen.gpu_hours
        units = self.answer.units(chosen)
        likely, most = (
            DEVICE_HOURS.in_words(amount, units) for amount in (hours.value, hours.hi)
        )
        held = [f"{text.capitalize()}. " for text in what_times_hold(self.answer)]

        return (
            f"To ask for, {counted(self.num_runs, 'run')} of the job ({self.job}) on "
            f"{allocated(self.answer, chosen)}: {most}, the upper end of the {mass} "
            f"interval; {likely} are likely. {''.join(held)}Failed runs are extra."
        )


def _speedup(series: ScalingSeries, row: OutlookRow) -> Interval:
    """Return how many times as many samples per second as the base has."""
    return row.scaling_efficiency * (row.world_size / series.rows[0].world_size)


def _record(
    series: ScalingSeries,
    row: OutlookRow,
    measured: MeasuredStep | None,
    currency: str,
) -> dict[str, Any]:
    speedup, record = _speedup(series, row), row.to_record(currency)
    del record["is_pareto"], record["is_chosen"]  # of the answer's table
    step = measured.step_time_s if measured else None

    return {
        "scaling": series.scaling,
        "measured_step_time_s": step and step.value,
        "measured_step_time_least_s": step and step.lo,
        "measured_step_time_most_s": step and step.hi,
        "num_runs": measured.num_runs if measured else 0,
        "speedup": speedup.value,
        "speedup_lo": speedup.lo,
        "speedup_hi": speedup.hi,
        **{name: value for name, value in record.items() if name != "scaling"},
    }
