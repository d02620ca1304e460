"""What a question says of the batch."""

from __future__ import annotations

from dataclasses import dataclass

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.inputs.wording import Option

_LARGEST = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedBatch:
    """What the question says of the batch; None where it leaves that open."""

    global_batch_size: int | None = None
    largest: int | None = None
    local_batch_size: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("batch", self.global_batch_size),
            ("max_batch", self.largest),
            ("local_batch", self.local_batch_size),
        ):
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (is_whole and 1 <= value <= _LARGEST):
                raise SpecError(
                    f"{Option(name)}={value!r} is not a batch.",
                    f"Give a whole number of samples from 1 to {_LARGEST:,}.",
                )
        if self.global_batch_size is not None and self.largest is not None:
            raise SpecError(
                f"{Option('batch')}={self.global_batch_size} names the global batch "
                f"and {Option('max_batch')}={self.largest} a range of them.",
                "Give one of the two.",
            )

    def for_job(self, job: Job | None) -> AskedBatch:
        """Return the batch that is asked for; the job's own unless it is replaced."""
        own = None if job is None else job.global_batch_size
        if own is None or self.global_batch_size:
            return self
        if self.largest is not None and own > self.largest:
            raise SpecError(
                f"The job has a global batch of {own:,}, which {Option('max_batch')}="
                f"{self.largest:,} does not allow.",
                f"Leave out {Option('max_batch')}, or name another batch.",
            )
        return AskedBatch(global_batch_size=own, local_batch_size=self.local_batch_size)
