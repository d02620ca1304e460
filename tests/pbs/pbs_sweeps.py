"""Sweeps of a user of PBS, or of what stands in for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
from fake_programs import FakePrograms

from scalelab.records.store import RunStore

SITE = {
    "scheduler": "pbs",
    "device_type": "cpu",
    "request_gpus": True,
    "gpus_per_node": 2,
    "walltime": "10min",
    "poll_interval": "1s",
}
EXPERIMENT = {
    "workload": {"name": "emulated", "sample_time_s": 0.002},
    "measure": {"kind": "throughput", "warmup_steps": 1, "steps": 10, "repeats": 3},
    "local_batch_size": [4],
}


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

    def _stand_in(self) -> None:
        state, programs = self.home / "pbs", FakePrograms(self.home / "bin")
        state.mkdir()
        (state / "number").write_text("0")
        script = Path(__file__).with_name("standin_pbs.py")
        for name in ("qsub", "qstat", "qdel", "pbsdsh"):
            programs.does(name, f'exec {sys.executable} {script} {name} "$@"')
        self.env["PATH"] = f"{programs.folder}:{self.env['PATH']}"
        self.env["STANDIN_PBS"] = str(state)

    def write(self, name: str, experiment: dict, **site: object) -> list[str]:
        """Write an experiment and a profile; return the words that name them."""
        local = {} if self.is_real else {"interface": "lo", "driver_interface": "lo"}
        text = json.dumps({"name": name, **EXPERIMENT, **experiment})
        (self.home / f"{name}.yaml").write_text(text)
        profile = json.dumps({**SITE, **local, **site})
        (self.home / f"{name}-site.yaml").write_text(profile)
        return [f"{name}.yaml", "--site", f"./{name}-site.yaml"]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``scalelab``; what it says comes through a pipe."""
        process = subprocess.Popen(
            [sys.executable, "-m", "scalelab", *words],
            cwd=self.home,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, program: str, *words: str) -> str:
        """Run a program of PBS; return what it prints."""
        done = subprocess.run(
            [program, *words],
            cwd=self.home,
            env=self.env,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def known(self) -> list[str]:
        """Return the ids of the jobs that are queued or run."""
        return list(json.loads(self.run("qstat", "-f", "-F", "json")).get("Jobs", {}))

    def num_ended(self, name: str) -> int:
        """Return how many attempts of a run have a result."""
        return len(list((self.home / "runs" / name).glob("trials/*/*/result.json")))

    def observations(self, name: str) -> pd.DataFrame:
        return RunStore.open(self.home / "runs" / name).observations()

    def kill_what_is_left(self) -> None:
        """End whatever a test has started and not ended, jobs of the stand-in too."""
        while left := self._left():
            for process in left:
                process.kill()
            psutil.wait_procs(left, 10)
        for process in self._started:
            with process:
                pass  # closes its pipe

    def _left(self) -> list[psutil.Process]:
        """Return what has this home, and what belongs to a session that has."""
        sessions: dict[psutil.Process, int] = {}
        homes: dict[psutil.Process, str] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if process.status() != psutil.STATUS_ZOMBIE:
                    sessions[process] = os.getsid(process.pid)
                    homes[process] = process.environ().get("HOME", "")
        mine = {process for process, home in homes.items() if home == str(self.home)}
        begun = {sessions[process] for process in mine} - {os.getsid(0)}
        return [each for each in sessions if each in mine or sessions[each] in begun]
