"""What is true of a measured curve: published tables and generated ones alike."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
from scaling_tasks import MANY_ROWS

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from generated_tables import Configuration, GeneratedTable, generated_tables
from imported_tables import configuration as configuration
from imported_tables import imported as imported

CONFIGURATION = list(Configuration._fields)


class Curve(Protocol):
    """One workload on one kind of device."""

    @property
    def name(self) -> str: ...

    @property
    def rows(self) -> pd.DataFrame:
        """What was measured, one row per run."""

    def further_runs_s(self, at: Configuration) -> np.ndarray | None:
        """Return equally likely step times of a further run; None: not known."""

    def measured(self, at: Configuration, seen: pd.DataFrame) -> pd.DataFrame | None:
        """Return the rows of one more measurement; None where there is none."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published curve: its own rows are the truth."""

    name: str
    rows: pd.DataFrame

    def further_runs_s(self, at: Configuration) -> np.ndarray | None:
        """Look a step time up, between two local batches of the allocation if need be.

        Further accumulation steps are taken as the same local batch on the fewest
        devices, which exchange least.
        """
        step_s = self._interpolated(at)
        if step_s is None and at.accum_steps > 1:
            fewest = Configuration(int(self.rows["gpus"].min()), 1, at.local_batch)
            alone = self._interpolated(fewest)
            last = self._interpolated(at._replace(accum_steps=1))
            if alone is not None and last is not None:
                step_s = (at.accum_steps - 1) * alone + last
        return None if step_s is None else np.array([step_s])

    def _interpolated(self, at: Configuration) -> float | None:
        rows = self.rows
        there = (rows["gpus"] == at.gpus) & (rows["nodes"] == at.nodes)
        there &= rows["accum_steps"] == at.accum_steps
        known = rows[there].groupby("local_batch")["step_time_s"].median()
        batches = known.index.to_numpy(float)
        if not len(known) or not batches.min() <= at.local_batch <= batches.max():
            return None
        logs = np.log(known.to_numpy())
        return float(np.exp(np.interp(np.log(at.local_batch), np.log(batches), logs)))

    def measured(self, at: Configuration, seen: pd.DataFrame) -> pd.DataFrame | None:
        """Return the unseen row of the allocation that is closest in local batch."""
        rows = self.rows[~self.rows.index.isin(seen.index)]
        rows = rows[(rows["gpus"] == at.gpus) & (rows["nodes"] == at.nodes)]
        if rows.empty:
            return None
        distance = np.log(rows["local_batch"] / at.local_batch).abs()
        return rows.loc[[distance.idxmin()]]


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A generated curve: its machine is the truth."""

    table: GeneratedTable

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def rows(self) -> pd.DataFrame:
        return self.table.rows

    def further_runs_s(self, at: Configuration) -> np.ndarray | None:
        step_s = self.table.machine.step_time_s(at)
        return None if step_s is None else step_s * self.table.scatter.quantiles()

    def measured(self, at: Configuration, seen: pd.DataFrame) -> pd.DataFrame | None:
        """Measure a configuration, as often as the others were."""
        repeats = self.rows.groupby(CONFIGURATION).size().median()
        rng = np.random.default_rng(sum(at))
        more = GeneratedTable.measure(
            self.name, self.table.machine, [at], rng, self.table.scatter, int(repeats)
        )
        return more.rows.set_index(more.rows.index + len(self.rows))


def published_curves(table: pd.DataFrame) -> Iterator[Published]:
    """Yield the curves of sources that measured many batches, on several nodes."""
    sizes = table.groupby("curve_id")["step_time_s"].transform("size")
    dense = sizes.groupby(table["source"]).transform("median") >= MANY_ROWS
    for name, rows in table[dense].groupby("curve_id"):
        if rows["nodes"].max() > 1:
            yield Published(name=str(name), rows=rows.reset_index(drop=True))


def generated_curves(count: int) -> Iterator[Generated]:
    """Yield so many generated tables of each kind."""
    for table in generated_tables(range(count)):
        yield Generated(table=table)


def views(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what a user may have measured so far, by name."""
    found = {}
    for most in (1, 2, 4):
        seen = rows[rows["nodes"] <= most]
        if len(seen) >= 3 and len(seen) < len(rows):
            found[f"<= {most} node{'s' * (most > 1)}"] = seen
    return found | {"five probes": _five_probes(rows)}


def _five_probes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the corners of what two nodes can do, and one row in the middle."""
    near = rows[rows["nodes"] <= 2].sort_values(["gpus", "nodes", "local_batch"])
    small, large = (
        near[near["gpus"] == size] for size in (near["gpus"].min(), near["gpus"].max())
    )
    middle = near.iloc[[len(near) // 2]]
    return pd.concat([small.iloc[[0, -1]], middle, large.iloc[[0, -1]]]).pipe(
        lambda found: found[~found.index.duplicated()]
    )
