"""The result of an attempt that ran a command: its outcome and measured columns."""

import json
import platform
import traceback
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import metadata
from typing import Any

from scalelab._version import __version__
from scalelab.errors import SpecError
from scalelab.experiment.fingerprint import ACCEPT
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.launch.command.steps import StepLog
from scalelab.launch.verdict import fewest_steps
from scalelab.records.attempt import AttemptResult, encode_json


def refused(error: SpecError) -> AttemptResult:
    """Return the result of an attempt that was refused because of the user's input."""
    return AttemptResult(
        outcome=Outcome.REFUSED,
        reason=str(error),
        traceback="".join(traceback.format_exception_only(error)).strip(),
        input_error=str(error),
    )


def result_while_running(
    log: StepLog, trial: Trial, now_s: float
) -> AttemptResult | None:
    """Return the result if the attempt has measured enough by now, else None.

    A convergence trial ends at the first step *beyond* its limit of samples, because
    the evaluation at the limit itself is reported after the step.
    """
    if trial.kind is TrialKind.THROUGHPUT:
        return completed(log, trial) if log.is_precise(now_s) else None
    if log.reached_after_steps is not None:
        return completed(log, trial)
    limit = trial.measurement.max_samples
    is_over = limit is not None and log.samples_of(log.num_seen) > limit
    return _at_end_of_training(log, trial) if is_over else None


def result_at_exit(log: StepLog, trial: Trial, nothing_seen: str) -> AttemptResult:
    """Return the result of an attempt whose program has exited with status 0."""
    measured, measurement = log.intervals, trial.measurement
    needed = fewest_steps(trial)
    log.measure_enough()

    if log.last_step is None:
        reason = nothing_seen
    elif trial.kind is not TrialKind.THROUGHPUT:
        return _at_end_of_training(log, trial)
    elif measured.num_steps < needed:
        found = measured.num_evaluations
        beside = f", nor do {found} intervals that hold an evaluation" if found else ""
        reason = (
            f"the program ended by itself after {log.num_seen} steps, of which "
            f"{measured.num_steps} could be measured (warmup_steps="
            f"{measurement.warmup_steps} and what comes before the first report do not "
            f"count{beside}); at least {needed} are needed, and steps="
            f"{measurement.steps} were asked for. Let it train longer, or report more "
            "often"
        )
    elif measured.seconds <= 0:
        reason = (
            f"all {measured.num_steps} measured steps arrived at once, so their times "
            "are not known. Flush the output after each line, or report seconds as t"
        )
    else:
        result = completed(log, trial)
        missed = measurement.steps - measured.num_steps
        columns = {"steps_missed": missed} if missed > 0 else {}
        return replace(result, measurements={**result.measurements, **columns})

    return AttemptResult(outcome=Outcome.FAILED, reason=reason, rank=0)


def completed(log: StepLog, trial: Trial) -> AttemptResult:
    """Return the result of an attempt that measured what it was to measure.

    Where a command does not say when it evaluates, the time to the target includes the
    evaluations, and the step time of a trial that evaluates is left out: the laws of
    step time are about training alone.
    """
    columns: dict[str, Any] = {
        "num_samples": log.samples_of(log.num_seen),
        "num_steps": log.intervals.num_steps,
        "versions": _versions(),
        "first_losses": log.first_losses,
        "diverged": bool(log.diverged),
    }
    if trial.kind is not TrialKind.THROUGHPUT:
        columns |= _target_columns(log, trial)
    if trial.kind is TrialKind.THROUGHPUT or log.names_evaluations:
        columns |= log.step_columns()

    columns |= log.evaluation_columns()
    return AttemptResult(outcome=Outcome.COMPLETED, measurements=columns)


def _at_end_of_training(log: StepLog, trial: Trial) -> AttemptResult:
    target = trial.measurement.target
    wanted = {ACCEPT: trial.measurement.judged_by}
    if target is not None and log.reached_after_steps is None:
        wanted["target"] = (target.metric,)

    for key, names in wanted.items():
        if missing := [name for name in names if name not in log.metrics]:
            known = ", ".join(sorted(log.metrics)) or "none"
            reason = f"{key} metric {missing[0]!r} was never reported by the command."
            return refused(
                SpecError(
                    f"{reason} It reported these metrics: {known}.",
                    code="metric_not_reported",
                )
            )

    result, samples = completed(log, trial), log.samples_of(log.num_seen)
    if log.reached_after_steps is not None or not (target or log.diverged):
        return result

    reason = " ".join(
        f"Diverged: {name} was {value} after {samples} samples."
        for name, value in log.diverged.items()
    )
    if target is not None and not reason:
        reason = (
            f"{target} was not reached after {samples} samples; the last value is "
            f"{log.metrics[target.metric]:.4g}."
        )
    return replace(result, outcome=Outcome.TARGET_NOT_REACHED, reason=reason)


def _target_columns(log: StepLog, trial: Trial) -> dict[str, Any]:
    target, columns = trial.measurement.target, dict[str, Any]()
    if log.metrics:
        metrics = dict.fromkeys(log.metrics) if log.diverged else log.metrics
        columns["final_metrics"] = encode_json(metrics).decode()
    if target is None:
        return columns

    columns["reached_target"] = log.reached_after_steps is not None
    if target.metric in log.metrics and not log.diverged:
        columns["final_metric"] = log.metrics[target.metric]
    if (steps := log.reached_after_steps) is not None:
        samples = log.samples_of(steps)
        columns |= {"steps_to_target": steps, "samples_to_target": samples}
    if (seconds := log.seconds_to_target()) is not None:
        columns["time_to_target_s"] = seconds

    return columns


@cache
def _versions() -> str:
    known = {"scalelab": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            known[package] = metadata.version(package)
    return json.dumps(known)
