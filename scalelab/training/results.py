"""The measurements of an attempt, computed from the readings of its ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.launch.steady import cycle_means, interval_columns
from scalelab.records.attempt import AttemptResult
from scalelab.records.attempt_io import encode_json
from scalelab.training.loop import Ending, StepTally
from scalelab.training.probes.meter import Phase, Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReadings:
    """The measurements of one rank and its device; None where unknown."""

    steps: Seconds  # its clock after warm-up, shape (num_steps, 4)
    peak_memory_bytes: int | None
    device_memory_bytes: int | None
    utilization: float | None
    energy_j: float | None
    power_w: float | None
    validity: tuple[str, ...] = ()  # what makes its times unfit for a fit

    def sent(self) -> dict[str, Any]:
        """Return what another rank makes the same readings of; see :meth:`received`."""
        return {**asdict(self), "steps": torch.from_numpy(self.steps)}

    @classmethod
    def received(cls, values: dict[str, Any]) -> RankReadings:
        """Return the readings that a rank sent."""
        return cls(**{**values, "steps": values["steps"].numpy()})


def validity_of(ranks: Sequence[RankReadings]) -> list[str] | None:
    """Return the reasons why times of any rank are unfit for a law; None: no reason."""
    return sorted({reason for rank in ranks for reason in rank.validity}) or None


def step_columns(
    ranks: Sequence[Seconds], global_batch_size: int, *, cycle: int = 1
) -> dict[str, Any]:
    """Return step time, its interval, its phases and the throughput, by column.

    The step time is the mean of the slowest rank, and the throughput is the samples of
    all ranks over that rank's clock. A phase is a mean over steps and ranks: ranks that
    keep step differ in where they spend their time, not in how much they need.

    ``ranks`` are their clocks, shape (num_steps, 4), in seconds; the same steps on all.

    Examples
    --------
    >>> import numpy as np
    >>> fast, slow = np.array([[0, 1, 1, 0]] * 4), np.array([[0, 2.5, 0, 0]] * 4)
    >>> columns = step_columns([fast, slow], global_batch_size=10)
    >>> columns["step_time_s"], columns["throughput_samples_per_s"]
    (2.5, 4.0)
    """
    num_steps = len(ranks[0])
    columns: dict[str, Any] = {"num_steps": num_steps}
    if num_steps == 0:
        return columns

    slowest = max(ranks, key=lambda steps: float(steps.sum())).sum(axis=1)
    step_time_s = float(slowest.mean())
    columns["step_time_s"] = step_time_s
    columns["throughput_samples_per_s"] = global_batch_size / step_time_s

    if num_steps >= 4 * cycle:
        columns |= interval_columns(cycle_means(slowest, cycle), step_time_s)

    for phase in Phase:
        means = [float(steps[:, phase].mean()) for steps in ranks]
        columns[phase.column] = sum(means) / len(means)

    return columns


def device_columns(ranks: Sequence[RankReadings]) -> dict[str, Any]:
    """Return memory, utilisation and energy over the ranks' devices, by column."""
    peaks = [r.peak_memory_bytes for r in ranks if r.peak_memory_bytes is not None]
    sizes = [r.device_memory_bytes for r in ranks if r.device_memory_bytes is not None]
    shares = [r.utilization for r in ranks if r.utilization is not None]
    joules = [r.energy_j for r in ranks if r.energy_j is not None]
    watts = [r.power_w for r in ranks if r.power_w is not None]
    # A sum over some of the devices would be mistaken for the sum over all.
    is_whole = len(joules) == len(ranks)

    return {
        "gpu_memory_peak_bytes": max(peaks, default=None),
        "gpu_memory_bytes": min(sizes, default=None),
        "gpu_utilization": sum(shares) / len(shares) if shares else None,
        "energy_j": sum(joules) if is_whole else None,
        "energy_source": "measured" if is_whole else None,
        "device_power_w": sum(watts) / len(ranks) if len(watts) == len(ranks) else None,
    }


def target_columns(
    tally: StepTally, trial: Trial, default_metric: str
) -> dict[str, Any]:
    """Return the results of the evaluations by column; empty without evaluations."""
    if trial.kind is TrialKind.THROUGHPUT:
        return {}
    target = trial.measurement.target
    metric = target.metric if target else default_metric
    # Where training diverged after them, they are those of no model.
    last = tally.metrics.get(metric)
    is_lost = tally.ending is Ending.DIVERGED or not math.isfinite(last or 0.0)
    metrics = dict.fromkeys(tally.metrics) if is_lost else tally.metrics
    step = tally.target_step

    return {
        "evaluation_s": tally.evaluation_s,
        "evaluation_interval_samples": trial.measurement.evaluate_every_samples,
        "diverged": is_lost,
        "final_metric": None if is_lost else last,
        "final_metrics": encode_json(metrics).decode() if metrics else None,
        "reached_target": step is not None if target else None,
        "steps_to_target": step,
        "samples_to_target": None if step is None else step * trial.global_batch_size,
        "time_to_target_s": tally.target_s,
    }


def conclude(
    tally: StepTally, trial: Trial, measurements: Mapping[str, Any]
) -> AttemptResult:
    """Return the result of an attempt whose ranks all ended without an error."""
    outcome, reason = Outcome.COMPLETED, ""
    target = trial.measurement.target

    at = f"after {tally.step * trial.global_batch_size} samples"
    if tally.ending is Ending.STOPPED:
        # Where ScaleLab has sent the signal, it knows a better reason.
        outcome, reason = Outcome.PREEMPTED, f"Ended by SIGTERM at step {tally.step}."
    elif tally.ending is Ending.OUT_OF_TIME:
        outcome = Outcome.PREEMPTED
        reason = f"Ended at step {tally.step}: the walltime of its nodes is nearly up."
    elif tally.pruned is not None:
        outcome, reason = Outcome.PRUNED, tally.pruned
    elif tally.ending is Ending.DIVERGED:
        outcome = Outcome.TARGET_NOT_REACHED
        reason = f"Diverged: the training loss was no longer finite {at}."
    elif trial.kind is not TrialKind.THROUGHPUT and target and not tally.target_step:
        last = tally.metrics.get(target.metric, float("nan"))
        outcome = Outcome.TARGET_NOT_REACHED
        reason = f"{target} was not reached {at}; the last value is {last:.4g}."

    known = {name: value for name, value in measurements.items() if value is not None}
    return AttemptResult(outcome=outcome, reason=reason, measurements=known)
