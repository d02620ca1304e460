"""Sweeps in processes of their own, seen from outside."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from measured_runs import EMULATED

from scalelab.records.store import RunStore

PATIENCE_S = 100
LONG = EMULATED.replace("steps: 5,", "steps: 60,")

Sweep = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


def attempts(run: str = "runs/small") -> list[str]:
    return sorted(
        f"{path.parent.name}-{path.name}" for path in Path(run).glob("trials/*/*")
    )


def rows(run: str = "runs/small") -> list[dict[str, object]]:
    return [dict(row) for row in RunStore.open(Path(run)).rows()]


def wait_for_a_step(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Wait until a trial steps; return every process of the sweep."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(Path("runs/small").glob("trials/*/*/stream.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [
        psutil.Process(process.pid),
        *psutil.Process(process.pid).children(recursive=True),
    ]


def assert_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := [p for p in processes if _lives(p)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def interrupt(process: subprocess.Popen[str], number: int = signal.SIGINT) -> None:
    """Signal the whole process group, as a terminal does."""
    os.killpg(process.pid, number)
