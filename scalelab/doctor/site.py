"""Checks of this machine and of a site's profile, which use no device time.

Each part of this machine that a sweep needs is tried.
"""

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module, metadata
from pathlib import Path
from typing import TypeVar

import psutil

from scalelab.cluster.batch.programs import answered
from scalelab.cluster.batch.queue import client_class, survey
from scalelab.cluster.network import listening, own_address
from scalelab.cluster.survey.inventory import Queue, asked_queue, why_no_node_fits
from scalelab.errors import (
    ClusterError,
    LaunchError,
    ScaleLabError,
    SpecError,
    install_command,
)
from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, held_allocation
from scalelab.kinds.trainers import DEFAULT_TRAINER, TRAINERS, Trainer
from scalelab.launch.neighbours import Neighbours
from scalelab.plan.first_check import is_taken
from scalelab.records.attempt import (
    AttemptSpec,
    KnownWorkload,
    NodeShare,
    Placement,
    existing_place,
)
from scalelab.site.batch_site import BatchSite
from scalelab.site.job_script import (
    driver_job_script,
    node_job_script,
    refuse_log_directory,
)
from scalelab.site.profile import RemoteSite, Site, num_cores, num_visible_gpus

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


AnyKind = TypeVar("AnyKind", bound=Site)

MAX_SKEW_S = 2.0
_SILENT = "batch system"
# Local file systems, which other machines do not see.
_LOCAL_FILE_SYSTEMS = ("tmpfs", "ext3", "ext4", "xfs", "btrfs", "overlay", "zfs")


def examine_site(site: Site, runs: Path) -> Iterator[Finding]:
    """Run all checks of a site that need no job."""
    if not isinstance(site, RemoteSite):
        raise SpecError(
            f"site {site.name!r} has scheduler={site.scheduler}, and there is no batch "
            "system to check. Without --site, doctor checks this machine.",
            code="site_without_batch_system",
        )
    return _examined(site, runs)


def _examined(site: RemoteSite, runs: Path) -> Iterator[Finding]:
    programs = site.batch_system.programs if site.batch_system else ()
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        yield broken(
            "programs",
            f"{', '.join(missing)} cannot be run here. Work on a login node of "
            f"{site.name}, or change scheduler.",
        )
    elif programs:
        yield ok("programs", f"{', '.join(programs)} found")

    yield from _folder(site, runs)
    yield from of_each_group(site, _interpreter)
    yield _network(site)

    if not isinstance(site, BatchSite):
        try:
            _, name, num_nodes = held_allocation(os.environ)
        except ClusterError as error:
            yield broken("allocation", str(error))
        else:
            yield ok("allocation", f"{name} holds {num_nodes} nodes")
    elif not missing:
        yield from _batch_system(site, runs)


def _batch_system(site: BatchSite, runs: Path) -> Iterator[Finding]:
    queues = list(of_each_group(site, _queue))
    yield from queues
    if any(finding.subject.endswith(_SILENT) for finding in queues):
        return  # all further questions to it would fail in the same way
    with suppress(SpecError):  # the run's directory is reported above
        yield from of_each_group(site, lambda group: _submissions(group, runs))
        yield from _driver_submission(site, runs)
    yield _submission_from_nodes(site)


def of_each_group(
    site: AnyKind, check: Callable[[AnyKind], Iterator[Finding]]
) -> Iterator[Finding]:
    """Check each node group; a finding about several groups is reported once."""
    found: defaultdict[Finding, list[str | None]] = defaultdict(list)
    for name, group in site.groups.items():
        for finding in check(group):
            if finding.health is Health.OK:
                yield of_groups([name], finding)
            else:
                found[finding].append(name)
    yield from (of_groups(names, finding) for finding, names in found.items())


def of_groups(names: Sequence[str | None], finding: Finding) -> Finding:
    """Return a finding that names the node groups it is about; None: of all nodes."""
    named = ", ".join(filter(None, names))
    return replace(finding, subject=f"{named}: {finding.subject}") if named else finding


def _folder(site: Site, runs: Path) -> Iterator[Finding]:
    try:
        refuse_log_directory(site, runs.absolute(), option="--runs")
    except SpecError as error:
        yield broken("run directory", str(error))
        return

    finding = run_directory_finding(runs)
    yield finding
    if finding.health is Health.BROKEN:
        return

    here = existing_place(runs.absolute())
    if (kind := _file_system(here)) in _LOCAL_FILE_SYSTEMS:
        yield note(
            "shared folder",
            f"{here} lies on {kind} of this machine: nodes see it only if it is "
            "exported to them. --job tries it; else sweep into a shared folder: --run.",
        )
    else:
        yield ok("shared folder", f"{here} lies on {kind or 'a file system'}")

    # The time of a file is that of the clock of the file system's server.
    with tempfile.NamedTemporaryFile(dir=here) as file:
        before_s = time.time()
        file.write(b"scalelab")
        file.flush()
        os.fsync(file.fileno())
        written_s = os.stat(file.name).st_mtime

    yield clock_finding("file clock", written_s - before_s)


def _file_system(path: Path) -> str:
    types = {
        partition.mountpoint: partition.fstype
        for partition in psutil.disk_partitions(all=True)
    }
    places = [path.resolve(), *path.resolve().parents]
    return next((types[str(place)] for place in places if str(place) in types), "")


