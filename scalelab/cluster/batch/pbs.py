"""The programs of PBS Professional, OpenPBS and Torque: jobs and what there is."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.cluster.batch.programs import answered, ask, said_by
from scalelab.cluster.batch.queue import BatchJob, JobState, JobView, seconds
from scalelab.cluster.batch.scripted_job import job_class, scripted_job
from scalelab.cluster.survey.inventory import Inventory, NodeGroup, Queue
from scalelab.errors import ClusterError
from scalelab.inputs.quantities import parse_bytes

Values = Mapping[str, Any]

# Q queued, W waiting for its start time, T moved, H held; S and U are suspended.
_PENDING, _RUNNING = "QWTH", "RSUB"
_UNKNOWN_JOB, _FINISHED_JOB = 153, 35
_NONE = re.compile(r"Unknown Job|has finished")
_JOB = re.compile(r"^Job Id: (\S+)", re.MULTILINE)
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


class PbsClient:
    """PBS, through ``qsub``, ``qstat``, ``qdel`` and ``pbsnodes``."""

    def __init__(self) -> None:
        self._job_class = job_class("dask_jobqueue.pbs:PBSJob")

    def job(self, name: str, script: str = "", job_id: str | None = None) -> BatchJob:
        """Return a job; see :class:`BatchClient`."""
        return scripted_job(
            self._job_class, name, script, job_id, busy=_BUSY, job_id_regexp=_JOB_ID
        )

    async def look(self, jobs: Mapping[str, str]) -> dict[str, JobView]:
        """Return what ``qstat`` shows of jobs; see :class:`BatchClient`.

        A job that has ended is known no more where the server keeps no history. One
        that is neither shown nor called unknown is asked about alone.
        """
        seen, unknown = await _shown([*jobs.values()])
        for job_id in jobs.values():
            if job_id not in seen and job_id not in unknown:
                alone, unknown_alone = await _shown([job_id])
                if job_id not in alone and job_id not in unknown_alone:
                    raise ClusterError(
                        f"qstat neither shows job {job_id} nor says that it is unknown."
                    )
                seen |= alone
        return {
            name: _view(seen[job_id]) for name, job_id in jobs.items() if job_id in seen
        }

    @staticmethod
    def survey() -> Inventory:
        """Return what ``pbsnodes`` and ``qstat`` list; see :class:`BatchClient`."""
        server = _json(["qstat", "-B", "-f", "-F", "json"])
        (name, settings), *_ = server.get("Server", {}).items() or [("pbs", {})]
        hosts = _hosts(_json(["pbsnodes", "-av", "-F", "json"]).get("nodes", {}))
        queues = _json(["qstat", "-Q", "-f", "-F", "json"]).get("Queue", {})
        default = settings.get("default_queue")
        return Inventory(
            scheduler="pbs",
            cluster_name=str(name).partition(".")[0],
            queues=tuple(
                _queue(queue, values, hosts, is_default=queue == default)
                for queue, values in queues.items()
            ),
        )

    @staticmethod
    def nodes_may_submit(queue: str | None) -> bool | None:
        """Read it from the server's ``flatuid``; see :class:`BatchClient`."""
        said = answered(["qstat", "-B", "-f"])
        return True if re.search(r"\bflatuid = True", said.output) else None


