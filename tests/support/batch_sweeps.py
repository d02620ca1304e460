"""Sweeps of a user of a batch system, and what they leave."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import psutil
from waiting import DEADLINE_S, wait_until


class BatchSystem(Protocol):
    """A batch system that tests use, and its user."""

    home: Path

    def start_scalelab(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``scalelab`` as the user; all it says comes through one pipe."""
        ...

    def jobs(self) -> dict[str, str]:
        """Return the state of every job that is queued or runs, by its id."""
        ...

    def user_processes(self) -> list[psutil.Process]:
        """Return what the user runs."""
        ...

    def cancel(self, job: str) -> None:
        """Cancel a job."""
        ...


class BatchSweep:
    """An experiment, a site profile and a run of the user's.

    Parameters
    ----------
    system
        Where it runs.
    name
        Of the experiment.
    experiment
        Settings.
    site
        Settings of the site.
    """

    def __init__(
        self,
        system: BatchSystem,
        name: str,
        experiment: Mapping[str, Any],
        site: Mapping[str, Any],
    ) -> None:
        self.system, self.name = system, name
        self.directory = system.home / "runs" / name
        self._process: subprocess.Popen[str] | None = None
        # JSON is YAML.
        text = json.dumps({"name": name, **experiment})
        (system.home / f"{name}.yaml").write_text(text)
        (system.home / f"{name}-site.yaml").write_text(json.dumps(site))

    @property
    def arguments(self) -> list[str]:
        return [f"{self.name}.yaml", "--yes", "--site", f"./{self.name}-site.yaml"]

    def run(self, timeout: float = 180) -> tuple[int, str]:
        """Sweep; return the status and all that was said."""
        self.start()
        return self.end(timeout)

    def start(self) -> None:
        """Begin to sweep."""
        self._process = self.system.start_scalelab("sweep", *self.arguments)

    def end(self, timeout: float = 180) -> tuple[int, str]:
        """Wait for what was begun; return the status and all that was said."""
        assert self._process is not None
        said, _ = self._process.communicate(timeout=timeout)
        return self._process.returncode, said

    def kill_driver(self) -> None:
        """End the driver as a power cut would."""
        (driver,) = [
            process
            for process in self.system.user_processes()
            if "sweep" in command_line(process)
        ]
        driver.kill()
        self.end()

    def status(self) -> str:
        """Return what ``scalelab status`` says; nothing before the run has begun."""
        if not (self.directory / "run.json").exists():
            return ""
        process = self.system.start_scalelab("status", f"runs/{self.name}")
        said, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, said
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

        wait_until(have_ended, f"{number} attempts ended", said=self.job_logs)

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
        wait_until(lambda: not self.system.jobs(), "no job is left", 30)
        wait_until(lambda: not self.system.user_processes(), "no process is left", 30)
        assert not list((self.directory / "cluster").glob("*.pem"))


def processes_of(system: BatchSystem, module: str) -> list[psutil.Process]:
    """Return the user's processes whose command line names a module."""
    return [
        process
        for process in system.user_processes()
        if any(module in word for word in command_line(process))
    ]


def command_line(process: psutil.Process) -> list[str]:
    """Return the words of a process's command line; none if it has gone."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
