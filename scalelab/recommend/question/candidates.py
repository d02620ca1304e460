"""Candidate configurations: the ones an answer compares, and whether they fit."""

import math
import re
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Self

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.layout import Layout
from scalelab.inputs.placeholders import Untold
from scalelab.inputs.problems import Option
from scalelab.kinds.strategies import strategy_of
from scalelab.kinds.strategy import TrialSizes
from scalelab.laws.memory.law import MemoryLaw
from scalelab.laws.rows import CONFIGURATION, CurveKey, numbers
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.prediction.consistency import is_among
from scalelab.recommend.question.batches import BatchRule, thinned
from scalelab.records.columns import OPTION_PREFIX, PROGRAM_COLUMN

_FURTHEST = 4  # times the largest measured world size
_MOST_MULTIPLES = 200  # of whole nodes

# World size and number of nodes
Place = tuple[int, int]
# Local batch and accumulated passes
Split = tuple[int, int]
# What the command of each program is not told of; programs that are told have none
UntoldByProgram = Mapping[str | None, Set[Untold]]
# Parameters that every pass gathers: all passes exchange, and not the last alone
_SHARDED = re.compile(r"fsdp|full_shard|zero[\s_-]*(stage)?[\s_-]*3")


def places(
    measured: pd.DataFrame,
    wanted: Iterable[int] = (),
    devices_on_node: int | None = None,
) -> list[Place]:
    """Return the allocations to consider: the measured ones and further ones.

    Further ones have the wanted world sizes, or are doublings and whole nodes.
    """
    known = _measured_places(measured)
    sizes = {size for size, _ in known}
    measured_on_node = max(-(-size // nodes) for size, nodes in known)
    per_node = max(measured_on_node, devices_on_node or (2 if sizes == {1} else 1))
    nodes = range(1, _FURTHEST * max(sizes) // per_node + 1)
    whole = (per_node * count for count in thinned(nodes, _MOST_MULTIPLES))
    further = {*wanted} or {*_doublings(sizes), *whole}
    return sorted(known | {(size, -(-size // per_node)) for size in further - sizes})


def is_printed(
    sizes: np.ndarray, measured: pd.DataFrame, wanted: Iterable[int] = ()
) -> np.ndarray:
    """Tell which world sizes the table of an answer always has.

    These are the measured ones and those asked for, or the doublings.
    """
    known = {size for size, _ in _measured_places(measured)}
    further = {*wanted} or _doublings(known)
    return np.isin(sizes, sorted(known | further))


def _measured_places(measured: pd.DataFrame) -> set[Place]:
    pairs = measured[["world_size", "num_nodes"]].drop_duplicates()
    return {(int(size), int(nodes)) for size, nodes in pairs.to_numpy()}


def _doublings(sizes: set[int]) -> set[int]:
    ratio = _FURTHEST * max(sizes) // min(sizes)
    return {min(sizes) << power for power in range(ratio.bit_length())}


def candidates(
    measured: Mapping[CurveKey, pd.DataFrame],
    where: Sequence[Place],
    rule: BatchRule,
    untold: UntoldByProgram = MappingProxyType({}),
    of_whole_runs: bool = False,
) -> pd.DataFrame:
    """Return the candidates for each curve and allocation.

    These are the measured configurations that the rule allows and every split of an
    allowed batch. No split is returned for an allocation whose data-parallel size is
    unknown, or whose ranks the layout of the curve does not divide, nor one that the
    strategy of the curve refuses or its command is not told of. Of whole runs that tell
    no data-parallel size, it is the largest that divides devices and batch.
    """
    frames = []
    for key, frame in measured.items():
        seen = _allowed(frame, rule)
        batches = sorted({int(batch) for batch in np.ceil(frame["local_batch_size"])})
        rows: dict[tuple[int, ...], None] = {}
        divides, suits = _layout_check(key, frame), _strategy_check(key, frame)
        could_run = runnable(frame, key, untold)

        replicas = _replicas_by_place(frame)
        for place in where:
            rows |= dict.fromkeys(row for row in seen if row[: len(place)] == place)
            # elsewhere as many devices see the same samples as wherever it was measured
            replica = replicas.get(place, replicas.get(None))
            if replica is not None and not place[0] % replica and divides(place):
                parallel = int(place[0] / replica)
                splits = rule.splits(parallel, batches)
                suited = [split for split in splits if suits(place, split, parallel)]
                rows |= dict.fromkeys(
                    (*place, *split, parallel) for split in could_run(suited, parallel)
                )
            elif replica is None and of_whole_runs:
                # at the measured local batches, too, as runs of other sizes had them
                local_totals = np.array(batches) * place[0]
                totals = {
                    *rule.totals,
                    *local_totals[rule.allows(local_totals)].tolist(),
                }
                shares = {total: math.gcd(place[0], total) for total in totals}
                rows |= {
                    (*place, total // parallel, 1, parallel): None
                    for total, parallel in shares.items()
                    if total // parallel <= batches[-1]
                }

        table = pd.DataFrame(list(rows), columns=list(CONFIGURATION), dtype=int)
        # Whole numbers stay such where other curves have none.
        whole = {name: "Int64" for name, value in key if type(value) is int}
        frames.append(table.assign(**dict(key)).astype(whole))
    return pd.concat(frames, ignore_index=True)


def runnable(
    measured: pd.DataFrame, key: CurveKey, untold: UntoldByProgram
) -> Callable[[list[Split], int], list[Split]]:
    """Return what chooses the splits of a data-parallel size that a curve could run.

    A program that does not get a value runs as it did: with the measured local batches,
    or the one global batch that all trials had; with the measured numbers of passes.
    Where the parameters themselves are sharded among several ranks, these are all that
    is known of accumulation, too.
    """
    program = dict(key).get(PROGRAM_COLUMN)
    missing = untold.get(None if program is None else str(program), frozenset())
    gathers = any(
        _SHARDED.search(f"{name.removeprefix(OPTION_PREFIX)} {value}".lower())
        for name, value in key
    )
    names = ("gradient_accumulation_steps", "local_batch_size", "global_batch_size")

    passes, locals_, totals = ({*np.ceil(measured[n]).astype(int)} for n in names)

    def among(splits: list[Split], data_parallel_size: int) -> list[Split]:
        if Untold.ACCUMULATION in missing or (gathers and data_parallel_size > 1):
            splits = [split for split in splits if split[1] in passes]
        if Untold.LOCAL_BATCH not in missing:
            return splits
        if len(totals) > 1:
            return [split for split in splits if split[0] in locals_]
        return [s for s in splits if s[0] * s[1] * data_parallel_size in totals]

    return among


def _layout_check(key: CurveKey, measured: pd.DataFrame) -> Callable[[Place], bool]:
    """Return what tells whether an allocation's ranks can be divided as a curve's."""
    layout = Layout.of_degrees(_named(key))
    if layout is None:
        return lambda place: True

    def divides(place: Place, *, within_nodes: bool) -> bool:
        try:
            layout.data_parallel_size(place[0])
            if within_nodes:
                layout.check_nodes(Allocation.spread(*place))
        except SpecError:
            return False
        return True

    places = _measured_places(measured)
    are_within = all(divides(place, within_nodes=True) for place in places)
    return partial(divides, within_nodes=are_within)


def _strategy_check(
    key: CurveKey, measured: pd.DataFrame
) -> Callable[[Place, Split, int], bool]:
    """Return what tells whether so many ranks would see different samples of a split.

    The strategy of a curve says so, unless somebody else's program spread the model.
    """
    named = _named(key)
    strategy = strategy_of(named.get("parallelism"))

    options = {name: named[name] for name in strategy.options if name in named}

    def suits(place: Place, split: Split, parallel: int) -> bool:
        sizes = TrialSizes(
            allocation=Allocation.spread(*place),
            local_batch_size=split[0],
            gradient_accumulation_steps=split[1],
            options=options,
        )
        try:
            strategy.check(sizes)
            return strategy.data_parallel_size(place[0], options) == parallel
        except SpecError:
            return False

    with suppress(SpecError):
        strategy.check_options({name: [value] for name, value in options.items()})
        sizes = measured[["world_size", "data_parallel_size"]].astype(int).to_numpy()
        if all(
            strategy.data_parallel_size(int(n), options) == size for n, size in sizes
        ):
            return suits

    return lambda place, split, parallel: True


def _named(key: CurveKey) -> dict[str, Scalar]:
    return {name.removeprefix(OPTION_PREFIX): value for name, value in key}


def _allowed(frame: pd.DataFrame, rule: BatchRule) -> list[tuple[int, ...]]:
    if not rule.keeps_local:
        frame = frame[rule.allows(frame["global_batch_size"].round().to_numpy())]
    if rule.local_batch_size is not None:
        frame = frame[frame["local_batch_size"] == rule.local_batch_size]
    distinct = frame[list(CONFIGURATION)].astype(int).drop_duplicates()
    return [tuple(row) for row in distinct.to_numpy().tolist()]


def _replicas_by_place(measured: pd.DataFrame) -> dict[Place | None, float | None]:
    """Return the size of replicas by allocation, and by None of them all.

    The size is None where it was not the same in all rows.
    """
    names = ["world_size", "num_nodes", "data_parallel_size"]
    distinct = measured[names].drop_duplicates()
    found: dict[Place | None, float | None] = {None: replica_size(distinct)}
    for place in _measured_places(distinct):
        is_there = (distinct[names[:2]] == list(place)).all(axis=1)
        found[place] = replica_size(distinct[is_there])
    return found


def replica_size(measured: pd.DataFrame) -> float | None:
    """Return how many devices saw the same samples; None: not the same everywhere."""
    pairs = measured[["world_size", "data_parallel_size"]].to_numpy(float)
    sizes = np.unique(pairs[:, 0] / pairs[:, 1])
    return float(sizes[0]) if len(sizes) == 1 else None


def undivided(curves: Iterable[pd.DataFrame], wanted: Iterable[int]) -> list[int]:
    """Return the world sizes that the replicas of no curve divide."""
    known = _replica_sizes(curves)
    return [size for size in wanted if known and all(size % shares for shares in known)]


def _replica_sizes(curves: Iterable[pd.DataFrame]) -> list[float]:
    return sorted({size for size in map(replica_size, curves) if size is not None})


def why_unshared(
    curves: Collection[pd.DataFrame], wanted: Iterable[int]
) -> Iterator[Fact]:
    """Note where it is unknown which ranks see different samples, and why."""
    if uneven := undivided(curves, wanted):
        known = _replica_sizes(curves)
        yield Fact.of("replicas_not_divided", world_sizes=uneven, replica_sizes=known)

    unknown = []
    for measured in curves:
        if replica_size(measured) is None:
            pairs = measured[["data_parallel_size", "world_size"]].drop_duplicates()
            pairs = pairs.astype(int).sort_values(["world_size", "data_parallel_size"])
            if (shares := pairs.to_numpy().tolist()) not in unknown:
                unknown.append(shares)

    yield from (Fact.of("replicas_not_known", shares=shares) for shares in unknown)


def allocation_label(world_size: int, num_nodes: int) -> str:
    """Return nodes x devices, e.g. ``4x4``; uneven nodes as ``2x3+2``."""
    return str(Allocation.spread(world_size, num_nodes))


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRoom:
    """The memory law of the observations, and the memory of a device."""

    law: MemoryLaw
    # The least memory that a rank had; None if no row recorded it
    capacity_bytes: float | None

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Fit the law to the rows of one kind of device, and read its memory."""
        sizes = numbers(frame, "gpu_memory_bytes")
        known = sizes[np.isfinite(sizes) & (sizes > 0)]
        return cls(
            law=MemoryLaw.fit(frame),
            capacity_bytes=float(known.min()) if len(known) else None,
        )

    def fits(self, asked: pd.DataFrame) -> np.ndarray:
        """Tell which configurations fit, because they ran or by measured peaks.

        Without measured peaks and capacity, a configuration fits only if its local
        batch ran on as many ranks or fewer. A local batch that ran out of memory on as
        many ranks or more does not fit.
        """
        return np.asarray(asked["local_batch_size"].to_numpy() <= self.largest(asked))

    def largest(self, asked: pd.DataFrame) -> np.ndarray:
        """Return the largest local batch that fits of each, 0: none, shape (n,)."""
        found = self.law.largest_local_batch(asked, self.capacity_bytes)
        return found["largest_local_batch"].to_numpy(int)

    def fitting(
        self, asked: pd.DataFrame, measured: pd.DataFrame, rule: BatchRule
    ) -> pd.DataFrame:
        """Return the configurations that were measured or fit; there must be some."""
        names = list(CONFIGURATION)
        is_measured = is_among(asked[names], measured[names].astype(int))
        is_usable = is_measured | self.fits(asked)

        chosen: pd.DataFrame = asked[is_usable].reset_index(drop=True)
        if len(chosen):
            return chosen

        if rule.local_batch_size is not None and len(asked):
            raise SpecError(
                f"{Option('local_batch')}={rule.local_batch_size:,} is not known to "
                "fit into the memory of a device: what ran leaves room for "
                f"{self.largest(asked).max():,} at most.",
                "Ask for a smaller local batch.",
                code="batch_beyond_memory",
            )

        raise SpecError(
            f"No measured or larger allocation can share {rule.in_words()} evenly in "
            "local batches that are known to fit and of which the measured program "
            "can be told.",
            "Ask for another batch or other device counts.",
            code="batch_not_shared",
        )

    def notes(self, configuration: pd.DataFrame) -> Iterator[Fact]:
        """Note that the local batch of a configuration was not tried."""
        tried = self.law.largest_local_batch(configuration)["largest_fitting"]
        batch = configuration["local_batch_size"].item()
        if self.capacity_bytes is not None and batch > tried.item():
            yield Fact.of(
                "not_tried",
                local_batch_size=batch,
                peak_bytes=self.law.predict(configuration)["peak_bytes"].item(),
                capacity_bytes=self.capacity_bytes,
            )
