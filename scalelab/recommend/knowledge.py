"""The knowledge behind an answer: measurements, and the laws fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.links import Link
from scalelab.inputs.wording import Option
from scalelab.laws.convergence.time_to_target import Factorisation
from scalelab.laws.convergence.whole_runs import WholeRunLaw
from scalelab.laws.rows import (
    FitRows,
    cells,
    numbers,
    step_time_rows,
)
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.prior import StepTimePrior, are_related
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.prediction.consistency import contradictions
from scalelab.recommend.prediction.needs import SampleNeed
from scalelab.recommend.question.batches import BatchRule
from scalelab.recommend.question.candidates import MemoryRoom
from scalelab.recommend.question.subject import AskedCurves
from scalelab.records.columns import OPTION_PREFIX


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
        known = len(prior.relatives)
        prior = prior.updated(history.rows.curves, asked)
        if len(prior.relatives) == known:
            raise SpecError(
                f"Nothing can be learned from {', '.join(history.names)}: no curve "
                "there that was timed has the same device_type, device_name, "
                "node_group and parallelism, or is the same workload in everything but "
                "the device. Name runs that share one."
            )
        num_curves, runs = len(prior.relatives) - known, [*history.names]
        note = Fact.of("learned_from", num_curves=num_curves, runs=runs)
    return law.fit(rows, prior), note


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The measurements that an answer rests on, and the laws fitted to them.

    Parameters
    ----------
    factorisation
        How well the product of both laws met measured times to the target; None: it
        is not used or was not measured.
    whole_runs
        The law of whole runs, where training does not factorise; else None.
    learned
        Which other runs informed the step-time law; None: none did.
    """

    subject: AskedCurves
    law: StepTimeLaw
    learned: Fact | None
    need: SampleNeed
    factorisation: Factorisation | None
    whole_runs: WholeRunLaw | None
    rows: FitRows
    rule: BatchRule
    memory: MemoryRoom

    @property
    def compares_counts(self) -> bool:
        """Several device counts were measured, here or in the runs learned from.

        Else nothing is known of doublings, of a knee or of extremes.
        """
        has_learned = self.learned is not None
        return has_learned or self.rows.frame["world_size"].nunique() > 1

    @cached_property
    def contradicted(self) -> pd.DataFrame:
        """The configurations whose runs contradict one another."""
        return contradictions(self.rows)

    def recorded(self, name: str, config: Mapping[Any, Any]) -> float | None:
        """Return what the rows of a configuration's curve record in a column."""
        asked = {n: None if pd.isna(config[n]) else config[n] for n in self.swept}
        for key, rows in self.rows.curves.items():
            curve = dict(key)
            if all(curve.get(column) == value for column, value in asked.items()):
                values = numbers(self.subject.frame.loc[rows.index], name)
                found = np.unique(values[np.isfinite(values)])
                return float(found[0]) if len(found) == 1 else None
        return None

    @property
    def held(self) -> dict[str, Scalar]:
        """The values of the columns in which the curves do not differ, by setting."""
        curves = [dict(key) for key in self.rows.curves]
        common = set.intersection(*(set(curve.items()) for curve in curves))
        return {
            name.removeprefix(OPTION_PREFIX): value
            for name, value in sorted(common, key=str)
        }

    @property
    def swept(self) -> list[str]:
        """The columns in which the curves differ."""
        curves = [dict(key) for key in self.rows.curves]
        names = list(dict.fromkeys(name for curve in curves for name in curve))
        return [n for n in names if len({str(c.get(n)) for c in curves}) > 1]
