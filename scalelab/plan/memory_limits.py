"""Memory limits as measured: which local batches did not fit, and which did."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.strategies import strategy_of
from scalelab.plan.source import Observation

_MEASURED = {outcome for outcome in Outcome if outcome.is_measurement}
_COLUMNS = (
    *("workload", "device_name", "node_group"),
    *("parallelism", "precision", "sequence_length", "optimizer"),
)
_OPTION = "options."
_MOST_SAID = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLimit:
    """The local batch at which trials of one setting ran out of device memory."""

    # What tells the setting from the others that were measured, by column; world_size
    # where ranks share the model's state.
    settings: Mapping[str, Scalar]
    local_batch_size: int
    largest_fitting: int | None  # below it; None: none was measured
    num_trials: int

    def __str__(self) -> str:
        where = ", ".join(
            counted(int(value), "device")
            if name == "world_size"
            else f"{name.removeprefix(_OPTION)} {value}"
            for name, value in self.settings.items()
        )

        fitting = f"; {self.largest_fitting:,} did" if self.largest_fitting else ""
        return (
            f"Local batch {self.local_batch_size:,} did not fit into memory{fitting}"
            f"{f' ({where})' if where else ''}."
        )


def memory_limits(rows: Iterable[Observation]) -> tuple[MemoryLimit, ...]:
    """Return where trials ran out of device memory, a limit for each setting."""
    groups: dict[tuple[tuple[str, Scalar], ...], list[Observation]] = defaultdict(list)
    for row in rows:
        if row.get("local_batch_size") and row.get("outcome") in _MEASURED:
            names = [
                *_COLUMNS,
                *sorted(name for name in row if name.startswith(_OPTION)),
            ]
            if strategy_of(row.get("parallelism")).shards_state:
                names.append("world_size")
            known = ((name, row[name]) for name in names if row.get(name) is not None)
            groups[tuple(known)].append(row)

    every = [dict(group) for group in groups]
    limits = []
    for setting, group in zip(every, groups.values(), strict=True):
        sizes: dict[bool, list[int]] = {True: [], False: []}
        for row in group:
            is_failed = row["outcome"] == Outcome.OUT_OF_MEMORY
            sizes[is_failed].append(int(row["local_batch_size"]))

        if not sizes[True]:
            continue

        limit = min(sizes[True])
        limits.append(
            MemoryLimit(
                settings={
                    name: value
                    for name, value in setting.items()
                    if len({other.get(name) for other in every}) > 1
                },
                local_batch_size=limit,
                largest_fitting=max(
                    (size for size in sizes[False] if size < limit), default=None
                ),
                num_trials=len(sizes[True]),
            )
        )

    return tuple(limits)


def limits_in_words(limits: Iterable[MemoryLimit]) -> list[str]:
    """Return sentences about memory limits, of many the first."""
    texts = list(map(str, limits))
    if more := texts[_MOST_SAID:]:
        texts[_MOST_SAID:] = [f"So in {counted(len(more), 'further setting')}."]
    return texts
