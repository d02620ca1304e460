"""The programs of PBS Professional, OpenPBS and Torque: jobs, and the cluster."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from scalelab.cluster.batch.programs import answered, ask, job_class, said_by
from scalelab.cluster.batch.queue import BatchJob, EndCause, JobState, JobView, seconds
from scalelab.cluster.survey.inventory import Inventory, NodeGroup, Queue
from scalelab.errors import ClusterError, SpecError
from scalelab.inputs.quantities import parse_bytes
from scalelab.records.afterwards.accounted_job import AccountedJob
from scalelab.records.afterwards.waits import JobWait

Values = Mapping[str, Any]
Hosts = Mapping[str, Sequence[Values]]

# Q queued, W waiting for its start time, T moved, H held; S and U are suspended.
_STATES = {
    **dict.fromkeys("QWTH", JobState.PENDING),
    **dict.fromkeys("RSUB", JobState.RUNNING),
}
_UNKNOWN_JOB, _FINISHED_JOB = 153, 35
_NONE = re.compile(r"Unknown Job|has finished")
_WALLTIME_EXCEEDED = "-29"
# A node's MoM looks at a job after 10 s and then less and less often, at last every
# 120 s; the walltime used stands still in between.
_MAX_USED_AGE_S = 130.0
_JOB = re.compile(r"^Job Id: (\S+)", re.MULTILINE)
_NUMBER = re.compile(r"^(\d+)(\[\d*\])?")  # and the element of an array
_ATTRIBUTE = re.compile(r"^ {4}(\S+) = (.*)$", re.MULTILINE)
# The server or a MoM is away or overloaded, or the user has too many jobs: worth
# another try.
_BUSY = re.compile(
    r"(can ?not|could ?n[o']t|unable to) (connect|contact)|connection (refused|reset)"
    r"|timed out|not respond|communication|end of file|temporar|try again"
    r"|would exceed|job limit|maximum number of jobs",
    re.IGNORECASE,
)
# The id is kept whole, with the server's name: where there are several servers, the
# number alone is another job.
_JOB_ID = r"(?P<job_id>\d+\S*)"
# The queue of an advance, a standing or a maintenance reservation.
_RESERVATION = re.compile(r"[RSM]\d+")
_RESERVATION_LINE = re.compile(r"^(\S+) = (.*)$", re.MULTILINE)
# States of a vnode that takes no jobs, of which it may have several.
_AWAY = re.compile(r"offline|down|unknown|unresolvable|stale|maintenance")


class PbsClient:
    """PBS, through ``qsub``, ``qstat``, ``qdel`` and ``pbsnodes``."""

    def __init__(self) -> None:
        self._job_class = job_class(
            "dask_jobqueue.pbs:PBSJob", busy=_BUSY, job_id_regexp=_JOB_ID
        )
        self._reservation_ends: dict[str, float | None] = {}

    def job(self, name: str, script: str = "", job_id: str | None = None) -> BatchJob:
        """Return a job; see :class:`BatchClient`."""
        return cast(BatchJob, self._job_class(name, script, job_id))

    async def look(self, jobs: Mapping[str, str]) -> dict[str, JobView]:
        """Return what ``qstat`` shows of jobs; see :class:`BatchClient`.

        A job that has ended is unknown where the server keeps no history. One that
        is neither shown nor called unknown is asked about alone.
        """
        seen, gone = await _shown([*jobs.values()])
        for job_id in jobs.values():
            if job_id not in seen and job_id not in gone:
                alone, gone_alone = await _shown([job_id])
                if job_id not in alone and job_id not in gone_alone:
                    raise ClusterError(
                        f"qstat neither shows job {job_id} nor says that it is unknown."
                    )
                seen, gone = seen | alone, gone | gone_alone

        if kept := [job_id for job_id, is_in_history in gone.items() if is_in_history]:
            ended, _ = await _shown(kept, "-x")
            seen |= ended

        return {
            name: await self._view(seen[job_id])
            for name, job_id in jobs.items()
            if job_id in seen
        }

    async def _view(self, job: Mapping[str, str]) -> JobView:
        view, queue = _view(job), job.get("queue", "")
        if view.remaining_s is None or not _RESERVATION.fullmatch(queue):
            return view

        if queue not in self._reservation_ends:
            with suppress(ClusterError):  # a queue that is only called like one
                answer = await ask(["pbs_rstat", "-f", queue])
                if not answer.status:
                    reservation = dict(_RESERVATION_LINE.findall(answer.output))
                    self._reservation_ends[queue] = _moment(
                        reservation.get("reserve_end", "")
                    )

        end_s = self._reservation_ends.get(queue)
        if end_s is None:
            return view

        return replace(view, remaining_s=min(view.remaining_s, end_s - time.time()))

    @staticmethod
    def survey() -> Inventory:
        """Return what ``pbsnodes``, ``qstat`` and ``pbs_rstat`` list."""
        server = _json(["qstat", "-B", "-f", "-F", "json"])
        (name, settings), *_ = server.get("Server", {}).items() or [("pbs", {})]
        hosts: dict[str, list[Values]] = {}  # a host may have a vnode per GPU

        vnodes = _json(["pbsnodes", "-av", "-F", "json"]).get("nodes", {})
        for vnode, values in vnodes.items():
            host = str(_has(values).get("host", vnode))
            hosts.setdefault(host, []).append({**values, "name": vnode})

        queues = _json(["qstat", "-Q", "-f", "-F", "json"]).get("Queue", {})
        default = settings.get("default_queue")
        return Inventory(
            scheduler="pbs",
            cluster_name=str(name).partition(".")[0],
            queues=tuple(
                _queue(queue, queues, hosts, is_default=queue == default)
                for queue in queues
            ),
        )

    @staticmethod
    def accounted(job_ids: Sequence[str]) -> dict[str, AccountedJob]:
        """Return what ``qstat -x`` shows, where the server keeps a history.

        Raises
        ------
        SpecError
            If an id is that of an array, which uses nothing itself.
        ClusterError
            If a job is unknown to a server that keeps no history.
        """
        jobs, _ = asyncio.run(_shown(job_ids, "-x"))
        found = {
            job_id: _accounted(full_id, job)
            for full_id, job in jobs.items()
            for job_id in job_ids
            if full_id.partition(".")[0] == job_id.partition(".")[0]
        }

        server, unknown = "", [job_id for job_id in job_ids if job_id not in found]
        if unknown:
            arrays = [_NUMBER.sub(r"\1[]", job_id) for job_id in unknown]
            jobs |= asyncio.run(_shown(arrays, "-x"))[0]
            server = answered(["qstat", "-B", "-f"]).output

        is_array = (name for name, job in jobs.items() if job.get("array") == "True")
        if array_id := next(is_array, ""):
            raise SpecError(
                f"{array_id} is an array of jobs. Give the id of one of its jobs, such "
                f"as {array_id.replace('[]', '[1]')}.",
                code="array_of_jobs",
            )

        if "Server:" in server and "job_history_enable = True" not in server:
            raise ClusterError(
                f"pbs does not know job {', '.join(map(repr, unknown))}: its server "
                "keeps no history (job_history_enable), so it forgets a job that has "
                "ended. Give the log of the job."
            )
        return found

    @staticmethod
    def queue_waits(queue: str | None) -> list[JobWait]:
        """Refuse: PBS keeps no record of all users' jobs that everybody may read."""
        raise ClusterError("PBS shows no waits of the jobs of all users.")

    @staticmethod
    def nodes_may_submit(queue: str | None) -> bool | None:
        """Read it from the server's ``flatuid``; see :class:`BatchClient`."""
        servers = answered(["qstat", "-B", "-f"])
        return True if re.search(r"\bflatuid = True", servers.output) else None


