"""The batch as part of the question: which global and local batches are allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.inputs.problems import Option

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

ONE_EPOCH = "one epoch"  # why a batch is the largest: no step sees a sample twice
_MAX_ACCUMULATION = 4096
_MOST_LOCAL, _MOST_GLOBAL = 16, 12


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedBatch:
    """What the question says of the batch; None where it leaves that open."""

    global_batch_size: int | None = None
    largest: int | None = None
    local_batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.global_batch_size is not None and self.largest is not None:
            raise SpecError(
                f"{Option('batch')}={self.global_batch_size} names the global batch "
                f"and {Option('max_batch')}={self.largest} a range of them.",
                "Give one of the two.",
                code="batch_said_twice",
            )

    def _for_job(self, job: Job | None) -> AskedBatch:
        batch_of_job = None if job is None else job.global_batch_size
        if batch_of_job is None or self.global_batch_size:
            return self

        if self.largest is not None and batch_of_job > self.largest:
            raise SpecError(
                f"The job has a global batch of {batch_of_job:,}, which "
                f"{Option('max_batch')}={self.largest:,} does not allow.",
                f"Leave out {Option('max_batch')}, or name another batch.",
                code="batch_of_job_too_large",
            )

        return AskedBatch(
            global_batch_size=batch_of_job, local_batch_size=self.local_batch_size
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRule:
    """The rule for batches, the same for measured and for other allocations."""

    smallest: int
    largest: int
    totals: tuple[int, ...]
    # The only local batch; None: every measured one, and smaller ones where the range
    # of global batches asks for them
    local_batch_size: int | None = None
    # The least local batch whose batch-norm statistics were seen; else 1
    least_local: int = 1
    is_named: bool = False
    why_largest: str = ""
    # Weak scaling: one local batch was measured, in one pass a step, and the global
    # batch grows with the devices. Allocations beyond the range are shown with it, and
    # not chosen.
    keeps_local: bool = False

    @classmethod
    def of(
        cls,
        measured: pd.DataFrame,
        asked: AskedBatch,
        job: Job | None,
        *,
        everywhere: pd.DataFrame | None = None,
        converged: Sequence[int] = (),
        normalizes_locally: bool = False,
    ) -> BatchRule:
        """Find the batches that the question allows.

        ``everywhere`` are the rows on other devices, too: what a global batch trains
        does not depend on the device.
        """
        batch_of_run, locals_ = (
            _whole(measured[name]) for name in ("global_batch_size", "local_batch_size")
        )
        frame = measured if everywhere is None else everywhere
        totals, named = _whole(frame["global_batch_size"]), asked._for_job(job)

        batch, keeps_local = named.global_batch_size, False
        if batch is None and job is not None and job.steps and not converged:
            batch = _only_batch(totals, job, named.largest)

        if batch is not None:
            smallest, largest, why = batch, batch, "the one that was asked for"
        else:
            known = sorted(converged) or totals
            epoch = None if job is None or converged else job.samples_per_epoch
            smallest = known[0]
            largest, why = _largest(known[-1], named.largest, epoch)
            keeps_local = not converged and len(locals_) == 1 and len(batch_of_run) > 1
            keeps_local &= _whole(measured["gradient_accumulation_steps"]) == [1]

        is_named, smallest = smallest == largest, min(smallest, largest)
        return cls(
            smallest=smallest,
            largest=largest,
            totals=_totals(smallest, largest, totals, converged),
            local_batch_size=named.local_batch_size,
            least_local=locals_[0] if normalizes_locally else 1,
            is_named=is_named,
            why_largest=why,
            keeps_local=keeps_local and named.local_batch_size is None,
        )

    def in_words(self) -> str:
        """Write the allowed global batches, e.g. ``a global batch of 32 to 512``."""
        upper = f" to {self.largest:,}" if self.smallest < self.largest else ""
        return f"a global batch of {self.smallest:,}{upper}"

    def allows(self, batch: np.ndarray) -> np.ndarray:
        """Tell which global batches are inside the range."""
        return (batch >= self.smallest) & (batch <= self.largest)

    def splits(
        self, data_parallel_size: int, measured: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Return the (local batch, accumulation) pairs to consider, sorted."""
        local_batch = self.local_batch_size
        known = [local_batch] if local_batch else thinned(measured, _MOST_LOCAL)
        if self.keeps_local:
            return [(local, 1) for local in known]

        pairs, most = set(), self.largest if self.is_named else _MAX_ACCUMULATION
        for local in known:
            per_pass = local * data_parallel_size
            for total in (per_pass, *self.totals):
                passes = min(total // per_pass, most)
                if passes and self.smallest <= passes * per_pass <= self.largest:
                    pairs.add((local, passes))

        if local_batch is None:
            pairs |= set(self._smaller(data_parallel_size, known[-1]))

        return sorted(pairs)

    def _smaller(self, data_parallel_size: int, most: int) -> Iterable[tuple[int, int]]:
        """Share each global batch in local batches that were not measured.

        A batch that is named is shared evenly in the fewest passes. Of a range, the
        local batch is the largest round one, as a user would choose it.
        """
        for total in self.totals:
            per_rank, rest = divmod(total, data_parallel_size)
            if not self.is_named and per_rank <= most:
                local, passes = round_down(per_rank), 1
            elif self.is_named and per_rank and not rest:
                passes = next_divisor(per_rank, -(-per_rank // most))
                local = per_rank // passes
            else:
                continue

            is_inside = local * passes * data_parallel_size >= self.smallest
            if local >= self.least_local and is_inside:
                yield local, passes


def round_down(number: int) -> int:
    """Return the largest round batch that is not larger: 4 to 7 times a power of 2.

    >>> [round_down(number) for number in (0, 3, 9, 586)]
    [0, 3, 8, 512]
    """
    step = 1 << max(number.bit_length() - 3, 0)
    return number // step * step


def _only_batch(totals: Sequence[int], job: Job, largest: int | None) -> int:
    if len(totals) > 1:
        raise SpecError(
            f"The job is {job.steps:,} steps, and global batches from {totals[0]:,} to "
            f"{totals[-1]:,} were measured: how much it trains depends on the batch.",
            f"Name one with {Option('batch')}, or as job.global_batch_size in the "
            "experiment. Or say the length of the job in samples or epochs.",
            code="steps_of_several_batches",
        )

    if largest is not None and totals[0] > largest:
        raise SpecError(
            f"The only global batch that was measured is {totals[0]:,}, and "
            f"{Option('max_batch')}={largest:,} does not allow it.",
            "Leave it out, or name a batch.",
            code="only_batch_too_large",
        )
    return totals[0]


def _largest(
    measured: int, asked: int | None, samples_per_epoch: int | None
) -> tuple[int, str]:
    """Return the largest global batch, and why it is."""
    largest, why = asked or measured, "the one that was asked for"
    if asked is None:
        why = "the largest that was measured"
    if samples_per_epoch is not None and samples_per_epoch < largest:
        return samples_per_epoch, ONE_EPOCH
    return largest, why


def _totals(
    smallest: int, largest: int, measured: Sequence[int], converged: Sequence[int]
) -> tuple[int, ...]:
    """Return the global batches to consider: several where convergence was measured."""
    if not converged:
        return (largest,)
    doublings = (smallest << n for n in range(_MAX_ACCUMULATION.bit_length()))
    known = {*measured, *converged, *doublings}
    inside = sorted(total for total in known if smallest <= total <= largest)
    return tuple(sorted({*thinned(inside, _MOST_GLOBAL), largest}))


def _whole(values: pd.Series) -> list[int]:
    return sorted({math.ceil(value - 1e-9) for value in values})


def thinned(values: Sequence[int], most: int) -> list[int]:
    """Return at most so many values, evenly spread, the first and the last included."""
    count = min(most, len(values))
    step = (len(values) - 1) / max(count - 1, 1)
    return [values[round(step * place)] for place in range(count)]


def next_divisor(number: int, least: int) -> int:
    """Return the smallest divisor of a number that is not below another number."""
    small = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    divisors = [*small, *(number // k for k in reversed(small))]
    return next((k for k in divisors if k >= least), number)
