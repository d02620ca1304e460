"""Runs functions and trials in real ranks, forked from one warm process."""

import json
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.kinds.strategies import STRATEGIES, strategy_of
from scalelab.launch.process_tree import heed_stop_signal
from scalelab.launch.progress import StreamWriter
from scalelab.launch.protocol import RankIdentity
from scalelab.records.attempt import (
    AttemptResult,
    AttemptSpec,
    KnownWorkload,
    NodeShare,
    Placement,
)
from scalelab.training.context import RankContext, process_group
from scalelab.training.engines.paths import engine_path
from scalelab.training.rank import run_rank

DEADLINE_S = 100.0
HERE = str(Path(__file__).parent)

_forkserver = multiprocessing.get_context("forkserver")
_ENGINES = sorted({engine_path(row.name).partition(":")[0] for row in STRATEGIES})
_forkserver.set_forkserver_preload(
    ["gang", "pandas", "pytest", "sklearn.datasets", "torch._dynamo", *_ENGINES]
)


class RankFailure(Exception):
    """A rank raised; carries the type's name and the message."""


def run_in_gang(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    directory: Path,
    num_servers: int = 0,
) -> list[Any]:
    """Call ``function(identity, rendezvous, *args)`` in every rank; return by rank.

    The ranks after those of ``world_size`` are servers.
    """
    pipes, processes = [], []
    rendezvous = f"file://{directory / 'rendezvous'}"
    num_processes = world_size + num_servers
    for rank in range(num_processes):
        here, there = _forkserver.Pipe(duplex=False)
        process = _forkserver.Process(
            target=_rank_main,
            args=(there, identity(rank, world_size), rendezvous, function, args),
        )
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    results: dict[int, Any] = {}
    try:
        while len(results) < num_processes:
            open_pipes = [p for r, p in enumerate(pipes) if r not in results]
            ready = wait(open_pipes, timeout=DEADLINE_S)
            assert ready, "the ranks hang"
            for pipe in ready:
                outcome, value = pipe.recv()
                if outcome == "failed":
                    raise RankFailure(value)
                results[pipes.index(pipe)] = value
    finally:
        for process in processes:
            if len(results) < num_processes:
                process.kill()
            process.join()
    return [results[rank] for rank in range(num_processes)]


def identity(rank: int, world_size: int) -> RankIdentity:
    return RankIdentity(
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        local_world_size=world_size,
        node_rank=0,
        num_nodes=1,
    )


def _rank_main(pipe: Any, who: Any, rendezvous: Any, function: Any, args: Any) -> Any:
    torch.set_num_threads(1)
    try:
        pipe.send(("ended", function(who, rendezvous, *args)))
    except BaseException as error:
        traceback.print_exc()
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
    pipe.close()


def with_context(
    who: Any, rendezvous: Any, directory: Any, function: Any, *args: Any
) -> Any:
    """Call ``function(context, *args)`` inside the process group."""
    device = torch.device("cpu")
    with process_group(who, rendezvous, device, "test"):
        context = RankContext(
            identity=who,
            device=device,
            directory=directory,
            stream=StreamWriter(None),
            progress=lambda step: None,
        )
        return function(context, *args)


def run_in_contexts(
    world_size: int, function: Callable[..., Any], *args: int, directory: Path
) -> list[Any] | None:
    """Call ``function(context, *args)`` in every rank; return by rank."""
    return run_in_gang(
        world_size, with_context, directory, function, *args, directory=directory
    )


def throughput_trial(workload: str, **changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "kind": TrialKind.THROUGHPUT,
        "workload": workload,
        "allocation": Allocation(devices_per_node=(1,)),
        "local_batch_size": 16,
        "measurement": Measurement(warmup_steps=2, steps=20, relative_precision=1e-9),
    }
    return Trial(**(fields | changes))


def attempt(
    directory: Path,
    trial: Trial,
    *,
    code_directory: str | None = None,
    **parameters: Any,
) -> AttemptSpec:
    nodes = enumerate(trial.allocation.devices_per_node)
    shares = tuple(
        NodeShare(node=f"node-{n}", device_ids=tuple(map(str, range(devices))))
        for n, devices in nodes
    )
    number = int(directory.name) if directory.name.isdigit() else 1
    directory.mkdir(parents=True, exist_ok=True)
    return AttemptSpec(
        run="test",
        trial=trial,
        program=WorkloadProgram(
            name=trial.workload, parameters=parameters, code_directory=code_directory
        ),
        known=KnownWorkload.named(trial.workload),
        number=number,
        directory=str(directory),
        placement=Placement(shares=shares),
        device_type="cpu",
    )


def run_attempt(
    spec: AttemptSpec, stop_at_step: int | None = None, *, prunes: bool = False
) -> AttemptResult:
    """Run an attempt; ask it to end once rank 0 has done so many steps."""
    directory = Path(spec.directory)
    results = run_in_gang(
        spec.trial.world_size,
        _run_rank,
        spec,
        stop_at_step,
        prunes,
        directory=directory,
        num_servers=strategy_of(spec.trial.parallelism).num_servers(
            spec.trial.world_size, spec.trial.options
        ),
    )
    assert results[1:] == [None] * (len(results) - 1)
    return AttemptResult.from_json(results[0])


def _run_rank(
    who: Any, rendezvous: Any, spec: Any, stop_at_step: Any, prunes: Any
) -> Any:
    def progress(step: Any) -> Any:
        if who.rank == 0 and stop_at_step is not None and step >= stop_at_step:
            if prunes:
                spec.files.prune.write_text("Enough was seen.")
            else:
                os.kill(os.getpid(), signal.SIGTERM)

    heed_stop_signal()
    result = run_rank(spec, who, rendezvous, progress)
    return result and json.loads(json.dumps(result.to_json()))


def run_trial(
    directory: Path,
    trial: Trial,
    *,
    code_directory: str | None = None,
    **parameters: float | list[int] | str,
) -> dict[str, Any]:
    """Run a trial that completes; return its measurements."""
    spec = attempt(directory, trial, code_directory=code_directory, **parameters)
    result = run_attempt(spec)
    assert result.outcome == "completed", result.reason
    return dict(result.measurements)


def stream(directory: Path, event: str) -> list[dict[str, Any]]:
    """Return the rows of one kind of event."""
    lines = (directory / "stream.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["event"] == event]


def on(trial: Trial, num_devices: int, **changes: Any) -> Trial:
    """Return the trial on another number of devices of one node."""
    allocation = Allocation(devices_per_node=(num_devices,))
    return replace(trial, allocation=allocation, **changes)
