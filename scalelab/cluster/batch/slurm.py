"""The programs of SLURM: jobs submitted and looked at, and the cluster surveyed."""

import getpass
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import cast

from scalelab.cluster.batch.programs import answered, ask, job_class, said_by
from scalelab.cluster.batch.queue import BatchJob, EndCause, JobState, JobView, seconds
from scalelab.cluster.batch.slurm_accounting import accounted_jobs, queue_waits
from scalelab.cluster.survey.inventory import Inventory, NodeGroup, Queue
from scalelab.errors import ClusterError
from scalelab.records.afterwards.accounted_job import AccountedJob
from scalelab.records.afterwards.waits import JobWait

# State, reason, expected start, time left; a name may hold what separates, so it is
# not among them.
_JOBS_FORMAT = "%i|%T|%r|%S|%L"
_BARS = _JOBS_FORMAT.count("|")
_LEAVING = "COMPLETING"
_SUSPENDED = ("SUSPENDED", "STOPPED")
_STATES = {
    **dict.fromkeys(
        ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD"),
        JobState.PENDING,
    ),
    **dict.fromkeys(
        ("RUNNING", "RESIZING", "SIGNALING", "STAGE_OUT", _LEAVING, *_SUSPENDED),
        JobState.RUNNING,
    ),
}
# States and reasons of jobs that have ended, are leaving or are suspended.
_END_CAUSES = {
    "PREEMPTED": EndCause.PREEMPTED,
    **dict.fromkeys(_SUSPENDED, EndCause.PREEMPTED),
    **dict.fromkeys(("TIMEOUT", "DEADLINE", "TimeLimit"), EndCause.TIME_LIMIT),
}
# Reasons that no waiting resolves. What other jobs may give back ("AssocGrp...",
# "QOSMaxJobs...", "Resources") is not among them.
_NEVER = re.compile(
    r"Partition(TimeLimit|NodeLimit|Inactive)|BadConstraints|AccountNotAllowed"
    r"|QOSNotAllowed|QOSTimeLimit|Invalid(Account|QOS)|JobHeld(Admin|User)"
    r"|DependencyNeverSatisfied|\w*PerJob(Limit)?$|\w*MaxWallDuration\w*"
)
# The controller is away, overloaded, or full of this user's jobs: worth another try.
_BUSY = re.compile(
    r"unable to contact|connection (refused|reset|fail)|connect failure|timed out"
    r"|zero bytes were transmitted|unexpected message received|message .*failure"
    r"|communication|temporar|try again|resource busy|standby mode|MaxSubmit\w*",
    re.IGNORECASE,
)
# Partition (the default with an asterisk), availability, limit, nodes, CPUs, MB, GPUs.
_NODES_FORMAT = "%P|%a|%l|%D|%c|%m|%G"
# gpu:4, gpu:a100:4, gpu:a100:4(S:0-1); a MIG slice's type has dots.
_GPUS = re.compile(r"gpu(?::(?P<type>[^:,(]+))?:(?P<count>\d+)(?:\([^)]*\))?$")
_CLUSTER = re.compile(r"^ClusterName\s*=\s*(\S+)", re.MULTILINE)
_BETWEEN_ENTRIES = re.compile(r",(?![^(]*\))")


