"""What a question says of the batch."""

from __future__ import annotations

from dataclasses import dataclass

from scalelab.errors import SpecError
from scalelab.experiment.job import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedBatch:
    """What the question says of the batch; None where it leaves that open.

    Parameters
    ----------
    global_batch_size
        The global batch of the job.
    largest
        The largest global batch that may be used, instead of the largest measured.
    local_batch_size
        The local batch of the job.
    """

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
            if value is not None and not (is_whole and value >= 1):
                raise SpecError(
                    f"{name}={value!r} is not a batch. Give a whole number of samples "
                    "of at least 1."
                )
        if self.global_batch_size is not None and self.largest is not None:
            raise SpecError(
                f"batch={self.global_batch_size} names the global batch and max_batch="
                f"{self.largest} a range of them. Give one of the two."
            )

    def for_job(self, job: Job | None) -> AskedBatch:
        """Return the batch that is asked for; the job's own unless it is replaced."""
        own = None if job is None else job.global_batch_size
        if own is None or self.global_batch_size or self.largest:
            return self
        return AskedBatch(global_batch_size=own, local_batch_size=self.local_batch_size)
