"""The job afterwards in words: a table, why it was not as predicted, what it used."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scalelab.inputs.lines import aligned
from scalelab.inputs.numerals import (
    counted,
    duration,
    duration_ends,
    number,
    percent,
)
from scalelab.recommend.afterwards.comparing import (
    Cause,
    CauseKind,
    Compared,
    FollowedJob,
)
from scalelab.records.afterwards.accounted_job import AccountedJob

_JUDGED = {
    "step_time_s": {"above": "slower", "below": "faster"},
    "time_s": {"above": "slower", "below": "faster"},
    "gpu_hours": {"above": "more", "below": "less"},
    "peak_bytes": {"above": "more", "below": "less"},
}
_NAMES = {"step_time_s": "step time", "time_s": "time", "peak_bytes": "peak memory"}
_GIB = 2**30
# of what was used, in a request for the next time; and below which share it is named
_ROOM, _AMPLE = 1.25, 0.5
_GRAIN_S = 300.0


def followed_lines(job: FollowedJob) -> list[str]:
    """Return what a job was beside its answer, and why."""
    promise = job.promise
    rows: list[tuple[str, ...]] = [("", "predicted", percent(promise.mass), "true", "")]
    rows += [_row(compared, promise.device_hour_word) for compared in job.compared]
    table = aligned(rows, left=(True, False, False, False, True)) if rows[1:] else []
    return [*table, *_why(job)]


def _row(compared: Compared, hour_word: str) -> tuple[str, ...]:
    name, predicted = compared.name, compared.predicted
    values: tuple[str, ...]
    if name in ("step_time_s", "time_s"):
        values = (
            duration(predicted.value),
            duration_ends(predicted),
            duration(compared.true),
        )
    elif name == "peak_bytes":
        values = (
            f"{number(predicted.value / _GIB)} GiB",
            "",
            f"{number(compared.true / _GIB)} GiB",
        )
    else:
        ends = f"{number(predicted.lo)}-{number(predicted.hi)}"
        values = (number(predicted.value), ends, number(compared.true))

    judged = _JUDGED[name].get(compared.judgement, "within")
    return (_NAMES.get(name, hour_word), *values, judged)


def _why(job: FollowedJob) -> Iterator[str]:
    for place, cause in enumerate(job.causes):
        lead = "Also" if place else "Why"
        yield f"{lead}: {cause_in_words(cause, job.promise.device_word)}"

    if not job.causes and any(compared.is_far for compared in job.compared):
        yield _unexplained(job)


def _unexplained(job: FollowedJob) -> str:
    steps = job.steps
    if steps is None or not steps.forward_s:
        return (
            "Why: not known. Nothing was seen inside the job; the script that "
            "`scalelab recommend --sbatch` prints records its steps, batches and waits."
        )
    return (
        "Why: not known. Its devices, batches and code are those of the answer, and no "
        "node, input, start-up or pause explains it."
    )


def cause_in_words(cause: Cause, device_word: str) -> str:
    """Say why a job was not as predicted, in a sentence."""
    return _CAUSES[cause.kind](cause.values, device_word)


def _other_devices(values: Mapping[str, Any], device_word: str) -> str:
    had, asked = (
        f"{counted(values[devices], device_word)} on {counted(values[nodes], 'node')}"
        for devices, nodes in (
            ("num_devices", "num_nodes"),
            ("asked_devices", "asked_nodes"),
        )
    )
    return f"another allocation. It held {had}; the answer is about {asked}."


def _nodes(values: Mapping[str, Any], _: str) -> str:
    hosts, ratio = ", ".join(values["hosts"]), number(values["ratio"])
    than = "in the trials" if values["of_trials"] else "on its other nodes"
    which = "slower nodes, all of them" if values["are_all"] else "a slower node"
    if values["ratio"] < 1:
        which = "faster nodes, or ones that nothing else used meanwhile"
    return (
        f"{which}. On {hosts} a forward pass, which waits for nobody, took {ratio} "
        f"times as long as {than}."
    )


_CAUSES: Mapping[CauseKind, Callable[[Mapping[str, Any], str], str]] = {
    "another_batch": lambda values, _: (
        f"another batch. A step drew {number(values['true'])} samples; the answer is "
        f"about {number(values['asked'])}."
    ),
    "other_devices": _other_devices,
    "other_code": lambda values, _: (
        "other code. The program's own files are not those that the trials ran."
    ),
    "slower_node": _nodes,
    "faster_nodes": _nodes,
    "input": lambda values, _: (
        f"its input. A step waited {duration(values['wait_s'])} for its batch, in the "
        f"trials {duration(values['usual_s'])}."
    ),
    "start_up": lambda values, _: (
        f"its start-up. The first step came after {duration(values['start_up_s'])}; "
        f"the answer has {duration(values['usual_s'])} for it."
    ),
    "pauses": lambda values, _: (
        f"pauses. {duration(values['seconds'])} between its steps were no steps: "
        "checkpoints, evaluations or waits."
    ),
}


def usage_lines(job: AccountedJob) -> list[str]:
    """Return what a job used of what it asked for, and what would have done."""
    rows = [("time", duration(job.elapsed_s), _time_asked(job))]

    used, asked = job.memory_used_bytes, job.memory_asked_bytes
    if used and asked:
        words = f"of {number(asked / _GIB)} GiB asked for ({percent(used / asked)})"
        if _may_ask_less(job, used, asked):
            words += f"; {number(_ROOM * used / _GIB)} GiB would do"
        rows.append(("memory of the nodes", f"{number(used / _GIB)} GiB", words))

    if job.cpu_s is not None and job.elapsed_s and job.num_cores:
        busy = job.cpu_s / job.elapsed_s
        words = f"of {job.num_cores} busy on average ({percent(busy / job.num_cores)})"
        rows.append(("cores", number(busy), words))

    if job.num_gpus:
        words = "how busy they were is not known to the batch system"
        if job.gpu_utilization is not None:
            words = f"busy {percent(job.gpu_utilization)} of the time"
        rows.append(("GPUs", f"{job.num_gpus}", words))

    return aligned(rows, left=(True, False, True))


def _time_asked(job: AccountedJob) -> str:
    if not job.limit_s:
        return "without a limit"
    share = percent(job.elapsed_s / job.limit_s)
    words = f"of {duration(job.limit_s)} asked for ({share})"
    enough_s = max(1, math.ceil(_ROOM * job.elapsed_s / _GRAIN_S)) * _GRAIN_S
    if _may_ask_less(job, enough_s / _ROOM, job.limit_s):
        words += f"; {duration(enough_s)} would do"
    return words


def _may_ask_less(job: AccountedJob, used: float, asked: float) -> bool:
    """Tell whether what a job has used, with room, is far less than it asked for."""
    return job.did_complete and _ROOM * used < _AMPLE * asked
