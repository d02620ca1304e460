"""Sample order: a function of seed, global batch and step alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The part of every global batch that one rank computes.

    Parameters
    ----------
    rank, data_parallel_size
        Which of how many ranks that see different samples.
    local_batch_size
        Samples per forward pass.
    gradient_accumulation_steps
        Forward passes per optimiser step.

    Examples
    --------
    One rank with two accumulation steps computes the same micro-batches as two ranks:

    >>> one = Share(rank=0, data_parallel_size=1, local_batch_size=3,
    ...             gradient_accumulation_steps=2)
    >>> second = Share(rank=1, data_parallel_size=2, local_batch_size=3,
    ...                gradient_accumulation_steps=1)
    >>> one.rows(1) == second.rows(0)
    True
    """

    rank: int
    data_parallel_size: int
    local_batch_size: int
    gradient_accumulation_steps: int

    @property
    def global_batch_size(self) -> int:
        """Samples per optimiser step over all ranks."""
        return (
            self.local_batch_size
            * self.data_parallel_size
            * self.gradient_accumulation_steps
        )

    def rows(self, micro_step: int) -> slice:
        """Return this rank's rows of the global batch in one accumulation step."""
        chunk = micro_step * self.data_parallel_size + self.rank
        first = chunk * self.local_batch_size
        return slice(first, first + self.local_batch_size)


class SampleOrder:
    """The sample indices of every global batch.

    Each epoch is a fresh permutation; its last, partial batch is dropped. A batch
    larger than the data is made of several permutations.

    Parameters
    ----------
    num_samples
        Samples in the training data.
    global_batch_size
        Samples per optimiser step over all ranks.
    seed
        The trial's seed.
    """

    def __init__(self, *, num_samples: int, global_batch_size: int, seed: int) -> None:
        self.num_samples = num_samples
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.steps_per_epoch = max(1, num_samples // global_batch_size)
        self._epoch = -1
        self._indices: Indices = np.empty(0, dtype=np.int64)

    def batch(self, step: int) -> Indices:
        """Return the sample indices of one step, shape (global_batch_size,)."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._indices = self._permuted(epoch)
            self._epoch = epoch
        first = position * self.global_batch_size
        return self._indices[first : first + self.global_batch_size]

    def uniform(self, step: int, width: int) -> npt.NDArray[np.float32]:
        """Return numbers in [0, 1), shape (global_batch_size, width), for augmentation.

        They belong to the samples of the step, whichever rank computes them.
        """
        generator = np.random.default_rng(
            [self.seed, self.global_batch_size, step, width]
        )
        return generator.random((self.global_batch_size, width), dtype=np.float32)

    def _permuted(self, epoch: int) -> Indices:
        generator = np.random.default_rng([self.seed, self.global_batch_size, epoch])
        num_permutations = -(-self.global_batch_size // self.num_samples)
        return np.concatenate(
            [generator.permutation(self.num_samples) for _ in range(num_permutations)]
        )
