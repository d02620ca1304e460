"""Related measurements that inform the step-time law of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.links import Link
from scalelab.inputs.wording import Option
from scalelab.laws.rows import (
    CurveKey,
    FitRows,
    cells,
    step_time_rows,
)
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.prior import StepTimePrior, are_related
from scalelab.recommend.answer.facts import Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Other runs whose step times inform the prior of a run's curves."""

    rows: FitRows
    names: tuple[str, ...]

    @classmethod
    def of(cls, runs: Sequence[tuple[str, pd.DataFrame]]) -> History | None:
        """Join runs, each given by its name and its rows; None without any run."""
        if not runs:
            return None
        frames = []
        for name, frame in runs:
            # two runs may have had other devices without a name
            devices = [
                device if isinstance(device, str) else f"that of {name}"
                for device in cells(frame, "device_name")
            ]
            frames.append(frame.assign(device_name=devices))
        return cls(
            rows=step_time_rows(pd.concat(frames, ignore_index=True)),
            names=tuple(name for name, _ in runs),
        )

    def informs(self, rows: FitRows) -> bool:
        """Tell whether a curve of these runs is related to a curve of the rows."""
        return any(
            are_related(other, key) for other in self.rows.curves for key in rows.curves
        )

    def added_to(
        self, prior: StepTimePrior, asked: Sequence[CurveKey]
    ) -> tuple[StepTimePrior, Fact]:
        """Return the prior with the related curves of the runs, and a note on them."""
        updated = prior.updated(self.rows.curves, asked)
        count = len(updated.relatives) - len(prior.relatives)
        if not count:
            names = ", ".join(self.names)
            raise SpecError(
                f"Nothing can be learned from {names}: no curve there that was timed "
                "has the same device_type, device_name, node_group and parallelism, or "
                "is the same workload in everything but the device. Name runs that "
                "share one."
            )
        values = {"num_curves": count, "runs": [*self.names]}
        return updated, Fact("learned_from", values)


def fit_step_times(
    law: type[StepTimeLaw],
    rows: FitRows,
    rest: FitRows | None = None,
    *,
    history: History | None = None,
    link: Link | None = None,
) -> tuple[StepTimeLaw, Fact | None]:
    """Fit a law, and note which other runs informed it; only the default law is."""
    if law is not StepTimeLaw:
        if history is not None:
            raise SpecError(
                f"{Option('law', law.name)} learns from the asked rows alone.",
                "Leave out the law, or the runs to learn from.",
            )
        if link is not None:
            raise SpecError(
                f"The law {law.name!r} knows nothing of links between nodes.",
                f"Leave out {Option('law')}, or the link.",
            )
        return law.fit(rows), None
    asked, note = tuple(rows.curves), None
    prior = StepTimePrior.shipped().with_links(link)
    if rest is not None:
        others = {k: v for k, v in rest.curves.items() if k not in rows.curves}
        prior = prior.updated(others, asked)
    if history is not None and asked:
        prior, note = history.added_to(prior, asked)
    return law.fit(rows, prior), note
