"""Tables, measured elsewhere, in which several devices compute the same samples."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
import pytest

from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.session import import_table

JOB = {"samples": 1_000_000}
Answer = Callable[..., Recommendation]


@pytest.fixture
def answer(tmp_path: Path) -> Answer:
    """Answer from a table as it was imported."""

    def ask(rows: Iterable[dict[str, object]], **asked: object) -> Recommendation:
        table = tmp_path / "table.csv"
        pd.DataFrame(rows).to_csv(table, index=False)
        return import_table(table, tmp_path / "run").recommend(job=JOB, **asked)

    return ask


def pipelined(
    stages: Callable[[int], int], sizes: Iterable[int], **columns: object
) -> list[dict[str, object]]:
    """Return rows of pipelines; a device computes its share of a replica's samples."""
    return [
        {
            "gpus": size,
            "nodes": -(-size // 8),
            "local_batch_size": local,
            "data_parallel_size": size // stages(size),
            "global_batch_size": local * (size // stages(size)),
            "parallelism": "pipeline",
            "step_time_s": round(0.01 + 0.01 * local / stages(size), 6) * noise,
            **columns,
        }
        for size in sizes
        for local in (32, 64)
        for noise in (0.996, 1.0, 1.004)
    ]


@pytest.mark.slow
def test_throughput_is_that_of_the_samples_that_were_measured(answer: Answer) -> None:
    found = answer(pipelined(lambda size: 4, (4, 8, 16)))

    measured = [row for row in found.rows if row.basis == "measured"]
    assert [row.world_size for row in measured] == [4, 8, 16]
    for row in measured:
        batch = row.batch
        assert batch.data_parallel_size == row.world_size // 4
        assert batch.global_batch_size == 64 * batch.data_parallel_size
        expected = batch.global_batch_size / 0.17
        assert row.throughput_samples_per_s.value == pytest.approx(expected, rel=0.02)
        assert row.time_s.value == pytest.approx(1e6 / expected, rel=0.02)


def test_what_was_not_measured_keeps_the_devices_per_replica(answer: Answer) -> None:
    found = answer(pipelined(lambda size: 4, (4, 8, 16, 32)), gpus=[6, 24, 64])

    sizes = {row.world_size: row.batch.data_parallel_size for row in found.rows}
    assert sizes == {4: 1, 8: 2, 16: 4, 24: 6, 32: 8, 64: 16}
    assert (
        "Not considered: 6 devices. As measured, 4 devices each compute the same "
        "samples, and that does not divide them."
    ) in found.notes


@pytest.mark.slow
def test_without_one_share_only_measured_allocations_are_answered(
    answer: Answer,
) -> None:
    found = answer(pipelined(lambda size: size, (2, 4, 8)), gpus=[16])

    assert [row.world_size for row in found.rows] == [2, 4, 8]
    for row in found.rows:
        step_time_s = 0.01 + 0.01 * 64 / row.world_size
        assert row.batch.global_batch_size == 64
        expected = 64 / step_time_s
        assert row.throughput_samples_per_s.value == pytest.approx(expected, rel=0.03)
    assert (
        "Not considered: allocations that were not measured. How many of their ranks "
        "would see different samples cannot be told, since it was 1 of 2, 1 of 4, 1 of "
        "8. Measure an allocation to have it considered."
    ) in found.notes


@pytest.mark.slow
def test_plain_rows_are_answered_as_before(answer: Answer) -> None:
    found = answer(pipelined(lambda size: 1, (1, 2, 4), parallelism="horovod"))

    for row in found.rows:
        assert row.batch.data_parallel_size == row.world_size
