"""The test job of a site: one short job checks one node of each group."""

import json
import math
import shlex
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from scalelab.cluster.batch.queue import (
    JobState,
    JobView,
    cancel,
    look_at,
    submit_script,
)
from scalelab.cluster.network import listening, own_address, port_text
from scalelab.cluster.survey.visit import ANSWER, TASK
from scalelab.doctor.site import Finding, broken, clock_finding, note, of_groups, ok
from scalelab.errors import ClusterError, ScaleLabError, SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.plain_files import last_log_lines, parse_json, read_file
from scalelab.records.attempt import encode_json, existing_place, write_atomically
from scalelab.records.control.job_list import DriverRecord
from scalelab.site.batch_site import BatchSite
from scalelab.site.job_script import job_script, refuse_log_directory
from scalelab.site.node_settings import DeviceType
from scalelab.site.profile import Site

JOB_WALLTIME_S = 300.0
# Seconds the job may wait in the queue before it is cancelled.
QUEUED_S = 900.0
# Seconds that what a job wrote may take to be seen here after it has ended: where some
# of it is here already, and where nothing is.
SOON_S, LATE_S = 2.0, 30.0
# Seconds the job may take to leave before its folder is removed all the same.
LEAVES_S = 30.0
_LOOK_AGAIN_S = 0.5
_NAME, _LOG = "scalelab-doctor", "job.log"


def try_nodes(site: Site, runs: Path, say: Callable[[str], None]) -> Iterator[Finding]:
    """Run one short job on a node of each node group; see :func:`try_node`."""
    if not isinstance(site, BatchSite):
        raise SpecError(
            f"--job submits a job, and site {site.name!r} uses one that is held "
            "already. Leave it out.",
            code="job_is_held",
        )

    # Reported each at once: the job of the next group may wait long in its queue.
    return (
        of_groups([name], finding)
        for name, group in site.groups.items()
        for finding in try_node(group, runs, say)
    )


def try_node(
    site: BatchSite, runs: Path, say: Callable[[str], None] = lambda text: None
) -> Iterator[Finding]:
    """Run one short job on one node and report what it found there."""
    try:
        place = existing_place(runs.absolute())
        with (
            tempfile.TemporaryDirectory(
                prefix=f".{_NAME}-", dir=place, ignore_cleanup_errors=True
            ) as folder,
            _Listener(site.driver_interface) as listener,
        ):
            found = _visited(site, Path(folder), listener, say)
            yield from _findings(site, found, listener)
    except (ScaleLabError, OSError) as error:
        yield broken("job", str(error))


class _Listener:
    def __init__(self, interface: str | None) -> None:
        self._socket = listening(own_address(interface))
        self.url = port_text(self._socket)
        self.token = uuid.uuid4().hex
        self.call: Mapping[str, Any] | None = None
        self.skew_s = math.nan
        self.refusal = ""

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def _listen(self) -> None:
        while self.call is None:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                try:
                    connection.settimeout(5)
                    call = json.loads(lines.readline(10_000))
                    if call["token"] != self.token:
                        continue
                    self.skew_s = call["time"] - time.time()
                    address = call["address"], call["port"]
                except (OSError, ValueError, TypeError, KeyError):
                    continue
                try:
                    socket.create_connection(address, 10).close()
                except OSError as error:
                    self.refusal = str(error)
                self.call = call


def _visited(
    site: BatchSite, folder: Path, listener: _Listener, say: Callable[[str], None]
) -> Mapping[str, Any]:
    refuse_log_directory(site, folder, option="--runs")
    task = {
        "token": listener.token,
        "url": listener.url,
        "interface": site.interface,
        "scheduler": site.scheduler,
        "device_type": site.device_type.value,
        "num_devices": site.devices_per_node,
    }

    write_atomically(folder / TASK, encode_json(task))
    words = [site.python or sys.executable, "-m", "scalelab.cluster.survey.visit"]
    script = job_script(
        site,
        Allocation(devices_per_node=(site.devices_per_node,)),
        [f"exec {shlex.join([*words, str(folder)])}"],
        job_name=_NAME,
        walltime_s=min(site.walltime or JOB_WALLTIME_S, JOB_WALLTIME_S),
        log=folder / _LOG,
    )

    record = submit_script(site.scheduler, _NAME, script)
    say(f"job {record.job_id} is submitted")

    try:
        return _answer(record, folder, say)
    finally:
        cancel(record)
        deadline_s = time.monotonic() + LEAVES_S
        with suppress(ClusterError):  # what the job found counts all the same
            while time.monotonic() < deadline_s and not _has_left(look_at(record)):
                time.sleep(_LOOK_AGAIN_S)


def _has_left(view: JobView | None) -> bool:
    # The log of a job is copied to its folder after its end.
    return view is None or (view.state is JobState.ENDED and not view.is_leaving)


