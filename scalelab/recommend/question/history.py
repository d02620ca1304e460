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
    Observed,
    cells,
    prepared,
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
        frames = [_with_named_devices(name, frame) for name, frame in runs]
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


@dataclass(frozen=True, kw_only=True, slots=True)
class LawWithTransfer:
    """A step-time law fitted under a prior that related curves have informed."""

    law: StepTimeLaw
    # Which other runs informed the prior; None: none did
    note: Fact | None

    @classmethod
    def fit(
        cls,
        law: type[StepTimeLaw],
        observations: Observed,
        *,
        rest: Observed | None = None,
        history: History | None = None,
        link: Link | None = None,
    ) -> LawWithTransfer:
        """Fit a law; only the default law takes a prior."""
        rows = prepared(observations)
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
            return cls(law=law.fit(rows), note=None)
        asked = tuple(rows.curves)
        prior = StepTimePrior.shipped().with_links(link)
        note: Fact | None = None
        if rest is not None:
            others = prepared(rest).curves.items()
            prior = prior.updated({k: v for k, v in others if k not in asked}, asked)
        if history is not None and asked:
            prior, note = history.added_to(prior, asked)
        return cls(law=law.fit(rows, prior), note=note)


def _with_named_devices(name: str, observations: pd.DataFrame) -> pd.DataFrame:
    """Name devices without a name after their run: two runs may have had others."""
    devices = [
        device if isinstance(device, str) else f"that of {name}"
        for device in cells(observations, "device_name")
    ]
    return observations.assign(device_name=devices)
