"""Sweeps of the user of a throw-away SLURM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batch_sweeps import BatchSweep
from throwaway_slurm import ThrowawaySlurm

SITE = {
    "scheduler": "slurm",
    "device_type": "cpu",
    "request_gpus": True,
    "gpu_request": "gres",
    "gpus_per_node": 2,
    "cores_per_node": 2,
    "memory_per_node": "1GB",
    "walltime": "10min",
    "partition": "gpu",
    "poll_interval": "1s",
}
EMULATED = {
    "workload": {"name": "emulated"},
    "measure": {
        "long_trial": "none",
        "kind": "throughput",
        "warmup_steps": 1,
        "steps": 4,
        "repeats": 1,
    },
    "local_batch_size": [16],
}


def one_second_trials(repeats: int, *batches: int) -> dict[str, Any]:
    """Return emulated trials of a second and more, on one device each."""
    return {
        "workload": {"name": "emulated", "sample_time_s": 0.004},
        "measure": {
            "kind": "throughput",
            "warmup_steps": 1,
            "steps": 30,
            "repeats": repeats,
            "canary_every": 0,
        },
        "gpus": [1],
        "local_batch_size": list(batches),
    }


class Swept(BatchSweep):
    """A sweep of the user's.

    Parameters
    ----------
    slurm
        Where it runs.
    name
        Of the experiment.
    experiment
        Settings.
    base, site
        Settings of the site, the latter on top of the former.
    """

    def __init__(
        self,
        slurm: ThrowawaySlurm,
        name: str,
        experiment: Mapping[str, Any],
        base: Mapping[str, Any] = SITE,
        **site: Any,
    ) -> None:
        self.slurm = slurm
        super().__init__(slurm, name, experiment, {**base, **site})
