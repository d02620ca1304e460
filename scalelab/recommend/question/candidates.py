"""Candidate configurations: the ones an answer compares."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.experiment.command_values import Untold
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.layout import Layout
from scalelab.kinds.strategies import strategy_of
from scalelab.kinds.strategy import Strategy, TrialSizes
from scalelab.laws.rows import CONFIGURATION, CurveKey
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.question.batches import BatchRule
from scalelab.records.columns import OPTION_PREFIX, PROGRAM_COLUMN

_FURTHEST = 4  # times the largest measured world size
_MOST_MULTIPLES = 128  # of whole nodes

Place = tuple[int, int]
"""World size and number of nodes."""
Split = tuple[int, int]
"""Local batch and accumulated passes."""
UntoldByProgram = Mapping[str | None, Set[Untold]]
"""What the command of each program is not told of; programs that are told have none."""
# Parameters that every pass gathers: all passes exchange, and not the last alone
_SHARDED = re.compile(r"fsdp|full_shard|zero[\s_-]*(stage)?[\s_-]*3")


def places(
    measured: pd.DataFrame,
    allocations: Sequence[Allocation] | None,
    devices_on_node: int | None = None,
) -> list[Place]:
    """Return the allocations to consider: the measured ones and further ones."""
    known = _measured_places(measured)
    if allocations is not None:
        return sorted(known | {(a.world_size, a.num_nodes) for a in allocations})
    sizes = {size for size, _ in known}
    measured_on_node = max(-(-size // nodes) for size, nodes in known)
    per_node = max(measured_on_node, devices_on_node or (2 if sizes == {1} else 1))
    most = _FURTHEST * max(sizes)
    nodes = range(1, min(most // per_node, _MOST_MULTIPLES) + 1)
    further = {*_doublings(sizes), *(per_node * count for count in nodes)} - sizes
    return sorted(known | {(size, -(-size // per_node)) for size in further})


def is_printed(
    sizes: np.ndarray,
    measured: pd.DataFrame,
    allocations: Sequence[Allocation] | None,
) -> np.ndarray:
    """Tell which world sizes the table of an answer always has.

    These are the measured ones and those asked for, or the doublings.
    """
    known = {size for size, _ in _measured_places(measured)}
    further = {place.world_size for place in allocations or ()} or _doublings(known)
    return np.isin(sizes, sorted(known | further))


def _measured_places(measured: pd.DataFrame) -> set[Place]:
    pairs = measured[["world_size", "num_nodes"]].drop_duplicates()
    return {(int(size), int(nodes)) for size, nodes in pairs.to_numpy()}


def _doublings(sizes: set[int]) -> set[int]:
    found, size = set(), min(sizes)
    while size <= _FURTHEST * max(sizes):
        found.add(size)
        size *= 2
    return found


def candidates(
    measured: Mapping[CurveKey, pd.DataFrame],
    where: Sequence[Place],
    rule: BatchRule,
    untold: UntoldByProgram = MappingProxyType({}),
) -> pd.DataFrame:
    """Return the candidates for each curve and allocation.

    These are the measured configurations that the rule allows and every split of an
    allowed batch. No split is returned for an allocation whose data-parallel size is
    unknown, or whose ranks the layout of the curve does not divide, nor one that the
    strategy of the curve refuses or its command is not told of.
    """
    frames = []
    for key, frame in measured.items():
        seen = _allowed(frame, rule)
        batches = sorted({int(batch) for batch in np.ceil(frame["local_batch_size"])})
        rows: dict[tuple[int, ...], None] = {}
        layout, strategy = _layout_of(key, frame), _strategy_of(key, frame)
        can_run = Runnable.of(frame, key, untold)
        replicas = _replicas_by_place(frame)
        usual = replicas.get(None)
        for place in where:
            rows |= dict.fromkeys(row for row in seen if row[: len(place)] == place)
            # elsewhere as many devices see the same samples as wherever it was measured
            replica = replicas.get(place, usual)
            parallel = None
            if replica is not None and not place[0] % replica:
                parallel = int(place[0] / replica)
            if parallel is not None and (layout is None or layout.suits(place)):
                splits = rule.splits(parallel, batches)
                if strategy is not None:
                    splits = [s for s in splits if strategy.suits(place, s, parallel)]
                splits = can_run.among(splits, parallel)
                rows |= dict.fromkeys((*place, *split, parallel) for split in splits)
        table = pd.DataFrame(list(rows), columns=list(CONFIGURATION), dtype=int)
        # Whole numbers stay such where other curves have none.
        whole = {name: "Int64" for name, value in key if type(value) is int}
        frames.append(table.assign(**dict(key)).astype(whole))
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Runnable:
    """What a further trial of a curve could run.

    A program that does not get a value runs as it did: with the measured local batches,
    or the one global batch that all trials had; with the measured numbers of passes.
    Where the parameters themselves are sharded among several ranks, these are all that
    is known of accumulation, too.
    """

    missing: Set[Untold]
    gathers: bool
    passes: Set[int]
    local_batches: Set[int]
    global_batches: Set[int]

    @classmethod
    def of(
        cls, measured: pd.DataFrame, key: CurveKey, untold: UntoldByProgram
    ) -> Runnable:
        """Read off the rows of a curve what its program ran."""
        program = dict(key).get(PROGRAM_COLUMN)
        passes, local_batches, global_batches = (
            {*np.ceil(measured[name]).astype(int)}
            for name in (
                *("gradient_accumulation_steps", "local_batch_size"),
                "global_batch_size",
            )
        )
        return cls(
            missing=untold.get(None if program is None else str(program), frozenset()),
            gathers=any(
                _SHARDED.search(f"{name.removeprefix(OPTION_PREFIX)} {value}".lower())
                for name, value in key
            ),
            passes=passes,
            local_batches=local_batches,
            global_batches=global_batches,
        )

    def among(self, splits: Sequence[Split], data_parallel_size: int) -> list[Split]:
        """Return the splits that could run."""
        found = list(splits)
        gathers = data_parallel_size > 1 and self.gathers
        if Untold.ACCUMULATION in self.missing or gathers:
            found = [each for each in found if each[1] in self.passes]
        if Untold.LOCAL_BATCH not in self.missing:
            return found
        if len(self.global_batches) == 1:
            return [
                each
                for each in found
                if each[0] * each[1] * data_parallel_size in self.global_batches
            ]
        return [each for each in found if each[0] in self.local_batches]


@dataclass(frozen=True, slots=True)
class _CurveLayout:
    """The layout of the rows of a curve."""

    layout: Layout
    crosses_nodes: bool = False

    def suits(self, place: Place) -> bool:
        try:
            self.layout.data_parallel_size(place[0])
            if not self.crosses_nodes:
                self.layout.check_nodes(_spread(*place))
        except SpecError:
            return False
        return True


def _layout_of(key: CurveKey, measured: pd.DataFrame) -> _CurveLayout | None:
    named = {name.removeprefix(OPTION_PREFIX): value for name, value in key}
    layout = Layout.of_degrees(named)
    if layout is None:
        return None
    within = _CurveLayout(layout)
    return _CurveLayout(layout, not all(map(within.suits, _measured_places(measured))))


@dataclass(frozen=True, slots=True)
class _CurveStrategy:
    """The strategy of the rows of a curve, which says what sizes it can have."""

    strategy: Strategy
    options: Mapping[str, Scalar]

    def suits(self, place: Place, split: tuple[int, int], parallel: int) -> bool:
        sizes = TrialSizes(
            allocation=_spread(*place),
            local_batch_size=split[0],
            gradient_accumulation_steps=split[1],
            options=self.options,
        )
        try:
            self.strategy.check(sizes)
            return self.data_parallel_size(place[0]) == parallel
        except SpecError:
            return False

    def data_parallel_size(self, world_size: int) -> int:
        return self.strategy.data_parallel_size(world_size, self.options)


def _strategy_of(key: CurveKey, measured: pd.DataFrame) -> _CurveStrategy | None:
    """Return the strategy of the rows of a curve; None: it does not tell their sizes.

    So it is where somebody else's program spread the model.
    """
    named = {name.removeprefix(OPTION_PREFIX): value for name, value in key}
    strategy = strategy_of(named.get("parallelism"))
    options = {name: named[name] for name in strategy.options if name in named}
    told = _CurveStrategy(strategy, options)
    sizes = measured[["world_size", "data_parallel_size"]].astype(int).to_numpy()
    try:
        strategy.check_options({name: [value] for name, value in options.items()})
        agrees = all(told.data_parallel_size(int(n)) == size for n, size in sizes)
    except SpecError:
        return None
    return told if agrees else None


def _allowed(frame: pd.DataFrame, rule: BatchRule) -> list[tuple[int, ...]]:
    rows = frame
    if not rule.keeps_local:
        rows = rows[rule.allows(rows["global_batch_size"].round().to_numpy())]
    if rule.local_batch_size is not None:
        rows = rows[rows["local_batch_size"] == rule.local_batch_size]
    distinct = rows[list(CONFIGURATION)].astype(int).drop_duplicates()
    return [tuple(row) for row in distinct.to_numpy().tolist()]


def _replicas_by_place(measured: pd.DataFrame) -> dict[Place | None, float | None]:
    """Return the size of replicas by allocation, and by None of them all.

    The size is None where it was not the same in all rows.
    """
    names = ["world_size", "num_nodes", "data_parallel_size"]
    distinct = measured[names].drop_duplicates()
    places = distinct[names[:2]].to_numpy(float)
    found: dict[Place | None, float | None] = {None: replica_size(distinct)}
    for size, nodes in places:
        at = (places == (size, nodes)).all(axis=1)
        found[int(size), int(nodes)] = replica_size(distinct[at])
    return found


def replica_size(measured: pd.DataFrame) -> float | None:
    """Return how many devices saw the same samples; None: not the same everywhere."""
    pairs = measured[["world_size", "data_parallel_size"]].to_numpy(float)
    sizes = np.unique(pairs[:, 0] / pairs[:, 1])
    return float(sizes[0]) if len(sizes) == 1 else None


def undivided(curves: Iterable[pd.DataFrame], wanted: Iterable[int]) -> list[int]:
    """Return the world sizes that the replicas of no curve divide."""
    known = _replica_sizes(curves)
    return [size for size in wanted if known and all(size % each for each in known)]


def _replica_sizes(curves: Iterable[pd.DataFrame]) -> list[float]:
    sizes = map(replica_size, curves)
    return sorted({size for size in sizes if size is not None})


def why_unshared(
    curves: Collection[pd.DataFrame], wanted: Iterable[int]
) -> Iterator[Fact]:
    """Note where it is unknown which ranks see different samples, and why."""
    if uneven := undivided(curves, wanted):
        sizes = {"world_sizes": uneven, "replica_sizes": _replica_sizes(curves)}
        yield Fact("replicas_not_divided", sizes)
    unknown = []
    for measured in curves:
        if replica_size(measured) is None:
            pairs = measured[["data_parallel_size", "world_size"]].drop_duplicates()
            pairs = pairs.astype(int).sort_values(["world_size", "data_parallel_size"])
            if (shares := pairs.to_numpy().tolist()) not in unknown:
                unknown.append(shares)
    yield from (Fact("replicas_not_known", {"shares": each}) for each in unknown)


def allocation_label(world_size: int, num_nodes: int) -> str:
    """Return nodes x devices, e.g. ``4x4``; uneven nodes as ``2x3+2``."""
    return str(_spread(world_size, num_nodes))


def _spread(world_size: int, num_nodes: int) -> Allocation:
    share, rest = divmod(world_size, num_nodes)
    devices = (share + 1,) * rest + (share,) * (num_nodes - rest)
    return Allocation(devices_per_node=devices)
