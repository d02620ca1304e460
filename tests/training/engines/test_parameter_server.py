import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gang import HERE, attempt, on, run_attempt, run_trial, stream, throughput_trial
from waiting import DEADLINE_S

from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.target import MetricMode, Target
from scalelab.launch.gang_agent import NodeAgent
from scalelab.launch.ranks.requests import rank_requests
from scalelab.launch.timing import Limits
from scalelab.training import checkpoint

RATE = LearningRate(base=0.05, at_batch=64, rule="none", warmup_samples=0, value=0.05)
VAL_ACC = Target(metric="val_acc", mode=MetricMode.MAX, value=0.95)
ENTRY = "scalelab.training.rank:run_rank"


def served_trial(rule: str = "dynsgd", **changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "kind": TrialKind.END_TO_END,
        "learning_rate": RATE,
        "local_batch_size": 32,
        "parallelism": "parameter_server",
        "options": {"rule": rule, "communication_window": 2},
        "measurement": Measurement(max_samples=2000, evaluate_every_samples=500),
    }
    return on(throughput_trial("digits_mlp"), 2, **(fields | changes))


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.parametrize("rule", ["downpour", "adag", "dynsgd", "elastic"])
def test_digits_reach_the_target(tmp_path: Path, rule: str) -> None:
    # The effective rate of downpour is that of a worker times workers times window.
    value = RATE.value / 4 if rule == "downpour" else RATE.value
    measurement = Measurement(
        max_samples=40_000, evaluate_every_samples=1280, target=VAL_ACC
    )
    trial = served_trial(
        rule, measurement=measurement, learning_rate=replace(RATE, value=value)
    )
    measured = run_trial(tmp_path, trial)
    assert measured["reached_target"]
    assert measured["samples_to_target"] % 64 == 0
    assert "gradient_noise_scale" not in measured
    last = stream(tmp_path, "evaluation")[-1]
    assert 0.5 < last["staleness_mean"] <= 1.5
    assert last["staleness_max"] >= 1


@pytest.mark.slow
def test_one_rank_is_the_plain_module(tmp_path: Path) -> None:
    alone = on(served_trial("downpour"), 1)
    run_trial(tmp_path / "alone", alone)
    run_trial(tmp_path / "ddp", replace(alone, parallelism="ddp", options={}))
    losses = [
        [row["loss"] for row in stream(tmp_path / name, "step")]
        for name in ("alone", "ddp")
    ]
    assert len(losses[0]) == 63
    assert losses[0] == losses[1]


def own_steps(directory: Path) -> list[int]:
    """Return how many steps each worker had taken at the checkpoint."""
    path = directory / "checkpoint" / "checkpoint.pt"
    saved = torch.load(path, weights_only=True)
    return [rank["own"][2] for rank in saved["ranks"]]


@pytest.mark.repetition
@pytest.mark.slow
def test_a_slow_rank_takes_fewer_steps_unless_others_wait(tmp_path: Path) -> None:
    free = served_trial(
        workload="own_workloads:UnevenDigits",
        options={"communication_window": 8},
        measurement=Measurement(max_samples=10**6, evaluate_every_samples=10**6),
    )
    bound = replace(free, options={**free.options, "staleness_bound": 2})
    for name, trial in {"free": free, "bound": bound}.items():
        spec = attempt(tmp_path / name, trial, code_directory=HERE)
        assert run_attempt(spec, stop_at_step=30).outcome is Outcome.PREEMPTED
        steps = stream(tmp_path / name, "step")
        assert sum(own_steps(tmp_path / name)) == 2 * len(steps) >= 60
    fast, slow = own_steps(tmp_path / "free")
    assert fast > 2 * slow
    fast, slow = own_steps(tmp_path / "bound")
    assert abs(fast - slow) <= 3


