"""The job afterwards: what was predicted of it beside what was true, and why."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

from scalelab.inputs.numerals import Interval
from scalelab.plan.first_check import DOUBTED_BEYOND, factor
from scalelab.recommend.afterwards.promise import Promise
from scalelab.records.afterwards.accounted_job import AccountedJob
from scalelab.records.afterwards.job_steps import JobSteps

Judgement = Literal["within", "above", "below"]
CauseKind = Literal[
    "another_batch",
    "other_devices",
    "other_code",
    "slower_node",
    "faster_nodes",
    "input",
    "start_up",
    "pauses",
]

# A part is a cause where it explains so much of what a job took longer
_EXPLAINS = 0.25
# and is so much of the predicted step; and a host is unlike others by such a factor
_MATTERS, _APART = 0.1, 1.25
_MEMORY_ALIKE = 0.1
_LEAST_START_UP_S = 5.0
_CLOCK_S = 1.0  # of a batch system, which accounts whole seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One quantity: predicted, true, and whether that is within the interval."""

    name: str  # step_time_s, time_s, gpu_hours or peak_bytes
    predicted: Interval
    true: float
    grain: float = 0.0  # by which the true value may be off, as it was rounded

    @property
    def judgement(self) -> Judgement:
        """Where the true value lies: within the interval, above it or below."""
        if self.true - self.grain > self.predicted.hi:
            return "above"
        return "below" if self.true + self.grain < self.predicted.lo else "within"

    @property
    def is_far(self) -> bool:
        """Whether it is outside the interval by what needs an explanation."""
        is_off = abs(self.true / self.predicted.value - 1) > _MATTERS
        return is_off and self.judgement != "within"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Why a job was not as predicted; units are in the names of the values."""

    kind: CauseKind
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowedJob:
    """A job beside its answer.

    Parameters
    ----------
    compared
        What could be compared, in order.
    causes
        Why it was not as predicted; empty: nothing that was seen differs.
    """

    promise: Promise
    steps: JobSteps | None
    accounted: AccountedJob | None
    compared: tuple[Compared, ...]
    causes: tuple[Cause, ...]

    @property
    def was_as_asked(self) -> bool:
        """Whether the job was the one that the answer is about."""
        others = ("another_batch", "other_devices", "other_code")
        return not any(cause.kind in others for cause in self.causes)


def compare_job(
    promise: Promise,
    steps: JobSteps | None,
    accounted: AccountedJob | None,
    trials: Sequence[JobSteps],
) -> FollowedJob:
    """Hold a job against what an answer has said of it.

    Parameters
    ----------
    promise
        What was said.
    steps
        What was seen of its steps; None: nothing.
    accounted
        What the batch system accounts; None: it was not asked, or does not know.
    trials
        What was seen of trials of the same local batch, the most alike first.
    """
    compared = tuple(_compared(promise, steps, accounted, trials))
    causes = [*_of_another_job(promise, steps, accounted, trials)]
    if not causes and steps is not None:
        by_name = {quantity.name: quantity for quantity in compared}
        causes += _of_steps(steps, trials, by_name.get("step_time_s"))
        causes += _beside_steps(promise, steps, accounted, by_name.get("time_s"))
    return FollowedJob(
        promise=promise,
        steps=steps,
        accounted=accounted,
        compared=compared,
        causes=tuple(causes),
    )


def _compared(
    promise: Promise,
    steps: JobSteps | None,
    accounted: AccountedJob | None,
    trials: Sequence[JobSteps],
) -> Iterator[Compared]:
    if steps is not None and steps.step_time_s is not None:
        yield Compared(
            name="step_time_s", predicted=promise.step_time_s, true=steps.step_time_s
        )

    num_steps = promise.num_steps if steps is None else steps.num_steps
    if accounted is not None and (steps is not None or accounted.did_complete):
        time_s = promise.time_of(num_steps)
        yield Compared(
            name="time_s",
            predicted=time_s,
            true=accounted.elapsed_s,
            grain=_CLOCK_S,
        )
        hours = promise.gpu_hours * (time_s.value / promise.time_s.value)
        devices = accounted.num_gpus or promise.world_size
        per_second = devices / 3600
        yield Compared(
            name="gpu_hours",
            predicted=hours,
            true=accounted.elapsed_s * per_second,
            grain=_CLOCK_S * per_second,
        )

    peaks = [trial.peak_bytes for trial in trials if trial.peak_bytes]
    if peaks and steps is not None and steps.peak_bytes:
        most = max(peaks)
        alike = {"lo": 1 - _MEMORY_ALIKE, "value": 1.0, "hi": 1 + _MEMORY_ALIKE}
        yield Compared(
            name="peak_bytes",
            predicted=Interval(**{name: most * share for name, share in alike.items()}),
            true=steps.peak_bytes,
        )


def _of_another_job(
    promise: Promise,
    steps: JobSteps | None,
    accounted: AccountedJob | None,
    trials: Sequence[JobSteps],
) -> Iterator[Cause]:
    """Yield in what the job was another one than the answer is about."""
    batch = steps and steps.global_batch_size
    drawn = [*filter(None, (trial.global_batch_size for trial in trials))]
    usual = fmean(drawn or [promise.global_batch_size])
    if batch and factor(batch, usual) > DOUBTED_BEYOND:
        values = {"true": batch, "asked": promise.global_batch_size}
        yield Cause(kind="another_batch", values=values)

    if accounted is not None:
        nodes = (accounted.num_nodes, promise.num_nodes)
        devices = (accounted.num_gpus or promise.world_size, promise.world_size)
        if nodes[0] != nodes[1] or devices[0] != devices[1]:
            values = {
                "num_devices": devices[0],
                "num_nodes": nodes[0],
                "asked_devices": devices[1],
                "asked_nodes": nodes[1],
            }
            yield Cause(kind="other_devices", values=values)

    known = {trial.code for trial in trials} - {None}
    if steps and steps.code is not None and known and steps.code not in known:
        yield Cause(kind="other_code")


def _of_steps(
    steps: JobSteps, trials: Sequence[JobSteps], compared: Compared | None
) -> Iterator[Cause]:
    """Yield why its steps took longer than predicted, or shorter."""
    if compared is None or compared.judgement == "within":
        return

    # Signs are such that what explains the difference is positive
    sign = 1.0 if compared.judgement == "above" else -1.0
    usual_s = compared.predicted.value
    least_s = max(_EXPLAINS * abs(compared.true - usual_s), _MATTERS * usual_s)
    yield from _of_nodes(steps, trials, sign, least_s)

    waits = [trial.data_wait_s for trial in trials if trial.data_wait_s is not None]
    if steps.data_wait_s is not None and waits:
        wait_s = fmean(waits)
        if sign * (steps.data_wait_s - wait_s) >= least_s:
            values = {"wait_s": steps.data_wait_s, "usual_s": wait_s}
            yield Cause(kind="input", values=values)


def _of_nodes(
    steps: JobSteps, trials: Sequence[JobSteps], sign: float, least_s: float
) -> Iterator[Cause]:
    """Yield on which nodes a forward pass took another time than usual.

    Usual is that of the trials, or where they do not tell, of the job's other nodes.
    """
    in_trials = [s for trial in trials for s in trial.forward_s.values()]
    unlike = {}
    for host, seconds in steps.forward_s.items():
        others = [s for name, s in steps.forward_s.items() if name != host]
        base_s = median(in_trials or others or [seconds])
        is_apart = factor(seconds, base_s) > _APART
        if is_apart and sign * (seconds - base_s) >= least_s:
            unlike[host] = seconds / base_s

    # all ranks wait for the slowest, so a faster one explains nothing
    are_all = len(unlike) == len(steps.forward_s)
    if unlike and (sign > 0 or are_all):
        values = {
            "hosts": [*unlike],
            "ratio": median(unlike.values()),
            "of_trials": bool(in_trials),
            "are_all": are_all,
        }
        kind: CauseKind = "slower_node" if sign > 0 else "faster_nodes"
        yield Cause(kind=kind, values=values)


def _beside_steps(
    promise: Promise,
    steps: JobSteps,
    accounted: AccountedJob | None,
    compared: Compared | None,
) -> Iterator[Cause]:
    """Yield what took longer than predicted beside its steps."""
    if compared is None or compared.judgement != "above" or accounted is None:
        return
    started_s, began_s, ended_s = accounted.started_s, steps.began_s, steps.ended_s
    if started_s is None or began_s is None or ended_s is None:
        return

    longer_s = _EXPLAINS * (compared.true - compared.predicted.value)
    start_up_s = began_s - started_s
    more_s = start_up_s - promise.start_up_s
    if more_s >= max(longer_s, _LEAST_START_UP_S):
        values = {"start_up_s": start_up_s, "usual_s": promise.start_up_s}
        yield Cause(kind="start_up", values=values)

    in_steps_s = steps.num_steps * (steps.step_time_s or 0.0)
    between_s = ended_s - began_s - in_steps_s
    if between_s >= max(longer_s, _LEAST_START_UP_S):
        yield Cause(kind="pauses", values={"seconds": between_s})