def clock_finding(subject: str, skew_s: float) -> Finding:
    """Judge how far another clock is ahead of this machine's."""
    if abs(skew_s) > MAX_SKEW_S:
        return note(
            subject,
            f"{skew_s:+.1f} s against this machine. Times of day in records will "
            "disagree by that; durations do not. Let both keep time by NTP.",
        )
    return ok(subject, f"agrees with this machine's within {MAX_SKEW_S:g} s")


def _interpreter(site: Site) -> Iterator[Finding]:
    python = site.python or sys.executable
    if shutil.which(python):
        yield ok("interpreter", f"{python}; nodes must see it too: --job tries it")
    elif site.prologue or not os.path.isabs(python):
        yield note("interpreter", f"{python} is not here; --job tries it on a node")
    else:
        yield broken(
            "interpreter",
            f"{python} is not there or cannot be run. Correct python in the site.",
        )


def _network(site: RemoteSite) -> Finding:
    try:
        address = own_address(site.driver_interface)
        with listening(address) as server:
            socket.create_connection(server.getsockname()[:2], 5).close()
    except ClusterError as error:
        return broken("network", str(error))
    except OSError as error:
        return broken(
            "network",
            f"no connection to a port of {address}: {error.strerror or error}. Set "
            "driver_interface in the site to another one.",
        )
    return ok("network", f"nodes will reach this machine at {address}")


def _queue(site: BatchSite) -> Iterator[Finding]:
    try:
        inventory = survey(site.batch_system)
    except ClusterError as error:
        yield broken(_SILENT, str(error))
        return

    noun = inventory.noun
    if (queue := asked_queue(site, inventory)) is None:
        wanted = f"{noun} {site.queue_name!r}" if site.queue_name else f"default {noun}"
        names = ", ".join(queue.name for queue in inventory.queues)
        yield broken(
            noun, f"{inventory.cluster_name} has no {wanted}. Set {noun}: {names}."
        )
    else:
        yield from _capacity(site, queue, noun)
        limit_s = queue.max_walltime_s
        if limit_s is not None and site.walltime and site.walltime > limit_s:
            yield broken(
                "walltime",
                f"{site.walltime:g} s is more than the {limit_s:g} s of {noun} "
                f"{queue.name}. Shorten walltime.",
            )

    if site.account in inventory.accounts:
        yield ok("account", f"{site.account} may be charged")
    elif site.account is not None and inventory.accounts:
        yield broken(
            "account",
            f"{site.account} is none of yours. Set account: "
            f"{', '.join(inventory.accounts)}.",
        )


def _capacity(site: BatchSite, queue: Queue, noun: str) -> Iterator[Finding]:
    if not queue.is_open:
        yield broken(noun, f"{queue.name} takes or starts no jobs now. Set another.")
        return
    if why := why_no_node_fits(site, queue):
        yield broken(noun, why)
        return

    routes = f" routes to {', '.join(queue.routes_to)}" if queue.routes_to else ""
    groups = "; ".join(map(str, queue.groups)) or "nodes not said"
    yield ok(noun, f"{queue.name}{routes}: {groups}")

    if queue.groups and queue.num_away == queue.num_nodes:
        yield note(
            noun,
            f"none of {counted(queue.num_nodes, 'node')} of {queue.name} takes jobs "
            "now; jobs wait until one does",
        )


def _submissions(site: BatchSite, runs: Path) -> Iterator[Finding]:
    test = site.batch_system.test_submission
    if not test:
        yield note(
            "submission",
            f"{site.scheduler} does not say beforehand; --job submits a job",
        )
        return

    largest = 1 if site.provision == "pool" else site.nodes or 2
    for count in sorted({*(2**n for n in range(largest.bit_length())), largest}):
        script = node_job_script(
            site,
            count,
            job_name="scalelab-doctor",
            directory=runs.absolute() / "doctor",
        )
        yield _tested(f"job of {counted(count, 'node')}", test, script)


def _driver_submission(site: BatchSite, runs: Path) -> Iterator[Finding]:
    test = site.batch_system.test_submission
    if test and site.driver_job is not None:
        directory = runs.absolute() / "doctor"
        script = driver_job_script(
            site,
            ["sweep"],
            job_name="scalelab-doctor",
            directory=directory,
            log=directory / "driver.log",
            job_log=directory / "job.log",
        )
        yield _tested("job of the driver", test, script)


def _tested(subject: str, test: Sequence[str], script: str) -> Finding:
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        answer = answered([*test, file.name])
    words = " ".join(answer.errors.split())
    words = words.replace(f"{test[0]}: ", "").replace("error: ", "")
    if answer.status:
        return broken(subject, f"{words}. Correct the site.")
    return ok(subject, words.removeprefix("Job ").partition(" ")[2] or "taken")


def _submission_from_nodes(site: BatchSite) -> Finding:
    subject = "submit from nodes"
    may = client_class(site.batch_system).nodes_may_submit(site.queue_name)
    if may is None:
        return note(subject, "not said here; --job tries it. Only driver_job needs it")
    if may:
        hint = "" if site.driver_job else "; sweep --detach can run in a driver_job"
        return ok(subject, f"allowed by the configuration{hint}")
    if site.driver_job is None:
        return note(subject, "forbidden: sweep --detach runs as a process here")

    return broken(
        subject,
        "the configuration forbids it: remove driver_job from the site, and sweep "
        "--detach runs as a process here",
    )
