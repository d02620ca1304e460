"""SLURM's accounting: what ``sacct`` says of jobs that run or have ended."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scalelab.cluster.batch.programs import answered
from scalelab.errors import ClusterError
from scalelab.records.afterwards.accounted_job import AccountedJob
from scalelab.records.afterwards.waits import JobWait

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
