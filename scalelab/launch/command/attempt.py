"""Any program as a workload: its command line, its environment, its processes.

A program finds what ``torchrun`` would have set, so a script written for it runs
unchanged. As under ``torchrun`` the store at ``MASTER_ADDR:MASTER_PORT`` is served
before the first rank starts (``TORCHELASTIC_USE_AGENT_STORE``), on a port that was
bound, not guessed: nobody can take it in between.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from scalelab.errors import SpecError
from scalelab.experiment.program import CommandProgram
from scalelab.inputs.placeholders import fill_placeholders
from scalelab.launch.protocol import CommandTask, ProcessRequest
from scalelab.launch.ranks.requests import cores_of
from scalelab.launch.rendezvous import network_environment, tcp_rendezvous
from scalelab.records.attempt import AttemptSpec

LOOPBACK = "127.0.0.1"


def command_of(spec: AttemptSpec) -> CommandProgram:
    """Return the command an attempt runs; it must run one."""
    assert isinstance(spec.program, CommandProgram)
    return spec.program


def output_directory(spec: AttemptSpec) -> Path:
    """Return what ``{trial_dir}`` stands for: a directory of this attempt alone.

    It lies below the attempt's own, so that no file of the program can be taken for one
    of ScaleLab's.
    """
    return Path(spec.directory) / "output"


def metrics_file(spec: AttemptSpec) -> Path | None:
    """Return the JSON-lines file the program reports to; None where output is read."""
    program = command_of(spec)
    if program.metrics.jsonl is None:
        return None
    path = fill_placeholders(program.metrics.jsonl, placeholder_values(spec, 0))
    return Path(program.code_directory, path)


def placeholder_values(spec: AttemptSpec, node_rank: int) -> dict[str, object]:
    """Return the value of every placeholder on a node, by name."""
    trial = spec.trial
    local_world_size = len(spec.placement.shares[node_rank].device_ids)
    values: dict[str, object] = {
        "local_batch_size": trial.local_batch_size,
        "global_batch_size": trial.global_batch_size,
        "batch_size_per_node": trial.local_batch_size * local_world_size,
        "gradient_accumulation_steps": trial.gradient_accumulation_steps,
        "world_size": spec.placement.world_size,
        "num_nodes": len(spec.placement.shares),
        "gpus_per_node": local_world_size,
        "parallelism": trial.parallelism,
        "precision": trial.precision,
        "seed": trial.seed,
        "repeat": trial.repeat,
        "trial_id": trial.trial_id,
        "trial_dir": output_directory(spec),
        **trial.options,
    }
    if rate := trial.learning_rate:
        values["learning_rate"] = rate.value
        values["base_learning_rate"] = rate.base
        values["warmup_samples"] = rate.warmup_samples
    return values


def free_rendezvous() -> str:
    """Return a loopback address whose port is free at this moment."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        return tcp_rendezvous(LOOPBACK, listener.getsockname()[1])


def command_requests(
    spec: AttemptSpec, node_rank: int, *, rendezvous: str, address: str
) -> tuple[ProcessRequest, ...]:
    """Return the processes a node starts for a command: one per rank, or one in all.

    Parameters
    ----------
    spec
        The attempt; its program is a command.
    node_rank
        Which share of its placement the node runs.
    rendezvous
        Where the ranks meet, ``tcp://address:port``.
    address
        The node's address.

    Raises
    ------
    SpecError
        If the command is no command line, its program is not there, or one process is
        to run on several nodes.
    """
    devices = spec.placement.shares[node_rank].device_ids
    shared = _node_environment(spec, node_rank, rendezvous, address)
    if command_of(spec).launcher == "none":
        if len(spec.placement.shares) > 1:
            raise SpecError(
                f"launcher=none starts one process per trial, but this trial has "
                f"{len(spec.placement.shares)} nodes. Use launcher: torchrun, or keep "
                "the trial on one node."
            )
        # What a torchrun inside the command uses instead of its one fixed port.
        env = {**shared, "PET_MASTER_PORT": shared["MASTER_PORT"]}
        return (_request(spec, node_rank, 0, devices, env),)
    first_rank = spec.placement.first_rank(node_rank)
    requests = []
    for local_rank, device in enumerate(devices):
        rank = first_rank + local_rank
        env = {**shared, **_rank_environment(spec, node_rank, rank, local_rank)}
        requests.append(_request(spec, node_rank, rank, (device,), env))
    return tuple(requests)


def _request(
    spec: AttemptSpec,
    node_rank: int,
    rank: int,
    devices: tuple[str, ...],
    env: Mapping[str, str],
) -> ProcessRequest:
    program = command_of(spec)
    values = placeholder_values(spec, node_rank)
    env = {
        **env,
        "SCALELAB_METRICS": str(metrics_file(spec) or os.devnull)
        if rank == 0
        else os.devnull,
        **{
            name: fill_placeholders(value, values)
            for name, value in program.env.items()
        },
    }
    argv = tuple(fill_placeholders(word, values) for word in _words(program.command))
    _check_program(argv[0], env["PATH"], program.code_directory)
    return ProcessRequest(
        rank=rank,
        task=CommandTask(argv=argv),
        cores=tuple(core for device in devices for core in cores_of(spec, device)),
        threads=spec.threads_per_rank,
        env=env,
        log=str(spec.files.log(rank)),
        directory=program.code_directory,
    )


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SpecError(
            f"command={command[:200]!r} is no command line: {error}. No shell reads "
            "it: quote words that hold spaces, and escape single quotes."
        ) from error
    if not words:
        raise SpecError("command is empty. Write the program and its arguments.")
    return words


def _check_program(name: str, search_path: str, directory: str) -> None:
    """Refuse a program that cannot be executed, as execvp would look for it."""
    path = os.path.join(directory, name) if os.sep in name else name
    if shutil.which(path, path=search_path) is None:
        raise SpecError(
            f"command: {name!r} is no program that can be executed in {directory} or "
            f"on PATH ({search_path}). No shell reads the command: write, for example, "
            "python train.py, or make the file executable."
        )


def _node_environment(
    spec: AttemptSpec, node_rank: int, rendezvous: str, address: str
) -> dict[str, str]:
    """Return the variables that all processes on a node share."""
    devices = spec.placement.shares[node_rank].device_ids
    meeting = urlsplit(rendezvous)
    threads = str(spec.threads_per_rank)
    inherited = os.environ.get("PATH", os.defpath)
    known = placeholder_values(spec, node_rank)
    return {
        # python and torchrun are those of this environment.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), inherited)),
        # What is printed is read as it comes, not in blocks of a few kilobytes.
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(devices) if spec.device_type == "cuda" else "",
        **network_environment(rendezvous, address),
        "MASTER_ADDR": str(meeting.hostname),
        "MASTER_PORT": str(meeting.port),
        **{f"SCALELAB_{name.upper()}": str(value) for name, value in known.items()},
    }


def _rank_environment(
    spec: AttemptSpec, node_rank: int, rank: int, local_rank: int
) -> dict[str, str]:
    """Return what ``torchrun`` sets for one rank."""
    world_size = str(spec.placement.world_size)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": str(len(spec.placement.shares[node_rank].device_ids)),
        "GROUP_RANK": str(node_rank),
        "NODE_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(len(spec.placement.shares)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": world_size,
        "TORCHELASTIC_RUN_ID": spec.attempt_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