async def _shown(
    job_ids: Sequence[str], *options: str
) -> tuple[dict[str, dict[str, str]], dict[str, bool]]:
    """Return the attributes of jobs by id, and those called unknown or finished.

    Of the latter: whether the server's history has them.

    As text, which every PBS prints for all jobs: as JSON, OpenPBS since December 2023
    prints the first of several only.
    """
    answer = await ask(["qstat", *options, "-f", *job_ids])
    lines = [line for line in answer.errors.splitlines() if _NONE.search(line)]
    gone = {
        job_id: "finished" in line
        for line in lines
        for job_id in job_ids
        if job_id in line.split()
    }

    are_gone = answer.status in (_UNKNOWN_JOB, _FINISHED_JOB) or bool(lines)
    if answer.status and not are_gone:
        raise ClusterError(f"qstat: {answer.errors or answer.status}")
    if are_gone and len(job_ids) == 1:
        gone.setdefault(job_ids[0], answer.status == _FINISHED_JOB)

    # long values go on in lines that begin with a tab
    _, *parts = _JOB.split(answer.output.replace("\n\t", ""))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {job_id: dict(_ATTRIBUTE.findall(text)) for job_id, text in pairs}, gone


def _view(job: Mapping[str, str]) -> JobView:
    letter, comment = job.get("job_state", "Q"), job.get("comment", "").strip()
    state = _STATES.get(letter, JobState.ENDED)
    status, is_suspended = job.get("Exit_status"), letter in ("S", "U")

    end_cause = EndCause.PREEMPTED if is_suspended else EndCause.OTHER
    if status == _WALLTIME_EXCEEDED:
        end_cause = EndCause.TIME_LIMIT

    reason = comment if state is JobState.PENDING else ""
    if letter == "H":
        reason = f"held. {comment}".strip()
    elif is_suspended:
        reason = "suspended"
    elif state is JobState.ENDED:
        ended = "ended" if status is None else f"ended with status {status}"
        reason = f"{ended}. {comment}" if comment else ended

    return JobView(
        state=state,
        reason=reason,
        can_never_run="Can Never Run" in comment or letter == "H",
        estimated_start=job.get("estimated.start_time"),
        remaining_s=_remaining_s(job) if state is JobState.RUNNING else None,
        is_leaving=letter == "E",
        is_suspended=is_suspended,
        end_cause=end_cause,
    )


