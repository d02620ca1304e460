import numpy as np
import pytest

from scalelab.training.order import SampleOrder, Share


def order(**changes: int) -> SampleOrder:
    fields = {"num_samples": 103, "global_batch_size": 20, "seed": 1}
    return SampleOrder(**(fields | changes))


def test_every_epoch_is_a_permutation_without_its_partial_batch() -> None:
    batches = [order().batch(step) for step in range(10)]
    for epoch in (batches[:5], batches[5:]):
        seen = np.concatenate(epoch)
        assert len(np.unique(seen)) == len(seen) == 100
    assert not np.array_equal(batches[0], batches[5])


def test_order_depends_on_seed_and_global_batch_only() -> None:
    assert np.array_equal(order().batch(7), order().batch(7))
    assert not np.array_equal(order().batch(7), order(seed=2).batch(7))
    first_five = np.concatenate([order().batch(step) for step in range(2)])
    assert not np.array_equal(first_five, order(global_batch_size=40).batch(0))


def test_batch_larger_than_the_data_repeats_samples_evenly() -> None:
    batch = order(num_samples=8, global_batch_size=20).batch(3)
    assert len(batch) == 20
    assert set(np.bincount(batch)) <= {2, 3}


@pytest.mark.parametrize(
    ("world_size", "accumulation"), [(1, 12), (2, 6), (3, 4), (12, 1)]
)
def test_ranks_and_accumulation_steps_share_out_the_same_chunks(
    world_size: int, accumulation: int
) -> None:
    chunks = []
    for micro_step in range(accumulation):
        for rank in range(world_size):
            share = Share(
                rank=rank,
                data_parallel_size=world_size,
                local_batch_size=5,
                gradient_accumulation_steps=accumulation,
            )
            assert share.global_batch_size == 60
            chunks.append(share.rows(micro_step))
    assert chunks == [slice(5 * n, 5 * n + 5) for n in range(12)]


def test_random_numbers_belong_to_samples_of_a_step() -> None:
    uniform = order().uniform(3, 2)
    assert uniform.shape == (20, 2)
    assert np.array_equal(uniform, order().uniform(3, 2))
    assert not np.array_equal(uniform, order().uniform(4, 2))
    assert 0 <= uniform.min() <= uniform.max() < 1