@pytest.mark.slow
def test_measured_steps_are_whole_windows(tmp_path: Path) -> None:
    trial = served_trial(
        kind=TrialKind.THROUGHPUT,
        options={"communication_window": 8, "num_servers": 2},
        measurement=Measurement(warmup_steps=0, steps=50, relative_precision=1e-9),
    )
    measured = run_trial(tmp_path, trial)
    assert measured["num_steps"] == len(stream(tmp_path, "step")) == 56
    assert measured["num_samples"] == 56 * 64
    assert 0 < measured["exposed_sync_s"] < measured["step_time_s"]
    rate = measured["throughput_samples_per_s"]
    assert rate == pytest.approx(64 / measured["step_time_s"])


@pytest.mark.slow
def test_a_checkpoint_of_the_former_engine_is_not_continued(tmp_path: Path) -> None:
    trial = served_trial(
        workload="own_workloads:HashedDigits",
        measurement=Measurement(max_samples=2000, evaluate_every_samples=1000),
    )
    first = attempt(tmp_path / "001", trial, code_directory=HERE)
    assert run_attempt(first, stop_at_step=10).outcome is Outcome.PREEMPTED
    path = tmp_path / "001" / "checkpoint" / checkpoint.FILE_NAME
    saved = torch.load(path, weights_only=True)
    torch.save({name: saved[name] for name in ("state", "ranks")}, path)

    second = attempt(tmp_path / "002", trial, code_directory=HERE)
    assert run_attempt(second).outcome is Outcome.COMPLETED
    assert stream(tmp_path / "002", "step")[0]["step"] == 1


@pytest.mark.slow
def test_a_pruned_series_ends_at_whole_steps(tmp_path: Path) -> None:
    endless = Measurement(max_samples=10**7, evaluate_every_samples=10**7)
    spec = attempt(tmp_path, served_trial(measurement=endless))
    result = run_attempt(spec, stop_at_step=10, prunes=True)
    step = stream(tmp_path, "step")[-1]["step"]
    assert result.outcome is Outcome.PRUNED
    assert result.measurements["num_samples"] == step * 64
    assert sum(own_steps(tmp_path)) == 2 * step


def test_servers_run_beside_rank_0_without_a_device(tmp_path: Path) -> None:
    trial = replace(
        served_trial(options={"num_servers": 2}),
        allocation=Allocation(devices_per_node=(2, 1)),
    )
    spec = replace(attempt(tmp_path, trial), device_type="cuda")
    nodes = [
        rank_requests(spec, n, entry=ENTRY, rendezvous="tcp://a:1", address="127.0.0.1")
        for n in (0, 1)
    ]
    assert [[each.rank for each in node] for node in nodes] == [[0, 1, 3, 4], [2]]
    server = nodes[0][2]
    assert server.task.identity.is_server  # type: ignore[union-attr]
    assert (server.cores, server.env["CUDA_VISIBLE_DEVICES"]) == ((), "")
    assert server.log is not None
    assert server.log.endswith("rank-3.log")


@pytest.fixture(scope="module")
def agent() -> Iterator[NodeAgent]:
    with NodeAgent("node-0", "cpu", ("sklearn.datasets",), entry=ENTRY) as agent:
        yield agent


def process_that_writes(log: Path) -> int | None:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "fd" / "1").readlink() == log:
                return int(process.name)
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    "rank",
    [pytest.param(1, marks=pytest.mark.repetition), 2],
    ids=["a worker", "a server"],
)
def test_a_process_that_dies_ends_the_trial(
    tmp_path: Path, agent: NodeAgent, rank: int
) -> None:
    forever = Measurement(max_samples=10**9, evaluate_every_samples=10**8)
    spec = attempt(tmp_path / "001", served_trial(measurement=forever))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(agent.run, spec, 0, None)
        deadline_s = time.monotonic() + DEADLINE_S
        while not (spec.files.stream.exists() and stream(tmp_path / "001", "step")):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        pid = process_that_writes(spec.files.log(rank))
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        result = running.result(DEADLINE_S)
    assert result.outcome is Outcome.FAILED
    assert result.reason.startswith(f"rank {rank} was killed by SIGKILL")
    # Long before anything counts as a stall.
    assert time.monotonic() - killed_s < Limits.of(spec).stall_floor_s / 2
