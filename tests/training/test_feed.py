from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from own_workloads import Squares
from torch.utils.data import TensorDataset

from scalelab.training.feed import (
    fingerprint,
    held_out_batches,
    to_device,
    training_batches,
)
from scalelab.training.order import SampleOrder, Share

CPU = torch.device("cpu")


def batches(
    dataset: Squares | TensorDataset,
    rank: int,
    world_size: int,
    accumulation: int,
    first_step: int = 0,
    **options: Callable[..., Any] | int,
) -> Iterator[Any]:
    order = SampleOrder(num_samples=len(dataset), global_batch_size=12, seed=5)
    share = Share(
        rank=rank,
        data_parallel_size=world_size,
        local_batch_size=12 // world_size // accumulation,
        gradient_accumulation_steps=accumulation,
    )
    return training_batches(
        dataset, order, share, first_step=first_step, device=CPU, **options
    )


def numbers(num_samples: int = 50) -> TensorDataset:
    return TensorDataset(torch.arange(num_samples))


def test_global_batches_do_not_depend_on_how_they_are_shared_out() -> None:
    alone = [batch for (batch,) in islice(batches(numbers(), 0, 1, 1), 6)]
    first, second = (
        [batch for (batch,) in islice(batches(numbers(), rank, 2, 2), 12)]
        for rank in (0, 1)
    )
    for step in range(6):
        parts = [first[2 * step], second[2 * step]]
        parts += [first[2 * step + 1], second[2 * step + 1]]
        assert torch.equal(torch.cat(parts), alone[step])


def test_feed_goes_on_at_any_step() -> None:
    alone = [batch for (batch,) in islice(batches(numbers(), 0, 1, 1), 8)]
    (late,) = next(batches(numbers(), 0, 1, 1, first_step=7))
    assert torch.equal(late, alone[7])


def test_map_style_data_come_in_the_same_order() -> None:
    indexed = islice(batches(numbers(40), 1, 2, 2), 8)
    loaded = islice(batches(Squares(), 1, 2, 2), 8)
    for (expected,), batch in zip(indexed, loaded, strict=True):
        assert torch.allclose(batch["x"][:, 0] * 40, expected.float())


def test_augmentation_of_a_sample_does_not_depend_on_its_rank() -> None:
    def augment(
        batch: tuple[torch.Tensor], uniform: torch.Tensor
    ) -> tuple[torch.Tensor]:
        return (batch[0] + uniform[:, 0],)

    def values(rank: int, world_size: int) -> torch.Tensor:
        (batch,) = next(
            batches(numbers(), rank, world_size, 1, augment=augment, num_random=2)
        )
        return batch

    assert torch.equal(torch.cat([values(0, 2), values(1, 2)]), values(0, 1))


def test_held_out_samples_are_each_on_one_rank() -> None:
    seen = []
    for rank in range(4):
        for (batch,), size in held_out_batches(
            numbers(11), rank=rank, world_size=4, batch_size=2, device=CPU
        ):
            assert len(batch) == size <= 2
            seen += batch.tolist()
    assert sorted(seen) == list(range(11))


def test_rank_without_held_out_samples_gets_no_batch() -> None:
    parts = held_out_batches(
        Squares(), rank=40, world_size=41, batch_size=8, device=CPU
    )
    assert list(parts) == []


def test_structures_of_tensors_move_whole() -> None:
    batch = {"x": torch.ones(2), "rest": [torch.zeros(1), "label"]}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"].is_meta
    assert moved["rest"][0].is_meta
    assert moved["rest"][1] == "label"


def test_fingerprint_changes_with_the_data() -> None:
    values = torch.arange(5000)
    changed = values.clone()
    changed[0] = 1
    prints = {
        fingerprint(TensorDataset(tensor))
        for tensor in (values, changed, values.int(), values[:-1])
    }
    assert len(prints) == 4
    assert fingerprint(TensorDataset(values)) == fingerprint(TensorDataset(values))
    assert fingerprint(Squares()) == fingerprint(Squares())


def test_split_is_the_same_as_numpys() -> None:
    parts = [
        [
            batch
            for (batch,), _ in held_out_batches(
                numbers(7), rank=rank, world_size=3, batch_size=9, device=CPU
            )
        ]
        for rank in range(3)
    ]
    expected = np.array_split(np.arange(7), 3)
    assert [part[0].tolist() for part in parts] == [part.tolist() for part in expected]
