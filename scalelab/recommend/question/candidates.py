"""Candidate configurations: the ones an answer compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.inputs.allocation import Allocation
from scalelab.laws.rows import CONFIGURATION, CurveKey

_FURTHEST = 4  # times the largest measured world size
_MAX_ACCUMULATION = 4096

Place = tuple[int, int]
"""World size and number of nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRule:
    """The rule for batches: the allowed global batches, or the local ones.

    Parameters
    ----------
    fixed
        Allowed global batches; empty: local batches are fixed (weak scaling).
    local_batches
        The measured local batches, sorted.
    """

    fixed: tuple[int, ...]
    local_batches: tuple[int, ...]

    @classmethod
    def of(cls, measured: pd.DataFrame, wanted: Iterable[int] = ()) -> BatchRule:
        """Find the rule that the sweep followed.

        Global batches that were measured at every world size are fixed (strong
        scaling), unless global batches differ between world sizes and local ones do
        not: then local batches are fixed (weak scaling).

        Parameters
        ----------
        measured
            Completed configurations of the fitted rows.
        wanted
            Global batches that the job asks for; if given, only these are allowed.
        """
        local = sorted({int(b) for b in np.ceil(measured["local_batch_size"])})
        totals = _sets(measured, "global_batch_size")
        common = set.intersection(*totals)
        if _differ(totals) and not _differ(_sets(measured, "local_batch_size")):
            common = set()
        return cls(
            fixed=tuple(sorted(wanted)) or tuple(sorted(common)),
            local_batches=tuple(local),
        )

    def splits(self, data_parallel_size: int) -> list[tuple[int, int]]:
        """Return the (local batch, accumulation) pairs that are allowed.

        Parameters
        ----------
        data_parallel_size
            Ranks that see different samples.
        """
        if not self.fixed:
            return [(local, 1) for local in self.local_batches]
        pairs = []
        largest = self.local_batches[-1]
        for total in self.fixed:
            if total % data_parallel_size:
                continue
            per_rank = total // data_parallel_size
            fewest = -(-per_rank // largest)
            wanted = {per_rank / local for local in self.local_batches}
            steps = {int(s) for s in wanted if s >= 1 and s == int(s)}
            steps.add(_next_divisor(per_rank, fewest))
            pairs += [(per_rank // a, a) for a in sorted(steps) if per_rank % a == 0]
        return pairs


def _sets(measured: pd.DataFrame, column: str) -> list[set[int]]:
    """Return the values of a column by world size."""
    groups = measured.groupby("world_size")[column]
    return [{int(value) for value in np.round(group)} for _, group in groups]


def _differ(sets: list[set[int]]) -> bool:
    return any(other != sets[0] for other in sets)


def _next_divisor(number: int, least: int) -> int:
    limit = min(number, _MAX_ACCUMULATION)
    divisors = (k for k in range(least, limit + 1) if number % k == 0)
    return next(divisors, number)


def places(
    measured: pd.DataFrame,
    allocations: Sequence[Allocation] | None,
    devices_on_node: int | None = None,
) -> list[Place]:
    """Return the allocations to consider: the measured ones and further ones.

    Parameters
    ----------
    measured
        Completed configurations of the fitted rows.
    allocations
        Further allocations; None: the doublings of the smallest measured world size up
        to 4 times the largest, packed.
    devices_on_node
        Devices of a node; None: the most that were measured on one node, and at least
        two if only single devices were measured.
    """
    pairs = measured[["world_size", "num_nodes"]].drop_duplicates()
    known = {(int(n), int(m)) for n, m in pairs.to_numpy()}
    if allocations is not None:
        further = {(a.world_size, a.num_nodes) for a in allocations}
        return sorted(known | further)
    sizes = {n for n, _ in known}
    per_node = max(-(-n // m) for n, m in known)
    per_node = max(per_node, devices_on_node or (2 if sizes == {1} else 1))
    size, further = min(sizes), set()
    while size <= _FURTHEST * max(sizes):
        if size not in sizes:
            further.add((size, -(-size // per_node)))
        size *= 2
    return sorted(known | further)


def candidates(
    measured: Mapping[CurveKey, pd.DataFrame], where: Sequence[Place], rule: BatchRule
) -> pd.DataFrame:
    """Return the candidates for each curve and allocation.

    At a measured allocation these are the measured configurations that the rule allows,
    at any other every allowed split of the batch.
    No candidate is returned for an allocation whose data-parallel size is unknown.

    Returns
    -------
    DataFrame
        The curve's columns and ``world_size``, ``num_nodes``, ``local_batch_size``,
        ``gradient_accumulation_steps``, ``data_parallel_size``.
    """
    frames = []
    for key, frame in measured.items():
        rows: list[tuple[int, ...]] = []
        for place in where:
            own = _measured_at(frame, place, rule)
            rows += own or _splits_at(frame, place, rule)
        table = pd.DataFrame(rows, columns=list(CONFIGURATION), dtype=int)
        frames.append(table.assign(**dict(key)))
    return pd.concat(frames, ignore_index=True)


def _splits_at(
    frame: pd.DataFrame, place: Place, rule: BatchRule
) -> list[tuple[int, ...]]:
    parallel = data_parallel_size(frame, place)
    if parallel is None:
        return []
    return [(*place, *split, parallel) for split in rule.splits(parallel)]


def data_parallel_size(measured: pd.DataFrame, place: Place) -> int | None:
    """Return how many ranks see different samples on an allocation; None: unknown.

    What was measured there counts. Elsewhere as many devices see the same samples as
    wherever it was measured, if that number was the same everywhere.
    """
    at = _at(measured, place)
    replica = replica_size(measured[at] if at.any() else measured)
    return None if replica is None or place[0] % replica else int(place[0] / replica)


def replica_size(measured: pd.DataFrame) -> float | None:
    """Return how many devices saw the same samples; None: not the same everywhere."""
    sizes = (measured["world_size"] / measured["data_parallel_size"]).unique()
    return float(sizes[0]) if len(sizes) == 1 else None


def why_unshared(
    curves: Iterable[pd.DataFrame], wanted: Iterable[int]
) -> Iterator[str]:
    """Say where it is unknown which ranks see different samples, and why."""
    for measured in curves:
        replica = replica_size(measured)
        if replica is not None:
            if uneven := [str(size) for size in wanted if size % replica]:
                yield (
                    f"Not considered: {', '.join(uneven)} devices. As measured, "
                    f"{replica:g} devices each compute the same samples, and that does "
                    "not divide them."
                )
            continue
        sizes = measured[["data_parallel_size", "world_size"]].drop_duplicates()
        pairs = sizes.astype(int).sort_values(["world_size", "data_parallel_size"])
        shares = ", ".join(f"{some} of {world}" for some, world in pairs.to_numpy())
        yield (
            "Not considered: allocations that were not measured. How many of their "
            f"ranks would see different samples cannot be told, since it was {shares}. "
            "Measure an allocation to have it considered."
        )


def _at(measured: pd.DataFrame, place: Place) -> pd.Series:
    return (measured["world_size"] == place[0]) & (measured["num_nodes"] == place[1])


def _measured_at(
    frame: pd.DataFrame, place: Place, rule: BatchRule
) -> list[tuple[int, ...]]:
    rows = frame[_at(frame, place)]
    if rule.fixed:
        rows = rows[rows["global_batch_size"].round().isin(rule.fixed)]
    distinct = rows[list(CONFIGURATION)].drop_duplicates()
    return [tuple(int(v) for v in row) for row in distinct.to_numpy()]


def allocation_label(world_size: int, num_nodes: int) -> str:
    """Return nodes x devices, e.g. ``4x4``; uneven nodes as ``2x3+2``."""
    share, rest = divmod(world_size, num_nodes)
    devices = (share + 1,) * rest + (share,) * (num_nodes - rest)
    return str(Allocation(devices_per_node=devices))