def _answer(
    record: DriverRecord, folder: Path, say: Callable[[str], None]
) -> Mapping[str, Any]:
    started_s, queued_s, reason = time.monotonic(), 0.0, ""
    ended_s: float | None = None
    while not (folder / ANSWER).exists():
        now_s = time.monotonic()
        view = look_at(record)
        if view is not None and view.state is JobState.PENDING:
            queued_s = now_s - started_s
            _require_start(view, queued_s, f"job {record.job_id}")
            if view.reason and view.reason != reason:
                reason = view.reason
                say(f"job {record.job_id} waits in the queue: {reason}")
        elif view is None or view.state is JobState.ENDED:
            ended_s = ended_s or now_s
            how = f"ended ({view.reason})" if view else "ended"
            _require_answer(folder, now_s - ended_s, f"job {record.job_id} {how}")

        time.sleep(_LOOK_AGAIN_S)

    found = parse_json(read_file(folder / ANSWER))
    return {**found, "queued_s": queued_s, "job_id": record.job_id}


def _require_start(view: JobView, queued_s: float, job: str) -> None:
    if view.can_never_run:
        raise ClusterError(f"{job} can never run: {view.reason}. Correct the site.")
    if queued_s > QUEUED_S:
        raise ClusterError(
            f"{job} did not start within {QUEUED_S / 60:g} min ({view.reason}) and was "
            "cancelled. Try again when there is room."
        )


def _require_answer(folder: Path, since_s: float, job: str) -> None:
    words = " ".join(last_log_lines(folder / _LOG).split())
    if words and since_s >= SOON_S:
        raise ClusterError(f"{job} and wrote no findings. Its log: {words}")
    if since_s >= LATE_S:
        raise ClusterError(
            f"{job}, and nothing it wrote is seen here, not even its log: nodes do not "
            f"share {folder.parent}. Sweep into a folder that they do: --run."
        )


def _findings(
    site: BatchSite, found: Mapping[str, Any], listener: _Listener
) -> Iterator[Finding]:
    host = found["host"]
    yield ok(
        "job", f"{found['job_id']} ran on {host} after {found['queued_s']:.0f} s queued"
    )
    yield ok("shared folder", f"{host} read and wrote what this machine did")
    yield from _calls(found, listener)

    if "torch" in found:
        yield ok("torch", f"{found['torch']}, {found['python']}")
    else:
        yield broken(
            "torch",
            f"{found.get('torch_error')}. Set python in the site to an interpreter "
            "that has it, or load it in prologue.",
        )

    yield _devices(site, found)
    num_cores, asked = found["num_cores"], site.cores_per_node or 0
    if num_cores < asked and num_cores == found["num_cores_of_node"]:
        yield note(
            "cores",
            f"{host} has {num_cores}, though the batch system gave {asked}. Ranks will "
            "share cores; correct cores_per_node.",
        )
    elif num_cores < asked:
        yield broken(
            "cores",
            f"the job may use {num_cores} of the {asked} cores it asked for. Look for "
            "what binds it in the site's directives.",
        )

    yield _submission(site, found)
    if site.links is None and site.nodes != 1 and found.get("link"):
        by, gbit_per_s = found["link"]
        yield note(
            "link of nodes",
            f"{host} has {gbit_per_s:g} Gbit/s by {by}. Where no trial ran on several "
            "nodes, recommend takes it from the site: links: {between_nodes: "
            f"{{bandwidth: {gbit_per_s:g}Gbit/s}}}}.",
        )


def _calls(found: Mapping[str, Any], listener: _Listener) -> Iterator[Finding]:
    if listener.call is None or "call_error" in found:
        yield broken(
            "node to driver",
            f"{found['host']} does not reach {listener.url}: "
            f"{found.get('call_error', 'it did not arrive')}. Set driver_interface or "
            "interface in the site, or ask for these ports to be opened.",
        )
        return

    yield ok("node to driver", f"{found['address']} reached {listener.url}")
    if not found["is_called_back"]:
        yield broken(
            "driver to node",
            f"{found['address']} is not reached: {listener.refusal or 'no answer'}. "
            "Set interface in the site to one that this machine reaches.",
        )
    else:
        yield ok("driver to node", f"reached {found['address']}")

    yield clock_finding("node's clock", listener.skew_s)


def _devices(site: BatchSite, found: Mapping[str, Any]) -> Finding:
    if "devices_error" in found:
        return broken("devices", f"{found['devices_error']}")
    visible = "not set" if found["visible"] is None else found["visible"]
    visible_in_words = f"; CUDA_VISIBLE_DEVICES is {visible}"
    if site.device_type is DeviceType.CPU:
        cores = f"{found['num_cores']} cores"
        return ok(
            "devices", f"{cores}{visible_in_words}" if site.asks_for_gpus else cores
        )

    if found["num_torch_devices"] < site.devices_per_node:
        return broken(
            "devices",
            f"torch sees {found['num_torch_devices']} GPUs, the job asked for "
            f"{site.devices_per_node}{visible_in_words}. Correct the GPU request, or "
            "install a torch that fits the nodes' driver.",
        )

    return ok("devices", f"{', '.join(found['names'])}{visible_in_words}")


def _submission(site: BatchSite, found: Mapping[str, Any]) -> Finding:
    subject, host, may = "submit from nodes", found["host"], found.get("may_submit")
    if may:
        return ok(subject, f"{host} may")
    if may is None:
        return note(subject, "not tried: only a job would show it")
    if site.driver_job is None:
        return note(subject, f"{host} may not; keep no driver_job")
    why = f"{host} may not: {found.get('submission_words', '')}"
    return broken(subject, f"{why} Remove driver_job.")