def _accounted(job_id: str, job: Mapping[str, str]) -> AccountedJob:
    def size(name: str) -> float | None:
        # a job that ended before it was looked at used 0kb
        with suppress(KeyError, SpecError):
            return parse_bytes(_binary(job[name]))
        return None

    started_s, status = _moment(job.get("stime", "")), job.get("Exit_status")
    log = job.get("Output_Path", "").partition(":")[2]
    has_ended = job.get("job_state") in ("F", "X")
    used_s = seconds(job.get("resources_used.walltime", "")) or 0.0
    return AccountedJob(
        job_id=job_id,
        name=job.get("Job_Name", ""),
        state=f"ended with status {status}" if has_ended else "not ended",
        did_complete=status == "0",
        num_nodes=int(job.get("Resource_List.nodect", 1)),
        num_cores=int(job.get("Resource_List.ncpus", 1)),
        num_gpus=int(job.get("Resource_List.ngpus", 0)),
        gpu_type=None,
        submitted_s=_moment(job.get("ctime", "")),
        started_s=started_s,
        elapsed_s=used_s,
        limit_s=seconds(job.get("Resource_List.walltime", "")),
        cpu_s=seconds(job.get("resources_used.cput", "")),
        memory_asked_bytes=size("Resource_List.mem"),
        memory_used_bytes=size("resources_used.mem"),
        gpu_utilization=None,
        log=log if Path(log).is_file() else None,
    )


def _remaining_s(job: Mapping[str, str]) -> float | None:
    limit_s = seconds(job.get("Resource_List.walltime", ""))
    if limit_s is None:
        return None

    # It is absent just after the start.
    used_s = seconds(job.get("resources_used.walltime", "")) or 0.0
    begun_s = _moment(job.get("stime", ""))
    if begun_s is not None:
        # Where the clocks of server and driver disagree, not more than may be true.
        used_s = min(max(time.time() - begun_s, used_s), used_s + _MAX_USED_AGE_S)

    return limit_s - used_s


def _moment(text: str) -> float | None:
    """Return PBS's ``Fri Nov 20 03:53:33 2026``, in local time, as seconds since 1970.

    >>> _moment("soon") is None
    True
    """
    with suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(text))
    return None


def _json(argv: list[str]) -> dict[str, Any]:
    try:
        return dict(json.loads(said_by(argv)))
    except (ValueError, TypeError) as error:
        raise ClusterError(
            f"{' '.join(argv)} said no JSON ({error}), as Torque does not. Write the "
            "profile by hand: docs/clusters.md."
        ) from error


def _has(vnode: Values) -> Values:
    return cast(Values, vnode.get("resources_available", {}))


