"""Checks of a site's profile that use no device time."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from scalelab.cluster.batch.programs import answered
from scalelab.cluster.batch.queue import client_class, survey
from scalelab.cluster.network import listening, own_address
from scalelab.cluster.survey.inventory import (
    Inventory,
    Queue,
    asked_queue,
    why_no_node_fits,
)
from scalelab.doctor.machine import (
    Finding,
    Health,
    broken,
    note,
    ok,
    run_directory_finding,
)
from scalelab.errors import ClusterError, SpecError
from scalelab.inputs.numerals import counted
from scalelab.kinds.batch_systems import held_allocation
from scalelab.records.attempt_io import existing_place
from scalelab.site.batch_site import BatchSite
from scalelab.site.job_script import (
    driver_job_script,
    node_job_script,
    refuse_log_directory,
)
from scalelab.site.profile import RemoteSite, Site

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
            "system to check. Without --site, doctor checks this machine."
        )
    return _examined(site, runs)


def _examined(site: RemoteSite, runs: Path) -> Iterator[Finding]:
    programs = site.batch_system.programs if site.batch_system else ()
    missing = [name for name in programs if not shutil.which(name)]
    yield from _programs(site, programs, missing)
    yield from _folder(site, runs)
    yield from of_each_group(site, _interpreter)
    yield from _network(site)
    if not isinstance(site, BatchSite):
        yield from _allocation()
    elif not missing:
        yield from _batch_system(site, runs)


def _batch_system(site: BatchSite, runs: Path) -> Iterator[Finding]:
    queues = list(of_each_group(site, _queue))
    yield from queues
    if any(each.subject.endswith(_SILENT) for each in queues):
        return  # all further questions to it would fail in the same way
    with suppress(SpecError):  # the run's directory is reported above
        yield from of_each_group(site, lambda group: _submissions(group, runs))
        yield from _driver_submission(site, runs)
    yield from _submission_from_nodes(site)


def of_each_group(
    site: AnyKind, check: Callable[[AnyKind], Iterator[Finding]]
) -> Iterator[Finding]:
    """Check each node group; a finding about several groups is reported once."""
    found: dict[Finding, list[str | None]] = {}
    for name, group in site.groups.items():
        for finding in check(group):
            if finding.health is Health.OK:
                yield of_groups([name], finding)
            else:
                found.setdefault(finding, []).append(name)
    for finding, names in found.items():
        yield of_groups(names, finding)


def of_groups(names: Sequence[str | None], finding: Finding) -> Finding:
    """Return a finding that names the node groups it is about; None: of all nodes."""
    named = ", ".join(filter(None, names))
    subject = f"{named}: {finding.subject}" if named else finding.subject
    return replace(finding, subject=subject)


def _programs(
    site: Site, programs: Sequence[str], missing: Sequence[str]
) -> Iterator[Finding]:
    if missing:
        yield broken(
            "programs",
            f"{', '.join(missing)} cannot be run here. Work on a login node of "
            f"{site.name}, or change scheduler.",
        )
    elif programs:
        yield ok("programs", f"{', '.join(programs)} found")


def _folder(site: Site, runs: Path) -> Iterator[Finding]:
    place = runs.absolute()
    try:
        refuse_log_directory(site, place, option="--runs")
    except SpecError as error:
        yield broken("run directory", str(error))
        return
    finding = run_directory_finding(runs)
    yield finding
    if finding.health is Health.BROKEN:
        return
    here = existing_place(place)
    kind = _file_system(here)
    if kind in _LOCAL_FILE_SYSTEMS:
        yield note(
            "shared folder",
            f"{here} lies on {kind} of this machine: nodes see it only if it is "
            "exported to them. --job tries it; else sweep into a shared folder: --run.",
        )
    else:
        yield ok("shared folder", f"{here} lies on {kind or 'a file system'}")
    yield _file_clock(here)


def _file_system(path: Path) -> str:
    """Return the type of the file system a path is on; empty where unknown."""
    try:
        mounts = [
            line.split() for line in Path("/proc/mounts").read_text().splitlines()
        ]
    except OSError:
        return ""
    real = path.resolve()
    below = [each for each in mounts if real.is_relative_to(each[1])]
    return max(below, key=lambda each: len(each[1]))[2] if below else ""


def _file_clock(folder: Path) -> Finding:
    """Compare the clock of the file system's server with this machine's."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        before_s = time.time()
        file.write(b"scalelab")
        file.flush()
        os.fsync(file.fileno())
        skew_s = os.stat(file.name).st_mtime - before_s
    return clock_finding("file clock", skew_s)


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
    found = shutil.which(python)
    if found:
        yield ok("interpreter", f"{python}; nodes must see it too: --job tries it")
    elif site.prologue or not os.path.isabs(python):
        yield note("interpreter", f"{python} is not here; --job tries it on a node")
    else:
        yield broken(
            "interpreter",
            f"{python} is not there or cannot be run. Correct python in the site.",
        )


