"""A sweep in a process of its own, seen from outside as an operator would see it."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

import scalelab

MARK = "SCALELAB_FAULT_TEST"
NUM_TRIALS = 12
STALL_TIMEOUT_S = 6
LOST_AFTER_S = 15
ONE_NODE = "{device_type: cpu, gpus_per_node: 2}"
TWO_NODES = "{device_type: cpu, nodes: 2, gpus_per_node: 1}"
EXPERIMENT = f"""
name: faults
workload:
  name: emulated
  fixed_time_s: 4.0e-3
  sample_time_s: 2.0e-3
  gradient_bytes: 1000
measure:
  warmup_steps: 1
  steps: 20
  repeats: 3
  relative_precision: 1.0e-6
  stall_timeout: {STALL_TIMEOUT_S}s
  start_up_timeout: {STALL_TIMEOUT_S}s
gpus: [1, 2]
local_batch_size: [8, 10]
scaling: weak
site: SITE
"""

_LOG = re.compile(r"/(?P<trial>\w+)/(?P<attempt>\d+)/rank-(?P<rank>\d+)\.log$")

AttemptKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Rank:
    """A training process of an attempt that runs now."""

    pid: int
    number: int
    attempt: AttemptKey


@dataclass(frozen=True, slots=True)
class Ended:
    """How a sweep ended."""

    status: int
    said: str
    took_s: float


class Sweep:
    """The sweep of one run directory, begun as often as a test likes.

    Everything that belongs to it carries a mark in its environment; what it is and
    what it does is told from ``/proc`` by descent from the driver.
    """

    def __init__(self, home: Path, site: str = ONE_NODE) -> None:
        self.home = home
        self.run = home / "runs" / "faults"
        self.temporary = home / "tmp"
        self.temporary.mkdir(parents=True)
        self.env: dict[str, str] = {}
        self.before_exec: Callable[[], None] | None = None
        self._mark = uuid.uuid4().hex
        self._said = home / "said"
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        (home / "faults.yaml").write_text(EXPERIMENT.replace("SITE", site))

    def another(self) -> Sweep:
        """Return a further driver of the same run, with the same mark."""
        other = copy.copy(self)
        other._said = self._said.with_name(f"said-{uuid.uuid4().hex}")
        return other

    def change(self, old: str, new: str) -> None:
        """Replace a text in the experiment."""
        path = self.home / "faults.yaml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def start(self, *flags: str) -> None:
        # Not measured for coverage: a killed process leaves half a data file.
        env = {name: os.environ[name] for name in os.environ if name[:3] != "COV"}
        env |= {MARK: self._mark, "TMPDIR": str(self.temporary), **self.env}
        command = [sys.executable, "-m", "scalelab", "sweep", "faults.yaml"]
        self._started_s = time.monotonic()
        with self._said.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--yes", *flags],
                cwd=self.home,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=self.before_exec,
            )

    @property
    def driver(self) -> int:
        assert self._process is not None
        return self._process.pid

    def end(self, within_s: float) -> Ended:
        """Wait until the driver has ended by itself."""
        assert self._process is not None
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the sweep does not end within {within_s:.0f} s; it said:\n"
                f"{self.said()}\nand of its processes are left:\n{self.left()}"
            ) from None
        return Ended(status, self.said(), time.monotonic() - self._started_s)

    def said(self) -> str:
        return self._said.read_text()

    # Its processes.

    def left(self) -> list[str]:
        """Return the processes that carry the mark, dead ones left out."""
        entry = f"{MARK}={self._mark}".encode()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if entry in Path(f"/proc/{process.pid}/environ").read_bytes():
                    found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        return found

    def kill_what_is_left(self) -> None:
        for line in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.partition(":")[0]), signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def descendants(self) -> list[int]:
        """Return the processes of the sweep, the driver first."""
        found = [self.driver]
        for pid in found:
            found += _children(pid)
        return found

    def workers(self) -> list[int]:
        """Return the Dask workers: children of the driver that have a child."""
        return [pid for pid in _children(self.driver) if _children(pid)]

    def servers(self) -> list[int]:
        """Return the rank servers: what the workers of the driver have started."""
        return [pid for worker in self.workers() for pid in _children(worker)]

    def ranks(self) -> list[Rank]:
        """Return the ranks that run: children of a rank server that have a log."""
        found = []
        for pid in [pid for server in self.servers() for pid in _children(server)]:
            with contextlib.suppress(OSError):
                log = _LOG.search(os.readlink(f"/proc/{pid}/fd/1"))
                if log is not None:
                    key = (log["trial"], int(log["attempt"]))
                    found.append(Rank(pid, int(log["rank"]), key))
        return found

    # Its records.

    def ledger(self) -> list[dict[str, Any]]:
        """Return the whole lines of the ledger as they are now."""
        try:
            *lines, _ = (self.run / "ledger.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def num_ended(self) -> int:
        return sum(line["event"] == "end" for line in self.ledger())

    def measured(self) -> set[AttemptKey]:
        """Return the attempts whose measurement lies on the disk."""
        return {
            (path.parent.parent.name, int(path.parent.name))
            for path in self.run.glob("trials/*/*/result.json")
            if json.loads(path.read_bytes())["outcome"] == "completed"
        }

    def observations(self) -> pd.DataFrame:
        return scalelab.load(self.run).observations

    def row(self, attempt: AttemptKey) -> dict[str, Any]:
        frame = self.observations()
        is_it = (frame["trial_id"] == attempt[0]) & (frame["attempt"] == attempt[1])
        (row,) = frame[is_it].to_dict("records")
        return {str(name): value for name, value in row.items()}


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path("/proc", str(pid)).glob("task/*/children"):
        with contextlib.suppress(OSError):
            found += map(int, thread.read_text().split())
    return found


@contextlib.contextmanager
def sweep_in(home: Path, site: str = ONE_NODE) -> Iterator[Sweep]:
    """Give a sweep of which nothing runs on afterwards, whatever the test finds."""
    sweep = Sweep(home, site)
    try:
        yield sweep
    finally:
        sweep.kill_what_is_left()
