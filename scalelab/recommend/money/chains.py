"""Chained jobs: a training that a job's time limit ends goes on in the next job."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Jobs one after the other, each from the last checkpoint of the one before.

    Parameters
    ----------
    limit_s
        The longest time of a job.
    start_up_s
        From the start of a job to its first step.
    checkpoint_s
        The time in which a checkpoint is written at the end of each job but the last.
    """

    limit_s: float
    start_up_s: float
    checkpoint_s: float

    @property
    def work_of_job_s(self) -> float:
        """The work of a job that another one follows; none where it is not positive."""
        return self.limit_s - self.start_up_s - self.checkpoint_s

    def num_jobs(self, work_s: np.ndarray) -> np.ndarray:
        """Return how many jobs do some work, given without any start-up."""
        jobs = np.ceil((work_s - self.checkpoint_s) / self.work_of_job_s)
        return np.maximum(jobs, 1.0)

    def time_s(self, work_s: np.ndarray) -> np.ndarray:
        """Return the time of all jobs together; what they wait for is not in it."""
        jobs = self.num_jobs(work_s)
        return work_s + jobs * self.start_up_s + (jobs - 1) * self.checkpoint_s
