import doctest

import pandas as pd
import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.laws.rows import configurations
from scalelab.recommend.question import batches
from scalelab.recommend.question.batches import AskedBatch, BatchRule

NOTHING = AskedBatch()
JOB = Job(epochs=1, samples_per_epoch=1_000_000)
Row = tuple[int, int, int, int]


def measured(*rows: Row) -> pd.DataFrame:
    names = ["world_size", "num_nodes", "local_batch_size"]
    frame = pd.DataFrame(rows, columns=[*names, "gradient_accumulation_steps"])
    return configurations(frame)


STRONG = measured((1, 1, 32, 4), (2, 1, 32, 2), (4, 1, 16, 2), (8, 2, 16, 1))
FREE = measured(*((n, 1, local, 1) for n in (1, 2, 4) for local in (16, 32)))
WEAK = measured(*((n, 1, 32, 1) for n in (1, 2, 4)))


def rule(frame: pd.DataFrame, asked: AskedBatch = NOTHING, job: Job = JOB) -> BatchRule:
    return BatchRule.of(frame, asked, job)


def test_one_measured_batch_stays() -> None:
    found = rule(STRONG)
    assert (found.smallest, found.largest) == (128, 128)
    for size in (1, 2, 4, 8, 16, 64, 128):
        pairs = found.splits(size, (16, 32))
        assert pairs
        for local, passes in pairs:
            assert local * passes * size == 128
            assert local <= 32
    assert found.splits(3, (16, 32)) == []
    assert found.splits(256, (16, 32)) == []


def test_odd_batches_are_split_by_a_divisor() -> None:
    assert rule(STRONG, AskedBatch(global_batch_size=90)).splits(2, (8,)) == [(5, 9)]
    large = rule(STRONG, AskedBatch(global_batch_size=32768))
    assert large.splits(1, (2, 4)) == [(2, 16384), (4, 8192)]


def test_several_measured_batches_are_a_range_that_accumulation_may_fill() -> None:
    found = rule(FREE)
    assert (found.smallest, found.largest) == (16, 128)
    for size in (1, 2, 3, 4, 8, 16):
        pairs = found.splits(size, (16, 32))
        assert pairs
        assert all(16 <= local * passes * size <= 128 for local, passes in pairs)
        assert all(local <= 32 for local, _ in pairs)
    assert (32, 4) in found.splits(1, (16, 32))
    assert (4, 1) in found.splits(32, (16, 32))  # too many for a measured local batch
    assert (14, 1) in found.splits(9, (16, 32))  # 128 / 9 = 14.2
    assert (10, 1) in found.splits(11, (16, 32))  # 128 / 11 = 11.6, which is not round
    assert found.splits(256, (16, 32)) == []


def test_a_range_may_be_widened_and_is_never_wider_than_an_epoch() -> None:
    assert rule(FREE, AskedBatch(largest=512)).largest == 512
    assert rule(FREE, AskedBatch(largest=8)).smallest == 8
    short = Job(epochs=90, samples_per_epoch=100)
    assert rule(FREE, job=short).largest == 100
    assert rule(FREE, job=short).why_largest == "one epoch"
    tiny = rule(FREE, job=Job(epochs=90, samples_per_epoch=10))
    assert not tiny.is_named
    assert tiny.splits(4, (16, 32)) == []
    assert tiny.splits(1, (16, 32)) == [(10, 1)]
    assert rule(FREE, AskedBatch(largest=512), short).largest == 100


def test_the_batch_of_the_job_is_the_one_unless_another_is_asked_for() -> None:
    job = Job(epochs=1, samples_per_epoch=1_000_000, global_batch_size=64)
    assert rule(FREE, job=job).totals == (64,)
    assert rule(FREE, AskedBatch(global_batch_size=32), job).totals == (32,)
    assert rule(FREE, AskedBatch(largest=96), job).totals == (64,)
    with refused("batch_of_job_too_large", "max_batch=32"):
        rule(FREE, AskedBatch(largest=32), job)


def test_a_local_batch_may_be_asked_for() -> None:
    alone = rule(FREE, AskedBatch(local_batch_size=24))
    assert alone.splits(4, (16, 32)) == [(24, 1)]
    assert alone.splits(1, (16, 32)) == [(24, 1), (24, 5)]
    both = rule(FREE, AskedBatch(global_batch_size=96, local_batch_size=24))
    assert both.splits(2, (16, 32)) == [(24, 2)]
    assert both.splits(3, (16, 32)) == []


def test_weak_scaling_keeps_its_local_batch_and_knows_its_range() -> None:
    found = rule(WEAK)
    assert found.keeps_local
    assert found.splits(64, (32,)) == [(32, 1)]
    assert found.allows(pd.Series([32, 128, 256]).to_numpy()).tolist() == [
        *(True, True, False)
    ]


def test_one_local_batch_in_several_passes_is_no_weak_scaling() -> None:
    found = rule(measured(*((n, 1, 2, passes) for n in (8, 16) for passes in (4, 8))))
    assert not found.keeps_local
    assert (2, 4) in found.splits(32, (2,))
    assert (2, 2) in found.splits(64, (2,))


def test_a_job_in_steps_needs_one_batch() -> None:
    steps = Job(steps=1000)
    message = (
        "The job is 1,000 steps, and global batches from 16 to 128 were measured: .* "
        "Name one with batch,"
    )
    with pytest.raises(SpecError, match=message):
        rule(FREE, job=steps)
    assert rule(STRONG, job=steps).totals == (128,)
    with refused("only_batch_too_large", "128"):
        rule(STRONG, AskedBatch(largest=64), steps)
    assert rule(FREE, AskedBatch(global_batch_size=64), steps).totals == (64,)


def test_measured_convergence_sets_the_range() -> None:
    found = BatchRule.of(FREE, NOTHING, None, converged=(32, 64, 1024))
    assert (found.smallest, found.largest) == (32, 1024)
    assert {32, 64, 128, 256, 512, 1024} <= set(found.totals)
    for local, passes in found.splits(2, (16, 32)):
        assert 32 <= local * passes * 2 <= 1024


def test_local_batch_norm_keeps_the_local_batch_in_its_measured_range() -> None:
    found = BatchRule.of(FREE, NOTHING, JOB, normalizes_locally=True)
    assert min(local for local, _ in found.splits(8, (16, 32))) == 16
    assert found.splits(16, (16, 32)) == []


def test_a_batch_and_a_range_of_them_are_refused() -> None:
    with refused("batch_said_twice"):
        AskedBatch(global_batch_size=8, largest=16)


def test_the_examples_hold() -> None:
    assert doctest.testmod(batches).failed == 0
