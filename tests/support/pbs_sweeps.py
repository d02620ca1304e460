"""Sweeps of a user of PBS, or of what stands in for it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from batch_sweeps import BatchSweep
from fake_programs import FakePrograms
from own_jobs import MARK, own_jobs
from promised import skip_or_fail

SITE: dict[str, Any] = {
    "scheduler": "pbs",
    "device_type": "cpu",
    "request_gpus": True,
    "gpus_per_node": 2,
    "walltime": "10min",
    "poll_interval": "1s",
}
SMALL: dict[str, Any] = {
    "workload": {"name": "emulated", "sample_time_s": 0.002},
    "measure": {
        "long_trial": "none",
        "kind": "throughput",
        "warmup_steps": 1,
        "steps": 10,
        "repeats": 3,
    },
    "local_batch_size": [4],
}
_STATES = {"R": "RUNNING", "E": "RUNNING", "Q": "PENDING"}


class Pbs:
    """PBS's programs, and a user with a shared home.

    Parameters
    ----------
    home
        The user's.
    is_real
        False: what stands in for PBS is used.
    """

    def __init__(self, home: Path, is_real: bool) -> None:
        self.home = home
        self.env = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}
        self.is_real = is_real
        self._started: list[subprocess.Popen[str]] = []
        if not is_real:
            self._stand_in()
        program = Path(__file__).with_name("own_jobs.py")
        self._last_will = subprocess.Popen(
            [sys.executable, str(program), str(home)],
            env=self.env,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.env[MARK] = str(home)

    def _stand_in(self) -> None:
        state, programs = self.home / "pbs", FakePrograms(self.home / "bin")
        state.mkdir()
        script = Path(__file__).with_name("standin_pbs.py")
        for name in ("qsub", "qstat", "qdel", "pbsdsh", "admin"):
            # Without site packages, which it does not need, it starts sooner.
            programs.does(name, f'exec {sys.executable} -S {script} {name} "$@"')
        self.env["PATH"] = f"{programs.folder}:{self.env['PATH']}"
        self.env["STANDIN_PBS"] = str(state)
        if self.run("admin", "can-name-hosts") != "n1\n":
            skip_or_fail("what stands in for PBS may not give hosts their names")

    def start_scalelab(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``scalelab`` as the user; all it says comes through one pipe."""
        process = subprocess.Popen(
            [sys.executable, "-m", "scalelab", *arguments],
            cwd=self.home,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def scalelab(self, *arguments: str, timeout: float = 120) -> tuple[int, str]:
        """Run ``scalelab`` as the user; return its status and all it says."""
        process = self.start_scalelab(*arguments)
        said, _ = process.communicate(timeout=timeout)
        return process.returncode, said

    def run(self, program: str, *words: str) -> str:
        """Run a program of PBS; return what it prints."""
        return self._run(program, *words).stdout

    def complaints(self, program: str, *words: str) -> str:
        """Run a program of PBS; return what it prints on standard error."""
        return self._run(program, *words).stderr

    def _run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *words],
            cwd=self.home,
            env=self.env,
            capture_output=True,
            text=True,
        )

    def admin(self, *words: str) -> str:
        """Do what only the administrator of PBS may, or skip the test."""
        if self.is_real:
            pytest.skip("takes the administrator of this PBS")
        return self.run("admin", *words).strip()

    def jobs(self) -> dict[str, str]:
        """Return the state of the test's jobs that are queued or run, by their ids."""
        return {
            job_id: _STATES.get(job["job_state"], job["job_state"])
            for job_id, job in own_jobs(str(self.home), self.env).items()
        }

    def cancel(self, job: str) -> None:
        """Cancel a job."""
        self.run("qdel", job)

    def user_processes(self) -> list[psutil.Process]:
        """Return what has the mark, and what belongs to a session that has.

        ``qsub`` goes on in the background for a minute, for those that come after it.
        """
        sessions: dict[psutil.Process, int] = {}
        mine: set[psutil.Process] = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if process.status() == psutil.STATUS_ZOMBIE or process.name() == "qsub":
                    continue
                sessions[process] = os.getsid(process.pid)
                if process.environ().get(MARK) == str(self.home):
                    mine.add(process)
        begun = {sessions[process] for process in mine} - {os.getsid(0)}
        return [each for each in sessions if each in mine or sessions[each] in begun]

    def kill_what_is_left(self) -> None:
        """End whatever a test has started and not ended, its jobs first."""
        self._last_will.communicate()
        while left := self.user_processes():
            for process in left:
                process.kill()
            psutil.wait_procs(left, 10)
        for process in self._started:
            with process:
                pass  # closes its pipe


class Swept(BatchSweep):
    """A sweep of the user's.

    Parameters
    ----------
    pbs
        Where it runs.
    name
        Of the experiment.
    experiment
        Settings.
    site
        Settings of the site, on top of what all have.
    """

    def __init__(
        self, pbs: Pbs, name: str, experiment: dict[str, Any], **site: Any
    ) -> None:
        local = {} if pbs.is_real else {"interface": "lo", "driver_interface": "lo"}
        # A job has the login's environment, and none of the test's.
        marked = {"prologue": [f"export {MARK}={shlex.quote(str(pbs.home))}"]}
        super().__init__(pbs, name, experiment, {**SITE, **marked, **local, **site})