def _network(site: RemoteSite) -> Iterator[Finding]:
    try:
        address = own_address(site.driver_interface)
        with listening(address) as server:
            socket.create_connection(server.getsockname()[:2], 5).close()
    except ClusterError as error:
        yield broken("network", str(error))
    except OSError as error:
        yield broken(
            "network",
            f"no connection to a port of {address}: {error.strerror or error}. Set "
            "driver_interface in the site to another one.",
        )
    else:
        yield ok("network", f"nodes will reach this machine at {address}")


def _allocation() -> Iterator[Finding]:
    try:
        _, name, num_nodes = held_allocation(os.environ)
    except ClusterError as error:
        yield broken("allocation", str(error))
    else:
        yield ok("allocation", f"{name} holds {num_nodes} nodes")


def _queue(site: BatchSite) -> Iterator[Finding]:
    try:
        inventory = survey(site.batch_system)
    except ClusterError as error:
        yield broken(_SILENT, str(error))
        return
    noun, wanted = inventory.noun, site.queue_name
    names = [each.name for each in inventory.queues]
    queue = asked_queue(site, inventory)
    if queue is None:
        named = f"has no {noun} {wanted!r}" if wanted else f"has no default {noun}"
        yield broken(
            noun, f"{inventory.cluster_name} {named}. Set {noun}: {', '.join(names)}."
        )
    else:
        yield from _capacity(site, queue, noun)
        yield from _walltime(site, queue, noun)
    yield from _account(site, inventory)


def _capacity(site: BatchSite, queue: Queue, noun: str) -> Iterator[Finding]:
    if not queue.is_open:
        yield broken(noun, f"{queue.name} takes or starts no jobs now. Set another.")
        return
    if why := why_no_node_fits(site, queue):
        yield broken(noun, why)
        return
    groups = "; ".join(map(str, queue.groups)) or "nodes not said"
    routes = f" routes to {', '.join(queue.routes_to)}" if queue.routes_to else ""
    yield ok(noun, f"{queue.name}{routes}: {groups}")
    if queue.groups and queue.num_away == queue.num_nodes:
        yield note(
            noun,
            f"none of {counted(queue.num_nodes, 'node')} of {queue.name} takes jobs "
            "now; jobs wait until one does",
        )


def _walltime(site: BatchSite, queue: Queue, noun: str) -> Iterator[Finding]:
    limit_s = queue.max_walltime_s
    if limit_s is not None and site.walltime and site.walltime > limit_s:
        yield broken(
            "walltime",
            f"{site.walltime:g} s is more than the {limit_s:g} s of {noun} "
            f"{queue.name}. Shorten walltime.",
        )


def _account(site: BatchSite, inventory: Inventory) -> Iterator[Finding]:
    if site.account is None or not inventory.accounts:
        return
    if site.account in inventory.accounts:
        yield ok("account", f"{site.account} may be charged")
    else:
        yield broken(
            "account",
            f"{site.account} is none of yours. Set account: "
            f"{', '.join(inventory.accounts)}.",
        )


def _node_counts(site: BatchSite) -> list[int]:
    if site.provision == "pool":
        return [1]
    largest = site.nodes or 2
    return sorted({*(2**power for power in range(largest.bit_length())), largest})


def _submissions(site: BatchSite, runs: Path) -> Iterator[Finding]:
    test = site.batch_system.test_submission
    if not test:
        yield note(
            "submission",
            f"{site.scheduler} does not say beforehand; --job submits a job",
        )
        return
    directory = runs.absolute() / "doctor"
    for count in _node_counts(site):
        script = node_job_script(
            site, count, job_name="scalelab-doctor", directory=directory
        )
        yield _tested(f"job of {count} node{'s' if count > 1 else ''}", test, script)


def _driver_submission(site: BatchSite, runs: Path) -> Iterator[Finding]:
    test = site.batch_system.test_submission
    if not test or site.driver_job is None:
        return
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


def _submission_from_nodes(site: BatchSite) -> Iterator[Finding]:
    subject = "submit from nodes"
    may = client_class(site.batch_system).nodes_may_submit(site.queue_name)
    if may is None:
        yield note(subject, "not said here; --job tries it. Only driver_job needs it")
    elif may:
        hint = "" if site.driver_job else "; sweep --detach can run in a driver_job"
        yield ok(subject, f"allowed by the configuration{hint}")
    elif site.driver_job is not None:
        yield broken(
            subject,
            "the configuration forbids it: remove driver_job from the site, and "
            "sweep --detach runs as a process here",
        )
    else:
        yield note(subject, "forbidden: sweep --detach runs as a process here")
