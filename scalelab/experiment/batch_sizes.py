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

        ``largest`` is the largest local batch that fits, where that is looked for: then
        it is accumulated in the fewest steps.

        >>> BatchRequest(local_batch_size=16).at(8).global_batch_size
        128
        """
        local, total = self.local_batch_size, self.global_batch_size
        accumulation = self.gradient_accumulation_steps
        if total is None:
            local = local or largest or 1
            total = local * data_parallel_size * accumulation
        elif largest is not None:
            per_rank = _share(total, data_parallel_size)
            local = min(per_rank, largest)
            while per_rank % local:
                local -= 1
            accumulation = per_rank // local
        elif local is not None:
            one_pass = local * data_parallel_size
            if total % one_pass:
                raise SpecError(
                    f"global_batch_size={total} is not divisible by data_parallel_size="
                    f"{data_parallel_size} * local_batch_size={local} (={one_pass}). "
                    f"Use a multiple of {one_pass} or change local_batch_size."
                )
            accumulation = total // one_pass
        else:
            local = _share(total, data_parallel_size, accumulation)
        return BatchSizes(
            local_batch_size=local,
            gradient_accumulation_steps=accumulation,
            global_batch_size=total,
        )


def _share(total: int, data_parallel_size: int, accumulation: int = 1) -> int:
    """Return the local batch of equal shares of a global batch."""
    shares = data_parallel_size * accumulation
    if total % shares:
        divisor = f"data_parallel_size={data_parallel_size}"
        if accumulation > 1:
            divisor += f" * gradient_accumulation_steps={accumulation} (={shares})"
        raise SpecError(
            f"global_batch_size={total} is not divisible by {divisor}. Use a multiple "
            f"of {shares} or change the number of devices."
        )
    return total // shares


def samples_on_node(
    local: int, *, devices: int, world_size: int, data_parallel_size: int
) -> int:
    """Return the samples per forward pass over the ranks of a node.

    >>> samples_on_node(16, devices=4, world_size=8, data_parallel_size=4)
    32
    """
    return local * max(1, devices * data_parallel_size // world_size)
