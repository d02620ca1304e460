"""The card: how many devices, how long and how much, for the README of a model.

It is Markdown with YAML front matter; ``scalelab import`` reads its table.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

import yaml

from scalelab._version import __version__
from scalelab.inputs.numerals import Interval
from scalelab.kinds.resources import RESOURCES
from scalelab.reading.tables.file import CARD_VERSION
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import MeasuredStep, OutlookRow
from scalelab.recommend.answer.sentences import (
    allocated,
    sentences,
    texts,
    what_times_hold,
)

_DIGITS = 5  # of numbers that were computed


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """The card of an answer that was asked for strong and weak scaling.

    Parameters
    ----------
    job
        What the times are of, in words.
    about
        Which run, when and with which versions and code it was measured.
    peak_bytes
        The largest peak memory of a device at the chosen batch; None: not recorded.
    """

    answer: Recommendation
    job: str
    about: Mapping[str, Any]
    peak_bytes: int | None

    @property
    def text(self) -> str:
        """The card as Markdown."""
        front = yaml.safe_dump(
            self._front(),
            sort_keys=False,
            allow_unicode=True,
            default_flow_style=None,
            width=100,
        )

        answer = self.answer.in_markdown()
        row = answer.chosen
        takes = ", ".join(texts(sentences(answer), "takes"))
        sentence = (
            f"**{allocated(answer, row)}**: {takes} for the job ({self.job}); "
            f"{'; '.join([row.basis, *what_times_hold(answer)])}. Asked of "
            f"ScaleLab {__version__}, from {answer.num_observations:,} trials. "
            "Measured, medians of the runs:"
        )
        return "\n".join([f"---\n{front}---\n", f"{sentence}\n", *_table(answer)])

    def _front(self) -> dict[str, Any]:
        answer, row, rate = self.answer, self.answer.chosen, self.answer.learning_rate
        amounts = {
            RESOURCES[name].field_in(answer.currency): _ends(amount)
            for name, amount in row.amounts.items()
            if amount is not None
        }
        known = {
            "scalelab_card": CARD_VERSION,
            "scalelab": __version__,
            "workload": answer.workload,
            **answer.held,
            **row.settings,
            "device_name": answer.device_name,
            "emulated": answer.is_emulated,
            "world_size": row.world_size,
            "num_nodes": row.num_nodes,
            **asdict(row.batch),
            "learning_rate": rate
            and {"value": _rounded(rate.value), "rule": rate.rule},
            "basis": row.basis,
            "interval": answer.interval,
            "step_time_s": _ends(row.step_time_s),
            "throughput_samples_per_s": _ends(row.throughput_samples_per_s),
            "scaling_efficiency": _ends(row.scaling_efficiency),
            "efficiency_against": f"{answer.baseline} ({row.scaling or 'itself'})",
            "gpu_memory_peak_bytes": self.peak_bytes,
            "job": self.job,
            **amounts,
            **self.about,
        }
        return {name: value for name, value in known.items() if value is not None}


def _table(answer: Recommendation) -> Iterator[str]:
    cells = {
        (row.world_size, row.num_nodes, *astuple(row.batch)): _cells(answer, row, step)
        for series in answer.scaling
        for row, step in zip(series.rows, series.measured, strict=True)
        if step is not None
    }

    lines = [cells[place] for place in sorted(cells)]
    if lines:
        yield _line([*lines[0]])
        yield _line(["---"] * len(lines[0]))

    yield from (_line([*map(str, line.values())]) for line in lines)


def _cells(
    answer: Recommendation, row: OutlookRow, measured: MeasuredStep
) -> dict[str, object]:
    return {
        "workload": answer.workload,
        "device_name": answer.device_name,
        "emulated": str(answer.is_emulated).lower(),
        "world_size": row.world_size,
        "num_nodes": row.num_nodes,
        **asdict(row.batch),
        "step_time_s": f"{measured.step_time_s.value:.6g}",
        "runs": measured.num_runs,
    }


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ends(interval: Interval) -> dict[str, float]:
    ends = {"value": interval.value, "lo": interval.lo, "hi": interval.hi}
    return {name: _rounded(end) for name, end in ends.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