async def _shown(job_ids: Sequence[str]) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Return the attributes of jobs, by id, and the jobs that are called unknown.

    As text, which every PBS prints for all jobs: as JSON, OpenPBS since December 2023
    prints the first of several only.

    Raises
    ------
    ClusterError
        If the server does not answer.
    """
    answer = await ask(["qstat", "-f", *job_ids])
    named = [line.split() for line in answer.errors.splitlines() if _NONE.search(line)]
    unknown = {job_id for job_id in job_ids if any(job_id in words for words in named)}
    is_unknown = answer.status in (_UNKNOWN_JOB, _FINISHED_JOB) or bool(named)
    if answer.status and not is_unknown:
        raise ClusterError(f"qstat: {answer.errors or answer.status}")
    if is_unknown and len(job_ids) == 1:
        unknown = {*job_ids}
    # long values go on in lines that begin with a tab
    _, *parts = _JOB.split(answer.output.replace("\n\t", ""))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {job_id: dict(_ATTRIBUTE.findall(text)) for job_id, text in pairs}, unknown


def _view(job: Mapping[str, str]) -> JobView:
    letter, comment = job.get("job_state", ""), job.get("comment", "")
    if letter in _PENDING:
        state = JobState.PENDING
    elif letter in _RUNNING:
        state = JobState.RUNNING
    else:
        state = JobState.ENDED
    reason = comment if state is JobState.PENDING else ""
    if letter == "H":
        reason = f"held. {comment}".strip()
    elif letter in "SU":
        reason = "suspended"
    elif state is JobState.ENDED:
        reason = _ending(job)
    return JobView(
        state=state,
        reason=reason,
        can_never_run="Can Never Run" in comment or letter == "H",
        estimated_start=job.get("estimated.start_time"),
        remaining_s=_remaining_s(job) if state is JobState.RUNNING else None,
        is_leaving=letter == "E",
        is_suspended=letter in ("S", "U"),
    )


def _ending(job: Mapping[str, str]) -> str:
    status, comment = job.get("Exit_status"), job.get("comment", "").strip()
    ended = "ended" if status is None else f"ended with status {status}"
    return f"{ended}. {comment}".strip() if comment else ended


def _remaining_s(job: Mapping[str, str]) -> float | None:
    limit = seconds(job.get("Resource_List.walltime", ""))
    used = seconds(job.get("resources_used.walltime", ""))
    # It is absent just after the start.
    return None if limit is None else limit - (used or 0.0)


def _json(argv: list[str]) -> dict[str, Any]:
    try:
        return dict(json.loads(said_by(argv)))
    except (ValueError, TypeError) as error:
        raise ClusterError(
            f"{' '.join(argv)} said no JSON ({error}), as Torque does not. Write the "
            "profile by hand: docs/clusters.md."
        ) from error


def _hosts(vnodes: Mapping[str, Values]) -> dict[str, list[Values]]:
    """Return the vnodes by host; a host may have one per GPU."""
    hosts: dict[str, list[Values]] = {}
    for name, vnode in vnodes.items():
        has = vnode.get("resources_available", {})
        hosts.setdefault(str(has.get("host", name)), []).append(vnode)
    return hosts


def _queue(
    name: str, values: Values, hosts: Mapping[str, list[Values]], *, is_default: bool
) -> Queue:
    routes = values.get("queue_type") == "Route"
    marks = values.get("default_chunk", {}).get("Qlist")
    groups = Counter(
        _host(vnodes)
        for vnodes in hosts.values()
        if all(_may_run(vnode, name, marks) for vnode in vnodes)
    )
    limit = values.get("resources_max", {}).get("walltime", "")
    return Queue(
        name=name,
        groups=tuple(
            NodeGroup(
                num_nodes=count,
                cores=cores,
                gpus=gpus,
                memory_bytes=memory,
                gpu_type=model,
            )
            for (cores, gpus, memory, model), count in groups.items()
            if cores
        ),
        is_default=is_default,
        # A routing queue has no nodes; where its jobs go is not said.
        is_open=values.get("enabled") == values.get("started") == "True" and not routes,
        max_walltime_s=seconds(str(limit)),
    )


def _may_run(vnode: Values, queue: str, marks: Any) -> bool:
    """Tell whether a queue's jobs get a vnode: bound to it, or marked as it is."""
    if bound := vnode.get("queue"):
        return bool(bound == queue)
    has = vnode.get("resources_available", {}).get("Qlist")
    return marks is None or has is None or str(marks) in str(has).split(",")


def _host(vnodes: list[Values]) -> tuple[int, int, int | None, str | None]:
    has = [vnode.get("resources_available", {}) for vnode in vnodes]
    memory = sum(
        parse_bytes(_binary(str(each["mem"]))) for each in has if "mem" in each
    )
    models = {str(each["gpu_model"]) for each in has if "gpu_model" in each}
    return (
        sum(int(each.get("ncpus", 0)) for each in has),
        sum(int(each.get("ngpus", 0)) for each in has),
        memory or None,
        models.pop() if len(models) == 1 else None,
    )


def _binary(size: str) -> str:
    """Return PBS's ``1024kb``, which are powers of two, as others write it.

    >>> _binary("527672488kb"), _binary("16gb")
    ('527672488kib', '16gib')
    """
    number = size.rstrip("kmgtbKMGTB")
    unit = size[len(number) :].lower()
    return f"{number}{unit[0]}ib" if len(unit) == 2 else f"{number}b"
