"""Attempts that run small programs as commands."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from promised import skip_or_fail
from watching import core_ids

from scalelab.experiment.program import METRICS_FILE, CommandProgram, MetricsSource
from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.target import Target
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptSpec, NodeShare, Placement

JSONL = MetricsSource(jsonl=METRICS_FILE)
REGEX = MetricsSource(
    regex=(
        r"step (?P<step>\d+)",
        r"samples (?P<samples>\d+)",
        r"loss (?P<loss>\S+)",
        r"at (?P<t>\S+) s",
        r"val_acc (?P<val_acc>\S+)",
    )
)
GLOBAL_BATCH = 8
_NUMBERS = count(1)
# Ranks that their launcher numbers connect to the first of them, and stay connected.
MEET = """
import os, socket, time
from pathlib import Path
def meet():
    rank = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0)))
    others = int(os.environ.get("WORLD_SIZE", 1)) - 1
    port = os.environ.get("MASTER_PORT", "port")
    place = Path(os.environ["SCALELAB_TRIAL_DIR"], port)
    if rank == 0 and others > 0:
        listener = socket.create_server(("127.0.0.1", 0))
        place.with_suffix(".new").write_text(str(listener.getsockname()[1]))
        place.with_suffix(".new").rename(place)
        return [listener.accept()[0] for _ in range(others)]
    while others > 0 and not place.exists():
        time.sleep(0.01)
    if rank:
        return socket.create_connection(("127.0.0.1", int(place.read_text())))
"""
# Steps of a millisecond or two, as JSON lines, until told to end.
TICKER = (
    MEET
    + """
import json, sys
held = meet()
with open(os.environ["SCALELAB_METRICS"], "a", buffering=1) as metrics:
    for step in range(1, 100_000):
        time.sleep(0.001)
        line = {"step": step, "samples": step * 8, "loss": 1 / step}
        metrics.write(json.dumps(line) + "\\n")
"""
)


def write_program(directory: Path, text: str, name: str = "program.py") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    return file


def command_spec(
    directory: Path,
    text: str | None = None,
    *,
    command: str = "python program.py",
    ranks: int | tuple[int, ...] = 1,
    launcher: str = "torchrun",
    launcher_options: Mapping[str, Scalar] | None = None,
    env: Mapping[str, str] | None = None,
    metrics: MetricsSource = JSONL,
    code: Path | None = None,
    kind: TrialKind = TrialKind.THROUGHPUT,
    warmup_steps: int = 2,
    steps: int = 20,
    max_samples: int | None = None,
    target: str | None = None,
    timeout_s: float | None = 60.0,
    accumulation: int = 1,
    device_type: str = "cpu",
    stall_floor_s: float | None = None,
    start_up_timeout_s: float | None = None,
    threads_per_rank: int = 1,
    global_batch_size: int = GLOBAL_BATCH,
    **options: Scalar,
) -> AttemptSpec:
    """Return an attempt of a program; its global batch is 8 unless told otherwise."""
    shares = (ranks,) if isinstance(ranks, int) else ranks
    code = code or directory / "code"
    code.mkdir(parents=True, exist_ok=True)
    if text is not None:
        write_program(code, text)
    ids = iter(core_ids(sum(shares)))
    return AttemptSpec(
        run="test",
        trial=Trial(
            kind=kind,
            workload="command",
            allocation=Allocation(devices_per_node=shares),
            local_batch_size=global_batch_size // (sum(shares) * accumulation),
            gradient_accumulation_steps=accumulation,
            learning_rate=LearningRate(
                base=0.1, at_batch=None, rule="none", warmup_samples=0, value=0.1
            ),
            seed=7,
            options=options,
            measurement=Measurement(
                warmup_steps=warmup_steps,
                steps=steps,
                relative_precision=1e-9,
                max_samples=max_samples,
                target=Target.parse(target) if target else None,
                timeout_s=timeout_s,
                stall_timeout_s=stall_floor_s,
                start_up_timeout_s=start_up_timeout_s,
            ),
        ),
        program=CommandProgram(
            command=command,
            launcher=launcher,
            env=env or {},
            metrics=metrics,
            code_directory=str(code),
            launcher_options=launcher_options or {},
        ),
        number=next(_NUMBERS),
        directory=str(directory / "attempt"),
        placement=Placement(
            shares=tuple(
                NodeShare(
                    node=f"node-{index}",
                    device_ids=tuple(next(ids) for _ in range(devices)),
                )
                for index, devices in enumerate(shares)
            )
        ),
        device_type=device_type,
        threads_per_rank=threads_per_rank,
    )


def rendezvous_of(first: NodeAgent, other: NodeAgent, attempt_id: str) -> str:
    """Open what a command on two nodes needs, as the driver has them do."""
    store = first.open_rendezvous(attempt_id)
    return f"{store} {other.open_rendezvous(attempt_id, serves_store=False)}"


def needs_open_mpi() -> None:
    if shutil.which("mpirun") is None:
        skip_or_fail("mpirun of Open MPI is not installed (apt install openmpi-bin)")
