"""The programs of SLURM: jobs submitted and looked at, and the cluster surveyed."""

import getpass
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from scalelab.cluster.batch.programs import answered, ask, job_class, said_by
from scalelab.cluster.batch.queue import BatchJob, EndCause, JobState, JobView, seconds
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
_FIELDS = (
    *("JobIDRaw", "JobID", "JobName", "State", "NNodes", "AllocCPUS", "AllocTRES"),
    *("TimelimitRaw", "Submit", "Start", "ElapsedRaw", "TotalCPU"),
    *("TRESUsageInTot", "TRESUsageInAve", "WorkDir"),
)
_OF_QUEUE = ("State", "ReqCPUS", "ReqTRES", "TimelimitRaw", "Eligible", "Start")
_SINCE = "now-30days"
_ANSWER_OF_ALL_S = 10.0  # in which accounting must answer for the jobs of all users
_BETWEEN = "\x1f"
_GPU_TYPE = re.compile(r"gres/gpu:([^=,]+)=")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LOG = re.compile(r"^ +StdOut=(.+)$", re.MULTILINE)


def accounted_jobs(job_ids: Sequence[str]) -> dict[str, AccountedJob]:
    """Return what is known of jobs, by the ids that were asked; unknown ones are not.

    Raises
    ------
    ClusterError
        SLURM keeps no accounts, or does not answer.
    """
    rows = _rows([f"--jobs={','.join(job_ids)}"], _FIELDS)
    steps: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        job_id, _, step = row["JobIDRaw"].partition(".")
        if step:
            steps.setdefault(job_id, []).append(row)

    found = {}
    for row in rows:
        names = {row["JobID"], row["JobIDRaw"]} & {*job_ids}
        for name in names:
            found[name] = _job(row, steps.get(row["JobIDRaw"], []))
    return found


def _job(row: Mapping[str, str], steps: Sequence[Mapping[str, str]]) -> AccountedJob:
    held = _resources(row["AllocTRES"])
    used = [_resources(step["TRESUsageInTot"]) for step in steps]
    peaks = [size for step in used if (size := _amount(step.get("mem"))) is not None]
    shares = [_resources(step["TRESUsageInAve"]).get("gres/gpuutil") for step in steps]
    busy = [share for text in shares if (share := _amount(text)) is not None]

    # CANCELLED by 1000
    state, limit = row["State"].split()[0], _amount(row["TimelimitRaw"])
    return AccountedJob(
        job_id=row["JobIDRaw"],
        name=row["JobName"],
        state=state,
        did_complete=state == "COMPLETED",
        num_nodes=int(row["NNodes"]),
        num_cores=int(row["AllocCPUS"]),
        num_gpus=int(_amount(held.get("gres/gpu")) or 0),
        gpu_type=next(iter(_GPU_TYPE.findall(row["AllocTRES"])), None),
        submitted_s=_amount(row["Submit"]),
        started_s=_amount(row["Start"]),
        elapsed_s=_amount(row["ElapsedRaw"]) or 0.0,
        limit_s=None if limit is None else 60 * limit,
        cpu_s=_clock(row["TotalCPU"]),
        memory_asked_bytes=_amount(held.get("mem")),
        memory_used_bytes=max(peaks, default=None),
        gpu_utilization=max(busy) / 100 if busy else None,
        log=_log(row["JobIDRaw"], row["WorkDir"]),
    )


def _resources(text: str) -> dict[str, str]:
    """Return the trackable resources of ``cpu=4,gres/gpu=2,mem=2G`` by name."""
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: amount for name, _, amount in pairs}


def _amount(text: str | None) -> float | None:
    """Return a number, or a size in bytes; None where it says neither.

    >>> _amount("1.5G"), _amount("87"), _amount("Unknown")
    (1610612736.0, 87.0, None)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text or "")
    return float(found[1]) * _UNITS[found[2]] if found else None


def _clock(text: str) -> float | None:
    """Return the seconds of ``1-02:03:04`` or ``02:03.456``.

    >>> _clock("1-02:03:04"), _clock("02:03.456"), _clock("")
    (93784.0, 123.456, None)
    """
    days, _, clock = text.rpartition("-")
    with suppress(ValueError):
        parts = [0.0, 0.0, *map(float, clock.split(":"))][-3:]
        hours, minutes, seconds = parts
        return 86400 * int(days or 0) + 3600 * hours + 60 * minutes + seconds
    return None


def _log(job_id: str, directory: str) -> str | None:
    # the controller forgets a job minutes after its end; the default name stays
    known = _LOG.search(answered(["scontrol", "show", "job", job_id]).output)
    log = known[1] if known else f"{directory}/slurm-{job_id}.out"
    return log if Path(log).is_file() else None


def queue_waits(partition: str | None) -> list[JobWait]:
    """Return what jobs of all users waited in the last thirty days.

    Raises
    ------
    ClusterError
        SLURM keeps no accounts, or does not answer within ten seconds.
    """
    options = ["--allusers", "--allocations", f"--starttime={_SINCE}"]
    if partition is not None:
        options.append(f"--partition={partition}")
    now_s, found = time.time(), []
    for row in _rows(options, _OF_QUEUE, timeout_s=_ANSWER_OF_ALL_S):
        eligible_s, started_s = _amount(row["Eligible"]), _amount(row["Start"])
        is_pending = row["State"] == "PENDING"
        # one that was cancelled before it started says nothing
        if eligible_s is None or (started_s is None and not is_pending):
            continue
        gpus = _amount(_resources(row["ReqTRES"]).get("gres/gpu"))
        limit = _amount(row["TimelimitRaw"])
        until_s = now_s if started_s is None or is_pending else started_s
        found.append(
            JobWait(
                num_devices=int(gpus or row["ReqCPUS"]),
                limit_s=None if limit is None else 60 * limit,
                submitted_s=eligible_s,
                wait_s=max(0.0, until_s - eligible_s),
                has_started=not is_pending,
            )
        )
    return found


def _rows(
    options: Sequence[str], fields: Sequence[str], timeout_s: float | None = None
) -> list[dict[str, str]]:
    """Return what ``sacct`` lists, by field; times are seconds since 1970."""
    form = ["--parsable2", "--noheader", f"--delimiter={_BETWEEN}"]
    argv = ["sacct", *form, *options, f"--format={','.join(fields)}"]
    answer = answered(argv, {"SLURM_TIME_FORMAT": "%s"}, timeout_s)
    if answer.status:
        # the last line says why it gave up
        *_, why = answer.errors.splitlines() or [f"it ended with {answer.status}"]
        raise ClusterError(f"sacct says nothing of jobs: {why.strip().rstrip('.')}.")

    lines = list[str]()
    for line in answer.output.split("\n"):
        if lines and lines[-1].count(_BETWEEN) < len(fields) - 1:
            lines[-1] += f"\n{line}"  # the name of a job may hold a line end
        else:
            lines.append(line)

    rows = (line.split(_BETWEEN) for line in lines)
    return [dict(zip(fields, r, strict=True)) for r in rows if len(r) == len(fields)]


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
