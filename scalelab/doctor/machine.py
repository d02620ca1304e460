"""Checks of this machine: each part that a sweep needs is tried."""

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module, metadata
from pathlib import Path

from scalelab.cluster.batch.programs import answered
from scalelab.errors import LaunchError, ScaleLabError, install_command
from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.kinds.trainers import DEFAULT_TRAINER, TRAINERS, Trainer
from scalelab.launch.neighbours import Neighbours
from scalelab.plan.first_check import is_taken
from scalelab.records.attempt import AttemptSpec, KnownWorkload, NodeShare, Placement
from scalelab.records.attempt_io import existing_place
from scalelab.site.profile import num_cores, num_visible_gpus

MIN_FREE_BYTES = 2**30
_LISTENS_S = 0.5  # to what other programs take
_FRAMEWORKS = (
    *("transformers", "accelerate", "lightning", "deepspeed", "jax", "keras"),
    *("tensorflow", "mpi4py", "horovod", "torch_xla"),
)
# Why a framework cannot be had beside the torch that ScaleLab is tested with.
_UNBUILT = {
    "horovod": "Horovod 0.28.1 cannot be built on torch 2.13",
    "torch_xla": "torch_xla stops at torch 2.9",
}
_OPEN_MPI_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


class Health(StrEnum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check: its subject, its result and details in words."""

    subject: str
    health: Health
    text: str


def ok(subject: str, text: str) -> Finding:
    """Return a finding that something works."""
    return Finding(subject=subject, health=Health.OK, text=text)


def note(subject: str, text: str) -> Finding:
    """Return a finding that something may matter."""
    return Finding(subject=subject, health=Health.NOTE, text=text)


def broken(subject: str, text: str) -> Finding:
    """Return a finding that something does not work."""
    return Finding(subject=subject, health=Health.BROKEN, text=text)


def examine(runs: Path) -> Iterator[Finding]:
    """Check what a sweep needs, cheap checks first."""
    yield ok("Python", f"{platform.python_version()}, {sys.executable}")
    gpus, cores = num_visible_gpus(), num_cores()
    on_cores = "" if gpus else "; trials run on cores, one thread per rank"
    yield ok("devices", f"{gpus} GPUs, {cores} cores this process may use{on_cores}")

    yield _neighbours()
    for trainer in TRAINERS:
        if trainer.framework:
            yield _package(trainer.framework, trainer.extra, is_needed=False)

    yield _package("distributed", "run", is_needed=True)
    yield _frameworks()
    yield from _mpi_as_root()
    yield run_directory_finding(runs)
    yield from (
        _self_test(trainer) for trainer in TRAINERS if trainer.self_test is not None
    )
    programs = [system.programs[0] for system in BATCH_SYSTEMS]
    found = ", ".join(filter(shutil.which, programs)) or f"no {' or '.join(programs)}"
    yield note("batch system", f"{found} found")


def _neighbours() -> Finding:
    neighbours = Neighbours(root=os.getpid())
    time.sleep(_LISTENS_S)
    seen = neighbours.columns()
    text = (
        f"other programs take {seen['other_cpu_share']:.0%} of "
        f"{counted(seen['cores_at_hand'], 'core')} (load {seen['load_average']:.1f})"
    )
    if is_taken(seen["other_cpu_share"], seen["cores_at_hand"]):
        return note("neighbours", f"{text}: times measured now are too long")
    return ok("neighbours", text)


def _package(name: str, extra: str, *, is_needed: bool) -> Finding:
    try:
        import_module(name)
    except ImportError as error:
        install = install_command(extra)
        if is_needed or not isinstance(error, ModuleNotFoundError):
            return broken(name, f"{error}. Sweeps need it: {install}")
        return note(
            name,
            f"{error}. Workloads and launcher torchrun need it: {install}; commands "
            "with launcher none, per_node or mpirun are swept without",
        )
    return ok(name, metadata.version(name))


def _frameworks() -> Finding:
    # Those that a command finds which names no interpreter of its own.
    found: dict[str, str] = {}
    for name in _FRAMEWORKS:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    here = ", ".join(f"{name} {version}" for name, version in found.items())
    why_not = [why for name, why in _UNBUILT.items() if name not in found]
    frameworks = [here or "none besides torch in this environment", *why_not]
    return ok("frameworks", "; ".join(frameworks))


def _mpi_as_root() -> Iterator[Finding]:
    is_set = all(os.environ.get(name) == "1" for name in _OPEN_MPI_AS_ROOT)
    if os.geteuid() != 0 or is_set or not shutil.which("mpirun"):
        return

    version = answered(["mpirun", "--version"]).output
    if "Open MPI" in version:
        wanted = ", ".join(f"{name}: 1" for name in _OPEN_MPI_AS_ROOT)
        yield note(
            "mpirun",
            "Open MPI starts nothing as root unless both are set; in experiments "
            f"with launcher: mpirun write env: {{{wanted}}}",
        )


def run_directory_finding(runs: Path) -> Finding:
    """Check whether runs can be written to a folder."""
    place = runs.absolute()
    try:
        place = existing_place(place)
        free = shutil.disk_usage(place).free
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"scalelab")
            os.fsync(file.fileno())
    except OSError as error:
        return broken(
            "run directory",
            f"{place} cannot be written: {error.strerror}. Sweep from elsewhere.",
        )

    find = ok if free >= MIN_FREE_BYTES else note
    text = f"{place} can be written, {free / 2**30:.1f} GiB free"
    return find("run directory", text)


def _self_test(trainer: Trainer) -> Finding:
    subject = "multi-rank trial"
    try:
        return ok(subject, _two_ranks(trainer))
    except ImportError as error:
        say = note if isinstance(error, ModuleNotFoundError) else broken
        return say(subject, f"not tried: {error}")
    except (ScaleLabError, OSError) as error:
        return broken(subject, str(error))


def _two_ranks(trainer: Trainer) -> str:
    from scalelab.launch.gang_agent import NodeAgent

    if trainer.framework:
        import_module(trainer.framework)

    prefix = "" if trainer.name == DEFAULT_TRAINER else f"{trainer.name}/"
    workload = f"{prefix}{trainer.self_test}"
    trial = Trial(
        kind=TrialKind.THROUGHPUT,
        workload=workload,
        allocation=Allocation(devices_per_node=(2,)),
        local_batch_size=1,
        measurement=Measurement(warmup_steps=0, steps=2),
    )

    share = NodeShare(node="doctor", device_ids=("0", "0"))
    with (
        tempfile.TemporaryDirectory() as directory,
        NodeAgent("doctor", "cpu", (), entry=trainer.entry) as agent,
    ):
        spec = AttemptSpec(
            run="doctor",
            trial=trial,
            program=WorkloadProgram(name=workload),
            number=1,
            directory=directory,
            placement=Placement(shares=(share,)),
            device_type="cpu",
            known=KnownWorkload.named(workload),
        )
        result = agent.run(spec, 0, None)

    if result.outcome is not Outcome.COMPLETED:
        raise LaunchError(f"{result.outcome}: {result.reason}")

    start_up_s = result.measurements["start_up_s"]
    return f"2 ranks met, stepped and ended; start-up {start_up_s:.2f} s"