def _queue(
    name: str, queues: Mapping[str, Values], hosts: Hosts, *, is_default: bool
) -> Queue:
    values = queues[name]
    is_open = values.get("enabled") == values.get("started") == "True"
    limit_s = seconds(str(values.get("resources_max", {}).get("walltime", "")))

    reservation: dict[str, str] = {}
    if _RESERVATION.fullmatch(name):
        answer = answered(["pbs_rstat", "-f", name])
        reservation = (
            {} if answer.status else dict(_RESERVATION_LINE.findall(answer.output))
        )

    if reservation:
        # Before it begins its queue is not started, and jobs wait for that.
        is_open = values.get("enabled") == "True"
        duration = reservation.get("reserve_duration", "")
        limit_s = float(duration) if duration.isdecimal() else None
        mine = _held(reservation.get("resv_nodes", ""), hosts)
    else:
        mine = _hosts_of(name, queues, hosts)

    usable = [vnodes for vnodes in mine.values() if _host(vnodes).cores]
    return Queue(
        name=name,
        groups=tuple(
            replace(host, num_nodes=count)
            for host, count in Counter(map(_host, usable)).items()
        ),
        is_default=is_default,
        is_open=is_open,
        max_walltime_s=limit_s,
        num_away=sum(
            any(_AWAY.search(str(vnode.get("state", ""))) for vnode in vnodes)
            for vnodes in usable
        ),
        routes_to=tuple(_destinations(values)),
    )


def _destinations(queue: Values) -> list[str]:
    if queue.get("queue_type") != "Route":
        return []
    return [
        name.strip() for name in str(queue.get("route_destinations", "")).split(",")
    ]


def _held(text: str, hosts: Hosts) -> Hosts:
    """Return the part of each host that a reservation has, as if it were all of it.

    ``(n1:ncpus=4:ngpus=1)+(n2:ncpus=8)`` are chunks of the vnodes n1 and n2.
    """
    chunks = [chunk.split(":") for chunk in re.split(r"[()+]+", text) if chunk]
    held: dict[str, list[Values]] = {}
    for host, vnodes in hosts.items():
        for vnode in vnodes:
            for name, *parts in chunks:
                if name == vnode["name"]:
                    model = {k: v for k, v in _has(vnode).items() if k == "gpu_model"}
                    has = model | dict(part.split("=", 1) for part in parts)
                    part = {**vnode, "resources_available": has}
                    held.setdefault(host, []).append(part)

    return held


def _hosts_of(
    name: str,
    queues: Mapping[str, Values],
    hosts: Hosts,
    seen: frozenset[str] = frozenset(),
) -> Hosts:
    """Return the hosts that the jobs of a queue may get; none where it is not said.

    Those of a routing queue are those of its destinations; of one on another server
    nothing is known.
    """
    values = queues[name]
    if values.get("queue_type") != "Route":
        marks = values.get("default_chunk", {}).get("Qlist")
        has_nodes = values.get("hasnodes") == "True"
        return {
            host: vnodes
            for host, vnodes in hosts.items()
            if all(_may_run(vnode, name, marks, has_nodes) for vnode in vnodes)
        }

    found: dict[str, Sequence[Values]] = {}
    for other in _destinations(values):
        if other not in queues:
            return {}
        if other not in seen:
            found |= _hosts_of(other, queues, hosts, seen | {name})

    return found


def _may_run(vnode: Values, queue: str, marks: Any, has_nodes: bool) -> bool:
    """Tell whether a queue's jobs get a vnode: bound to it, or marked as it is.

    A queue with nodes of its own gets no others.
    """
    bound = vnode.get("queue")
    if bound or has_nodes:
        return bool(bound == queue)
    has = _has(vnode).get("Qlist")
    return marks is None or has is None or str(marks) in str(has).split(",")


def _host(vnodes: Sequence[Values]) -> NodeGroup:
    has = [_has(vnode) for vnode in vnodes]
    models = {
        str(resources["gpu_model"]) for resources in has if "gpu_model" in resources
    }
    sizes = [_binary(str(resources["mem"])) for resources in has if "mem" in resources]

    return NodeGroup(
        num_nodes=1,
        cores=sum(int(resources.get("ncpus", 0)) for resources in has),
        gpus=sum(int(resources.get("ngpus", 0)) for resources in has),
        memory_bytes=sum(map(parse_bytes, sizes)) or None,
        gpu_type=models.pop() if len(models) == 1 else None,
    )


def _binary(size: str) -> str:
    """Return PBS's ``1024kb``, which are powers of two, as others write it.

    >>> _binary("527672488kb"), _binary("16gb")
    ('527672488kib', '16gib')
    """
    number = size.rstrip("kmgtbKMGTB")
    unit = size[len(number) :].lower()
    return f"{number}{unit[0]}ib" if len(unit) == 2 else f"{number}b"
