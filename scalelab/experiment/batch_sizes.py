"""Batch arithmetic: local x data-parallel ranks x accumulation = global."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scalelab.errors import SpecError


class ScalingMode(StrEnum):
    """Strong scaling fixes the global batch, weak scaling the local one."""

    STRONG = "strong"
    WEAK = "weak"


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizes:
    """The batch sizes of a trial."""

    local_batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int


def from_local(
    local: int, *, data_parallel_size: int, accumulation: int = 1
) -> BatchSizes:
    """Return the batch of a weak-scaling trial: the global batch grows with the ranks.

    >>> from_local(16, data_parallel_size=8).global_batch_size
    128
    """
    return BatchSizes(
        local_batch_size=local,
        gradient_accumulation_steps=accumulation,
        global_batch_size=local * data_parallel_size * accumulation,
    )


def from_both(local: int, total: int, *, data_parallel_size: int) -> BatchSizes:
    """Return the batch in which accumulation makes up the given global batch."""
    one_pass = local * data_parallel_size
    if total % one_pass:
        raise SpecError(
            f"global_batch_size={total} is not divisible by data_parallel_size="
            f"{data_parallel_size} * local_batch_size={local} (={one_pass}). Use a "
            f"multiple of {one_pass} or change local_batch_size."
        )
    return BatchSizes(
        local_batch_size=local,
        gradient_accumulation_steps=total // one_pass,
        global_batch_size=total,
    )


def from_global(
    total: int, *, data_parallel_size: int, accumulation: int = 1
) -> BatchSizes:
    """Return the batch of a strong-scaling trial: the local batch shrinks."""
    shares = data_parallel_size * accumulation
    if total % shares:
        divisor = f"data_parallel_size={data_parallel_size}"
        if accumulation > 1:
            divisor += f" * gradient_accumulation_steps={accumulation} (={shares})"
        raise SpecError(
            f"global_batch_size={total} is not divisible by {divisor}. Use a multiple "
            f"of {shares} or change the number of devices."
        )
    return from_local(
        total // shares,
        data_parallel_size=data_parallel_size,
        accumulation=accumulation,
    )


def fitted(total: int, largest: int, *, data_parallel_size: int) -> BatchSizes:
    """Return the batch with the fewest accumulation steps that fits into memory."""
    per_rank = from_global(
        total, data_parallel_size=data_parallel_size
    ).local_batch_size
    local = min(per_rank, largest)
    while per_rank % local:
        local -= 1
    return from_both(local, total, data_parallel_size=data_parallel_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRequest:
    """The batch sizes that were asked for, before the number of ranks is known.

    Parameters
    ----------
    local_batch_size
        Samples per rank per forward pass; None: follows from the global batch.
    global_batch_size
        Samples per optimiser step; None: follows from the local batch.
    """

    local_batch_size: int | None = None
    global_batch_size: int | None = None
    gradient_accumulation_steps: int = 1

    def at(self, data_parallel_size: int, largest: int | None = None) -> BatchSizes:
        """Return the batch on ranks that see different samples.

        ``largest`` is the largest local batch that fits, where that is looked for.
        """
        local, total = self.local_batch_size, self.global_batch_size
        among = {"data_parallel_size": data_parallel_size}
        accumulation = self.gradient_accumulation_steps
        if total is None:
            local = local or largest or 1
            return from_local(local, accumulation=accumulation, **among)
        if largest is not None:
            return fitted(total, largest, **among)
        if local is not None:
            return from_both(local, total, **among)
        return from_global(total, accumulation=accumulation, **among)


def samples_on_node(
    local: int, *, devices: int, world_size: int, data_parallel_size: int
) -> int:
    """Return the samples per forward pass over the ranks of a node.

    >>> samples_on_node(16, devices=4, world_size=8, data_parallel_size=4)
    32
    """
    return local * max(1, devices * data_parallel_size // world_size)