class SlurmClient:
    """SLURM, through ``sbatch``, ``squeue``, ``scancel`` and ``sinfo``."""

    def __init__(self) -> None:
        self._job_class = job_class("dask_jobqueue.slurm:SLURMJob", busy=_BUSY)

    def job(self, name: str, script: str = "", job_id: str | None = None) -> BatchJob:
        """Return a job; see :class:`BatchClient`."""
        job = self._job_class(name, script, job_id)
        # A number may have been given to another job since.
        job.cancel_command = f"scancel --name={shlex.quote(name)}"
        return cast(BatchJob, job)

    async def look(self, jobs: Mapping[str, str]) -> dict[str, JobView]:
        """Return what ``squeue`` shows of jobs; see :class:`BatchClient`."""
        ids = f"--jobs={','.join(jobs.values())}"
        answer = await ask(
            ["squeue", "--noheader", "--states=all", ids, "-o", _JOBS_FORMAT]
        )
        # What SLURM says when it knows none of the jobs.
        if answer.status and "Invalid job id" not in answer.errors:
            raise ClusterError(f"squeue: {answer.errors or answer.status}")

        lines = answer.output.splitlines()
        seen = dict(_line(line) for line in lines if line.count("|") >= _BARS)

        stray = [line for line in lines if line.strip() and line.count("|") < _BARS]
        if stray and not seen.keys() >= {*jobs.values()}:
            raise ClusterError(f"squeue said {stray[0].strip()!r}, and not all jobs.")

        return {name: seen[job_id] for name, job_id in jobs.items() if job_id in seen}

    @staticmethod
    def survey() -> Inventory:
        """Return what ``sinfo`` and others list; see :class:`BatchClient`."""
        options = ["--noheader", "--exact", "--all", f"--format={_NODES_FORMAT}"]
        rows: dict[str, list[list[str]]] = {}

        lines = said_by(["sinfo", *options]).splitlines()
        for line in filter(None, map(str.strip, lines)):
            partition, *row = line.split("|")
            rows.setdefault(partition, []).append(row)

        name = _CLUSTER.search(said_by(["scontrol", "show", "config"]))
        return Inventory(
            scheduler="slurm",
            cluster_name=name[1] if name else "slurm",
            queues=tuple(
                Queue(
                    name=partition.removesuffix("*"),
                    groups=tuple(
                        _group(*fields[2:]) for fields in found if int(fields[2])
                    ),
                    is_default=partition.endswith("*"),
                    is_open=found[0][0] == "up",
                    max_walltime_s=seconds(found[0][1]),
                )
                for partition, found in rows.items()
            ),
            accounts=tuple(_accounts()),
            gpu_settings={"gpu_request": "gres"},
        )

    @staticmethod
    def accounted(job_ids: Sequence[str]) -> dict[str, AccountedJob]:
        """Return what ``sacct`` says of jobs; see :class:`BatchClient`."""
        return accounted_jobs(job_ids)

    @staticmethod
    def queue_waits(queue: str | None) -> list[JobWait]:
        """Return what ``sacct`` says of a partition; see :class:`BatchClient`."""
        return queue_waits(queue)

    @staticmethod
    def nodes_may_submit(queue: str | None) -> bool | None:
        """Read it from the partition's ``AllocNodes``; see :class:`BatchClient`."""
        named = [queue] if queue else []
        partitions = answered(["scontrol", "--oneliner", "show", "partition", *named])
        allowed = set(re.findall(r"\bAllocNodes=(\S+)", partitions.output))
        return allowed == {"ALL"} if allowed else None


def _line(line: str) -> tuple[str, JobView]:
    job_id, word, reason, start, left = line.strip().split("|", 4)
    state = _STATES.get(word, JobState.ENDED)
    end_cause = _END_CAUSES.get(word, _END_CAUSES.get(reason, EndCause.OTHER))

    reason = "" if reason == "None" else reason
    if state is not JobState.PENDING and word != "RUNNING":
        reason = f"{word} ({reason})" if reason else word

    return job_id, JobView(
        state=state,
        reason=reason,
        can_never_run=state is JobState.PENDING and bool(_NEVER.match(reason)),
        estimated_start=None if start in ("N/A", "") else start,
        remaining_s=seconds(left) if word == "RUNNING" else None,
        is_leaving=word == _LEAVING,
        is_suspended=word in _SUSPENDED,
        end_cause=end_cause,
    )


def _group(num_nodes: str, cores: str, megabytes: str, gres: str) -> NodeGroup:
    gpus = [
        found
        for entry in _BETWEEN_ENTRIES.split(gres)
        if (found := _GPUS.match(entry.strip()))
    ]
    types = {found["type"] for found in gpus}
    return NodeGroup(
        num_nodes=int(num_nodes),
        # "32+": 32 or more.
        cores=int(cores.rstrip("+")),
        memory_bytes=int(megabytes.rstrip("+")) * 2**20 or None,
        gpus=sum(int(found["count"]) for found in gpus),
        gpu_type=types.pop() if len(types) == 1 else None,
    )


def _accounts() -> list[str]:
    query = ["sacctmgr", "--noheader", "--parsable2", "show"]
    user = getpass.getuser()
    try:
        default = said_by([*query, "user", user, "format=DefaultAccount"])
        known = said_by([*query, "assoc", f"user={user}", "format=Account"])
    except ClusterError:  # SLURM keeps no accounts here
        return []
    return list(dict.fromkeys(f"{default}\n{known}".split()))
