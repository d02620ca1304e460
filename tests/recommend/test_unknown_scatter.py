"""Runs whose step time was read so rarely that nothing tells how it scatters."""

import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend

JOB = Job(epochs=10, samples_per_epoch=100_000)


@pytest.mark.slow
def test_a_single_reading_is_not_taken_as_exact() -> None:
    rows = sweep((1, 2, 4), local_batches=(16,), repeats=1)
    for row in recommend(rows, JOB).rows:
        if row.basis == "measured":
            assert row.step_time_s.hi > 1.01 * row.step_time_s.lo
