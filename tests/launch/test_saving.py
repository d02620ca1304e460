"""Attempts that are asked to save what they have before they end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_specs import command_spec
from waiting import DEADLINE_S, wait_until

from scalelab.experiment.program import StopRequest, WorkloadProgram
from scalelab.experiment.trial import Measurement, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.trainers import TRAINERS
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptResult, AttemptSpec

pytestmark = pytest.mark.slow

# Ends when it has saved; its child must not be disturbed.
SAVER = """
import os, signal, subprocess, sys, time

def save(number, frame):
    with open(os.environ["OUT"], "w") as file:
        file.write(f"{signal.Signals(number).name} {child.poll()}")
    sys.exit()

signal.signal(signal.SIGUSR1, save)
child = subprocess.Popen(["sleep", "600"])
with open(os.environ["OUT"] + ".pid", "w") as file:
    file.write(str(os.getpid()))
with open(os.environ["SCALELAB_METRICS"], "a", buffering=1) as metrics:
    for step in range(1, 100_000):
        time.sleep(0.01)
        metrics.write(f'{{"step": {step}, "samples": {8 * step}}}\\n')
"""
LONG = {"sample_time_s": 1e-3, "min_samples": 10**7, "critical_batch_size": 64}
STOP = StopRequest(signal="SIGUSR1", grace_s=60.0)


@pytest.fixture(scope="module")
def trainer() -> Iterator[NodeAgent]:
    """A node that runs workloads."""
    with NodeAgent("node-0", "cpu", (), entry=TRAINERS["torch"].entry) as agent:
        yield agent


@pytest.fixture
def train(
    trainer: NodeAgent, make_spec: Callable[..., AttemptSpec]
) -> Iterator[Callable[[], tuple[AttemptSpec, Future[AttemptResult]]]]:
    """Start a long training on two ranks, and wait until it steps."""
    with ThreadPoolExecutor() as threads:

        def start() -> tuple[AttemptSpec, Future[AttemptResult]]:
            spec = make_spec("emulate", workload="emulated")
            measurement = Measurement(max_samples=10**9, evaluate_every_samples=200)
            trial = replace(
                spec.trial,
                kind=TrialKind.CONVERGENCE,
                measurement=measurement,
                options={},
            )
            spec = replace(
                spec,
                trial=trial,
                program=WorkloadProgram(
                    name="emulated",
                    parameters=LONG,
                ),
            )
            attempt = threads.submit(trainer.run, spec, 0, None)
            wait_until(lambda: said(spec.files.stream) or attempt.done(), "it steps")
            assert not attempt.done(), attempt.result()
            return spec, attempt

        yield start


def said(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def command(directory: Path, text: str = SAVER, **fields: Any) -> AttemptSpec:
    """Return an attempt of a command that saves at SIGUSR1."""
    env = {"OUT": str(directory / "saved")}
    spec = command_spec(directory, text, steps=10**6, env=env)
    return replace(spec, program=replace(spec.program, stop=STOP), **fields)


def test_a_cancelled_training_saves_a_checkpoint(
    trainer: NodeAgent, train: Callable[[], Any]
) -> None:
    spec, attempt = train()
    trainer.cancel(spec.attempt_id, "the sweep was stopped", saves=True)
    result = attempt.result(DEADLINE_S)
    assert (result.outcome, result.reason) == (
        Outcome.CANCELLED,
        "the sweep was stopped",
    )
    assert spec.files.checkpoint.is_dir()


def test_what_cannot_save_any_more_is_ended_at_once(
    trainer: NodeAgent, train: Callable[[], Any]
) -> None:
    spec, attempt = train()
    trainer.cancel(spec.attempt_id, "another node has failed")
    assert attempt.result(DEADLINE_S).outcome is Outcome.CANCELLED
    assert not spec.files.checkpoint.exists()


def test_a_node_that_is_closed_lets_its_attempts_save(
    make_spec: Callable[..., AttemptSpec], tmp_path: Path
) -> None:
    spec = command(tmp_path)
    with ThreadPoolExecutor() as threads:
        with NodeAgent("node-1", "cpu", (), entry=None) as agent:
            attempt = threads.submit(agent.run, spec, 0, None)
            wait_until(lambda: said(spec.files.stream), "it steps")
        assert attempt.result(DEADLINE_S).reason == "node node-1 was closed"
    assert said(tmp_path / "saved") == "SIGUSR1 None"


def test_a_command_gets_its_signal(
    agent: NodeAgent, start: Callable[..., Any], tmp_path: Path
) -> None:
    spec = command(tmp_path)
    attempt = start(spec)
    wait_until(lambda: said(spec.files.stream), "it steps")
    agent.cancel(spec.attempt_id, "enough", saves=True)
    assert attempt.result(DEADLINE_S).reason == "enough"
    assert said(tmp_path / "saved") == "SIGUSR1 None"


def test_a_pruned_command_saves_and_keeps_what_it_measured(
    agent: NodeAgent, start: Callable[..., Any], tmp_path: Path
) -> None:
    spec = command(tmp_path)
    attempt = start(spec)
    wait_until(lambda: said(spec.files.stream).count("\n") > 20, "it steps")
    agent.cancel(spec.attempt_id, "others are better", Outcome.PRUNED, saves=True)
    result = attempt.result(DEADLINE_S)
    assert (result.outcome, result.reason) == (Outcome.PRUNED, "others are better")
    assert result.measurements["step_time_s"] > 0
    assert said(tmp_path / "saved") == "SIGUSR1 None"


def test_a_command_saves_before_its_time_is_up(
    agent: NodeAgent, start: Callable[..., Any], tmp_path: Path
) -> None:
    spec = command(tmp_path, stop_after_s=STOP.grace_s + 15)
    result = start(spec).result(DEADLINE_S)
    assert result.outcome is Outcome.PREEMPTED
    assert result.reason == "Asked to end: the walltime of its nodes is nearly up."
    assert said(tmp_path / "saved") == "SIGUSR1 None"


def test_what_others_send_is_not_passed_on(
    agent: NodeAgent, start: Callable[..., Any], tmp_path: Path
) -> None:
    """A batch system signals all processes of a job, the program among them."""
    spec = command(tmp_path)
    attempt = start(spec)
    wait_until(lambda: said(spec.files.stream), "it steps")
    program = psutil.Process(int(said(tmp_path / "saved.pid")))
    subprocess.run(["kill", "-USR1", str(program.ppid())], check=True)
    time.sleep(0.5)
    assert program.is_running()
    assert not said(tmp_path / "saved")
    agent.cancel(spec.attempt_id, "enough")
    assert attempt.result(DEADLINE_S).outcome is Outcome.CANCELLED


def test_a_command_that_does_not_end_is_ended(
    agent: NodeAgent, start: Callable[..., Any], tmp_path: Path
) -> None:
    spec = command(tmp_path, SAVER.replace("sys.exit()", "pass"))
    stop = StopRequest(signal="SIGUSR1", grace_s=0.5)
    spec = replace(spec, program=replace(spec.program, stop=stop))
    attempt = start(spec)
    wait_until(lambda: said(spec.files.stream), "it steps")
    began_s = time.monotonic()
    agent.cancel(spec.attempt_id, "enough", saves=True)
    assert attempt.result(DEADLINE_S).outcome is Outcome.CANCELLED
    assert time.monotonic() - began_s >= stop.grace_s
    assert said(tmp_path / "saved") == "SIGUSR1 None"
