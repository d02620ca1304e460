"""Sweeps of the user of a throw-away SLURM."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from throwaway_slurm import USER_ID, ThrowawaySlurm
from waiting import wait_until

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
DIGITS = {
    "workload": {"name": "digits_mlp", "hidden_sizes": [32]},
    "measure": {"kind": "throughput", "warmup_steps": 2, "steps": 20, "repeats": 1},
    "local_batch_size": [16],
}
EMULATED = {
    "workload": {"name": "emulated"},
    "measure": {"kind": "throughput", "warmup_steps": 1, "steps": 4, "repeats": 1},
    "local_batch_size": [16],
}


class Swept:
    """An experiment, a site profile and a run of the user's.

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
        self.slurm, self.name = slurm, name
        self.directory = slurm.home / "runs" / name
        self._process: subprocess.Popen[str] | None = None
        # JSON is YAML.
        text = json.dumps({"name": name, **experiment})
        (slurm.home / f"{name}.yaml").write_text(text)
        profile = json.dumps({**base, **site})
        (slurm.home / f"{name}-site.yaml").write_text(profile)

    @property
    def arguments(self) -> list[str]:
        return [f"{self.name}.yaml", "--site", f"./{self.name}-site.yaml"]

    def run(self, timeout: float = 120) -> tuple[int, str]:
        """Sweep; return the status and all that was said."""
        return self.slurm.scalelab("sweep", *self.arguments, timeout=timeout)

    def start(self) -> None:
        """Begin to sweep."""
        self._process = subprocess.Popen(
            self.slurm.command(["scalelab", "sweep", *self.arguments]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, timeout: float = 120) -> tuple[int, str]:
        """Wait for what was begun; return the status and all that was said."""
        assert self._process is not None
        said, _ = self._process.communicate(timeout=timeout)
        return self._process.returncode, said

    def kill_driver(self) -> None:
        """End the driver as a power cut would."""
        (driver,) = [
            process
            for process in self.slurm.processes(USER_ID)
            if "sweep" in command_line(process)
        ]
        driver.kill()
        self.end()

    def status(self) -> str:
        """Return what ``scalelab status`` says."""
        code, said = self.slurm.scalelab("status", f"runs/{self.name}")
        assert code == 0, said
        return said

    def num_ended(self) -> int:
        """Return how many attempts have a result."""
        return len(self._results())

    def num_measured(self) -> int:
        """Return how many attempts were completed."""
        results = [json.loads(path.read_bytes()) for path in self._results()]
        return sum(each["outcome"] == "completed" for each in results)

    def _results(self) -> list[Path]:
        return list((self.directory / "trials").glob("*/*/result.json"))

    def wait_for_trials(self, number: int) -> None:
        """Wait until so many attempts have a result."""

        def have_ended() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.end()[1] + self.job_logs()
            return self.num_ended() >= number

        wait_until(have_ended, f"{number} attempts ended")

    def observations(self) -> pd.DataFrame:
        """Return one row per attempt."""
        from scalelab.records.store import RunStore

        return RunStore.open(self.directory).observations()

    def job_logs(self) -> str:
        """Return what the jobs said."""
        logs = sorted((self.directory / "cluster").glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in logs)

    def check_complete(self, num_trials: int) -> pd.DataFrame:
        """Check that every trial was measured once and that nothing is left."""
        rows = self.observations()
        done = rows[rows["outcome"] == "completed"]
        assert len(done) == done["trial_id"].nunique() == num_trials, rows
        self.check_nothing_is_left()
        return done

    def check_nothing_is_left(self) -> None:
        """Check that no job, no process and no credential is left."""
        wait_until(lambda: not self.slurm.jobs(), "no job is left", 30)
        wait_until(lambda: not self.slurm.processes(USER_ID), "no process is left", 30)
        assert not list((self.directory / "cluster").glob("*.pem"))


def processes_of(slurm: ThrowawaySlurm, module: str) -> list[psutil.Process]:
    """Return the user's processes whose command line names a module."""
    return [
        process
        for process in slurm.processes(USER_ID)
        if any(module in word for word in command_line(process))
    ]


def command_line(process: psutil.Process) -> list[str]:
    """Return the words of a process's command line; none if it has gone."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
