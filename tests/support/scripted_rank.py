"""A rank that does what its trial's options say, in place of training."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from scalelab.inputs.outcome import Outcome
from scalelab.launch.protocol import RankIdentity
from scalelab.records.attempt import AttemptResult, AttemptSpec


def run_rank(
    spec: AttemptSpec,
    identity: RankIdentity,
    rendezvous: str,
    progress: Callable[[int], None],
) -> AttemptResult | None:
    progress(1)
    options = spec.trial.options
    is_last = identity.rank == identity.world_size - 1
    match options.get("does"):
        case "raise":
            raise ValueError("told to fail")
        case "raise once" if spec.number == 1:
            raise ValueError("told to fail once")
        case "raise on the last rank":
            if is_last:
                raise ValueError("told to fail on the last rank")
            wait(60.0, progress)
        case "run out of memory":
            raise MemoryError("no room")
        case "kill the worker":
            kill_worker()
        case "kill every worker once" if spec.number == 1:
            kill_worker()
        case "kill the worker once" if spec.number == 1:
            if is_last:
                kill_worker()
            wait(60.0, progress)
        case "kill the rank":
            os.kill(os.getpid(), signal.SIGKILL)
        case "get on four times" if spec.number <= 4:
            spec.files.checkpoint.mkdir(exist_ok=True)
            return AttemptResult(outcome=Outcome.PREEMPTED, reason="Time was up.")
        case "get nowhere":
            return AttemptResult(outcome=Outcome.PREEMPTED, reason="Time was up.")
        case "report":
            return report(spec, float(options["seconds"]), progress)
        case "wait":
            announce(spec)
            wait(float(options["seconds"]), progress)
    return completed(spec) if identity.rank == 0 else None


def completed(spec: AttemptSpec) -> AttemptResult:
    """Say that all steps were taken that were asked."""
    num_steps = spec.trial.measurement.steps
    return AttemptResult(
        outcome=Outcome.COMPLETED, measurements={"num_steps": num_steps}
    )


def kill_worker() -> None:
    """Kill the Dask worker: the rank's parent is the server, whose parent it is."""
    worker = psutil.Process(os.getppid()).parent()
    if "multiprocessing" in " ".join(worker.cmdline()):
        worker.kill()
    time.sleep(60.0)


def report(
    spec: AttemptSpec, seconds: float, progress: Callable[[int], None]
) -> AttemptResult:
    """Report a falling loss until the time is up, or the source has seen enough."""
    end = time.monotonic() + seconds
    step = 0
    with spec.files.stream.open("a", buffering=1) as stream:
        while time.monotonic() < end:
            step += 1
            progress(step)
            line = {"event": "step", "step": step, "loss": 1 / step}
            stream.write(json.dumps(line) + "\n")
            if spec.files.prune.exists():
                reason = spec.files.prune.read_text()
                return AttemptResult(outcome=Outcome.PRUNED, reason=reason)
            time.sleep(0.02)
    return completed(spec)


def announce(spec: AttemptSpec) -> None:
    (Path(spec.directory) / f"pid-{os.getpid()}").touch()


def wait(seconds: float, progress: Callable[[int], None]) -> None:
    end = time.monotonic() + seconds
    step = 1
    while time.monotonic() < end:
        step += 1
        progress(step)
        time.sleep(0.02)
