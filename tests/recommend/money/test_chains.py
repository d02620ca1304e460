"""Chained jobs against a simulation that lives through each job second by second."""

import numpy as np
import pytest

from scalelab.recommend.chained import Chain


def lived(work_s: int, limit_s: int, start_up_s: int, checkpoint_s: int) -> list[int]:
    """Return the seconds of each job: it works until it must begin its checkpoint."""
    jobs, left = list[int](), work_s
    while left > 0:
        job_s = start_up_s
        while left > 0 and job_s < limit_s:
            has_room_for_all = job_s + left <= limit_s
            if not has_room_for_all and job_s >= limit_s - checkpoint_s:
                job_s += checkpoint_s
                break
            job_s, left = job_s + 1, left - 1
        jobs.append(job_s)
    return jobs


@pytest.mark.parametrize("seed", range(40))
def test_they_are_those_of_a_simulation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    start_up_s, checkpoint_s = (int(rng.integers(0, most)) for most in (60, 40))
    limit_s = start_up_s + checkpoint_s + int(rng.integers(1, 400))
    chain = Chain(limit_s=limit_s, start_up_s=start_up_s, checkpoint_s=checkpoint_s)
    for work_s in rng.integers(1, 4000, size=20):
        jobs = lived(int(work_s), limit_s, start_up_s, checkpoint_s)
        work = np.array([float(work_s)])
        assert chain.num_jobs(work)[0] == len(jobs)
        assert chain.time_s(work)[0] == pytest.approx(sum(jobs))
        assert max(jobs) <= limit_s


def test_work_that_just_fits_takes_one_job_and_no_checkpoint() -> None:
    chain = Chain(limit_s=100.0, start_up_s=10.0, checkpoint_s=20.0)
    work = np.array([90.0, 90.1, 160.0, 160.1])
    assert chain.num_jobs(work).tolist() == [1, 2, 2, 3]
    assert chain.time_s(work) == pytest.approx([100.0, 130.1, 200.0, 230.1])
