"""The test job of a site: one short job checks one node of each group."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalelab.cluster.batch.driver_queue import cancel, look_at, submit_script
from scalelab.cluster.batch.queue import JobState, JobView
from scalelab.cluster.network import listening, own_address, port_text
from scalelab.cluster.survey.visit import ANSWER, TASK
from scalelab.doctor.machine import Finding, broken, note, ok
from scalelab.doctor.site import clock_finding, of_groups
from scalelab.errors import ClusterError, ScaleLabError, SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.records.attempt_io import encode_json, existing_place, write_atomically
from scalelab.records.control.job_list import DriverRecord
from scalelab.records.plain_files import last_log_lines
from scalelab.site.batch_site import BatchSite
from scalelab.site.job_script import job_script, refuse_log_directory
from scalelab.site.profile import DeviceType, Site

JOB_WALLTIME_S = 300.0
QUEUED_S = 900.0
"""Seconds the job may wait in the queue before it is cancelled."""
SOON_S, LATE_S = 2.0, 30.0
"""Seconds that what a job wrote may take to be seen here after it has ended.

Some of it is here already, or nothing is.
"""
LEAVES_S = 30.0
"""Seconds the job may take to leave before its folder is removed all the same."""
_LOOK_AGAIN_S = 0.5
_NAME = "scalelab-doctor"


def try_nodes(site: Site, runs: Path, say: Callable[[str], None]) -> Iterator[Finding]:
    """Run one short job on a node of each node group; see :func:`try_node`."""
    if not isinstance(site, BatchSite):
        raise SpecError(
            f"--job submits a job, and site {site.name!r} uses one that is held "
            "already. Leave it out."
        )
    return _each_tried(site, runs, say)


def _each_tried(
    site: BatchSite, runs: Path, say: Callable[[str], None]
) -> Iterator[Finding]:
    # Report each at once: the job of the next group may wait long in its queue.
    for name, group in site.groups.items():
        for finding in try_node(group, runs, say):
            yield of_groups([name], finding)


def try_node(
    site: BatchSite, runs: Path, say: Callable[[str], None] = lambda text: None
) -> Iterator[Finding]:
    """Run one short job on one node and report what it found there."""
    try:
        place = existing_place(runs.absolute())
        folder = Path(tempfile.mkdtemp(prefix=f".{_NAME}-", dir=place))
        try:
            with _Listener(site.driver_interface) as listener:
                found = _visited(site, folder, listener, say)
                yield from _findings(site, found, listener)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except (ScaleLabError, OSError) as error:
        yield broken("job", str(error))


class _Listener:
    """Accepts the connection of a node, and connects back to it."""

    def __init__(self, interface: str | None) -> None:
        self._socket = listening(own_address(interface))
        self.url = port_text(self._socket)
        self.token = uuid.uuid4().hex
        self.call: Mapping[str, Any] | None = None
        self.skew_s = math.nan
        self.refusal = ""

    def __enter__(self) -> _Listener:
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
                    self._call_back(call)
                    self.call = call
                except (OSError, ValueError, TypeError, KeyError):
                    continue

    def _call_back(self, call: Mapping[str, Any]) -> None:
        try:
            socket.create_connection((call["address"], call["port"]), 10).close()
        except OSError as error:
            self.refusal = str(error)


def _visited(
    site: BatchSite, folder: Path, listener: _Listener, say: Callable[[str], None]
) -> Mapping[str, Any]:
    log = folder / "job.log"
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
        log=log,
    )
    record = submit_script(site.scheduler, _NAME, script)
    say(f"job {record.job_id} is submitted")
    try:
        return _answer(record, folder, log, say)
    finally:
        cancel(record)
        _await_departure(record)


def _await_departure(record: DriverRecord) -> None:
    """Wait a while until a job has left: its log is copied to the folder after it."""
    deadline_s = time.monotonic() + LEAVES_S
    with suppress(ClusterError):  # what the job found counts all the same
        while time.monotonic() < deadline_s:
            view = look_at(record)
            if view is None or (view.state is JobState.ENDED and not view.is_leaving):
                return
            time.sleep(_LOOK_AGAIN_S)


def _answer(
    record: DriverRecord, folder: Path, log: Path, say: Callable[[str], None]
) -> Mapping[str, Any]:
    started_s = time.monotonic()
    ended_s: float | None = None
    queued_s, said = 0.0, ""
    while not (folder / ANSWER).exists():
        now_s = time.monotonic()
        view = look_at(record)
        if view is not None and view.state is JobState.PENDING:
            queued_s = now_s - started_s
            _require_start(record, view, queued_s)
            if view.reason and view.reason != said:
                said = view.reason
                say(f"job {record.job_id} waits in the queue: {said}")
        elif view is None or view.state is JobState.ENDED:
            ended_s = ended_s or now_s
            _require_answer(record, view, log, now_s - ended_s)
        time.sleep(_LOOK_AGAIN_S)
    found = dict(json.loads((folder / ANSWER).read_bytes()))
    return {**found, "queued_s": queued_s, "job_id": record.job_id}


def _require_start(record: DriverRecord, view: JobView, queued_s: float) -> None:
    if view.can_never_run:
        raise ClusterError(
            f"job {record.job_id} can never run: {view.reason}. Correct the site."
        )
    if queued_s > QUEUED_S:
        raise ClusterError(
            f"job {record.job_id} did not start within {QUEUED_S / 60:g} min "
            f"({view.reason}) and was cancelled. Try again when there is room."
        )


def _require_answer(
    record: DriverRecord, view: JobView | None, log: Path, since_s: float
) -> None:
    words = " ".join(last_log_lines(log).split())
    if since_s < (SOON_S if words else LATE_S):
        return
    how = f" ({view.reason})" if view is not None else ""
    if words:
        raise ClusterError(
            f"job {record.job_id} ended{how} and wrote no findings. Its log: {words}"
        )
    raise ClusterError(
        f"job {record.job_id} ended{how}, and nothing it wrote is seen here, not even "
        f"its log: nodes do not share {log.parent.parent}. Sweep into a folder that "
        "they do: --run."
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
    yield from _software(site, found)
    yield _devices(site, found)
    if site.cores_per_node and found["num_cores"] < site.cores_per_node:
        yield _few_cores(site.cores_per_node, found)
    yield _submission(site, found)


def _few_cores(asked: int, found: Mapping[str, Any]) -> Finding:
    num_cores = found["num_cores"]
    if num_cores == found["num_cores_of_node"]:
        return note(
            "cores",
            f"{found['host']} has {num_cores}, though the batch system gave {asked}. "
            "Ranks will share cores; correct cores_per_node.",
        )
    return broken(
        "cores",
        f"the job may use {num_cores} of the {asked} cores it asked for. Look for what "
        "binds it in the site's directives.",
    )


def _calls(found: Mapping[str, Any], listener: _Listener) -> Iterator[Finding]:
    host = found["host"]
    if listener.call is None or "call_error" in found:
        words = found.get("call_error", "it did not arrive")
        yield broken(
            "node to driver",
            f"{host} does not reach {listener.url}: {words}. Set driver_interface or "
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


def _software(site: Site, found: Mapping[str, Any]) -> Iterator[Finding]:
    if "torch" in found:
        yield ok("torch", f"{found['torch']}, {found['python']}")
    else:
        yield broken(
            "torch",
            f"{found.get('torch_error')}. Set python in the site to an interpreter "
            "that has it, or load it in prologue.",
        )


def _devices(site: BatchSite, found: Mapping[str, Any]) -> Finding:
    visible = found["visible"]
    said = "not set" if visible is None else visible
    if "devices_error" in found:
        return broken("devices", f"{found['devices_error']}")
    if site.device_type is DeviceType.CPU:
        extra = f"; CUDA_VISIBLE_DEVICES is {said}" if site.asks_for_gpus else ""
        return ok("devices", f"{found['num_cores']} cores{extra}")
    if found["num_torch_devices"] < site.devices_per_node:
        return broken(
            "devices",
            f"torch sees {found['num_torch_devices']} GPUs, the job asked for "
            f"{site.devices_per_node}; CUDA_VISIBLE_DEVICES is {said}. Correct the GPU "
            "request, or install a torch that fits the nodes' driver.",
        )
    return ok("devices", f"{', '.join(found['names'])}; CUDA_VISIBLE_DEVICES is {said}")


def _submission(site: BatchSite, found: Mapping[str, Any]) -> Finding:
    may, words = found.get("may_submit"), found.get("submission_words", "")
    if may:
        return ok("submit from nodes", f"{found['host']} may")
    if may is None:
        return note("submit from nodes", "not tried: only a job would show it")
    if site.driver_job is not None:
        return broken(
            "submit from nodes", f"{found['host']} may not: {words} Remove driver_job."
        )
    return note("submit from nodes", f"{found['host']} may not; keep no driver_job")
