"""The knowledge behind an answer: measurements, and the laws fitted to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from scalelab.inputs.document import Scalar
from scalelab.laws.convergence.time_to_target import Factorisation
from scalelab.laws.convergence.whole_runs import WholeRunLaw
from scalelab.laws.rows import FitRows, numbers
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.prediction.consistency import contradictions
from scalelab.recommend.prediction.needs import SampleNeed
from scalelab.recommend.question.batches import BatchRule
from scalelab.recommend.question.memory_room import MemoryRoom
from scalelab.recommend.question.subject import AskedCurves
from scalelab.records.columns import OPTION_PREFIX


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

    @property
    def correction(self) -> np.ndarray:
        """The factors that correct the product of both laws, shape (n_draws, 1)."""
        if self.factorisation is None:
            return np.ones((1, 1))
        return np.asarray(np.exp(self.factorisation.draws()))

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
    def saw_accumulation(self) -> bool:
        """Some row accumulated gradients over several passes."""
        return bool(self.rows.frame["gradient_accumulation_steps"].gt(1).any())

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
