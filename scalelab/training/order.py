"""Sample order: a function of seed, global batch and step alone, unless sharded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scalelab.errors import SpecError

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The part of every global batch that one rank computes.

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


def check_parts(found: int, noun: str, num_parts: int) -> None:
    """Refuse data that a sharded order cannot deal out to all ranks."""
    if found < num_parts:
        raise SpecError(
            f"A sharded order deals the {noun} out to {num_parts} ranks, and there are "
            f"{found}. Make more of them, run on at most {found} devices, or let the "
            "ranks share out one order.",
            code="too_few_parts",
        )


class SampleOrder:
    """The sample indices of every global batch.

    Each epoch is a fresh permutation; its last, partial batch is dropped. A batch
    larger than the data is made of several permutations.
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


class PartedOrder(SampleOrder):
    """An order in which samples are drawn from parts of the data, passed through alike.

    One part is the data of all ranks: they share out every global batch. Otherwise each
    rank has a part of its own, and all take as many steps in an epoch as the smallest
    part allows; then the order depends on the number of ranks.
    """

    def __init__(self, *, sizes: Sequence[int], share: Share, seed: int) -> None:
        super().__init__(
            num_samples=min(sizes) * len(sizes),
            global_batch_size=share.global_batch_size,
            seed=seed,
        )
        self._num_parts = len(sizes)
        self._share = share
        per_epoch = self.steps_per_epoch * self.samples_per_step
        self._num_passes = -(-per_epoch // min(sizes))

    @property
    def samples_per_step(self) -> int:
        """Samples that an optimiser step takes of each part."""
        return self.global_batch_size // self._num_parts

    def part_of(self, share: Share) -> tuple[int, Share]:
        """Return the part that a rank draws from, and its share of what is drawn."""
        if self._num_parts == 1:
            return 0, share
        return share.rank, replace(share, rank=0, data_parallel_size=1)

    def passes(self, part: int, epoch: int) -> list[Indices]:
        """Return the samples of a part in an epoch, one array for each pass."""
        first = epoch * self._num_passes
        return [
            self._pass(part, number)
            for number in range(first, first + self._num_passes)
        ]

    def _pass(self, part: int, number: int) -> Indices:
        raise NotImplementedError(f"{type(self).__name__} has no _pass().")

    def _generator(self, part: int, number: int) -> np.random.Generator:
        words = [self.seed, self.global_batch_size, part, number]
        return np.random.default_rng(words)

    def _permuted(self, epoch: int) -> Indices:
        steps, accumulation = (
            self.steps_per_epoch,
            self._share.gradient_accumulation_steps,
        )
        drawn = [
            np.concatenate(self.passes(part, epoch))[: steps * self.samples_per_step]
            for part in range(self._num_parts)
        ]
        # Share.rows() takes the chunks of a global batch by micro-step, then by rank.
        by_part = np.stack(drawn).reshape(self._num_parts, steps, accumulation, -1)
        return by_part.transpose(1, 2, 0, 3).reshape(-1)


class ShardedOrder(PartedOrder):
    """An order in which every rank draws at random from a part of the data of its own.

    Rank ``r`` of ``n`` has every ``n``-th sample from the ``r``-th on.
    """

    def __init__(self, *, num_samples: int, share: Share, seed: int) -> None:
        count = share.data_parallel_size
        self._parts = [np.arange(num_samples)[rank::count] for rank in range(count)]
        super().__init__(sizes=[len(p) for p in self._parts], share=share, seed=seed)

    def _pass(self, part: int, number: int) -> Indices:
        return self._generator(part, number).permutation(self._parts[part])


class StreamOrder(PartedOrder):
    """An order in which shards are read from front to back, through a shuffle buffer.

    A pass reads the shards of a part in a random order of their own. Two samples are
    read for each that is given out, until the buffer is full: so the first is given
    out at once, and not when the buffer has been filled. The next one is drawn at
    random among ``buffer_size`` samples; of 1, it is the next one read.
    """

    def __init__(
        self,
        *,
        parts: Sequence[Sequence[Indices]],
        buffer_size: int,
        share: Share,
        seed: int,
    ) -> None:
        self._parts = parts
        self._buffer_size = buffer_size
        sizes = [sum(map(len, shards)) for shards in parts]
        super().__init__(sizes=sizes, share=share, seed=seed)

    def reading(self, part: int, epoch: int) -> list[Indices]:
        """Return the samples of a part as an epoch reads them, an array for each pass.

        :meth:`passes` returns them as they are given out.
        """
        first = epoch * self._num_passes
        return [
            self._read(part, number)
            for number in range(first, first + self._num_passes)
        ]

    def num_read(self, given: int, size: int) -> int:
        """Return how many samples of a pass are read when so many are given out."""
        return min(2 * given, given + self._buffer_size - 1, size) if given else 0

    def _read(self, part: int, number: int) -> Indices:
        shards = self._parts[part]
        order = self._generator(part, number).permutation(len(shards))
        return np.concatenate([shards[shard] for shard in order])

    def _pass(self, part: int, number: int) -> Indices:
        read = self._read(part, number).tolist()
        generator = np.random.default_rng(
            [self.seed, self.global_batch_size, part, number, self._buffer_size]
        )
        chances = generator.random(len(read)).tolist()
        held: list[int] = []
        given: list[int] = []

        done = 0
        for chance in chances:
            wanted = self.num_read(len(given) + 1, len(read))
            held += read[done:wanted]
            done = wanted
            # The last takes the place of the one drawn: no list is moved up.
            position = int(chance * len(held))
            held[position], held[-1] = held[-1], held[position]
            given.append(held.pop())

        return np.array(given, dtype=np.int64)
