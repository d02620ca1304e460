"""The evidence that an attempt is completed: the steps in its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult
from scalelab.training.probes.steady import MIN_STEPS

# Programs leave out the last partial batch of an epoch, and report now and then.
_WHOLE = 0.9


def with_evidence(trial: Trial, result: AttemptResult) -> AttemptResult:
    """Return the first node's result; ``completed`` without enough steps is `failed`.

    Enough is what was asked for. A throughput trial may end early, when its mean is
    precise or its program has ended, but not before a mean can be; a trial that trains
    to a target ends when that is reached.
    """
    if result.outcome is not Outcome.COMPLETED:
        return result
    lacking = _lacking(trial, result.measurements)
    if lacking is None:
        return result
    reason = f"the attempt ended without an error, but its result holds {lacking}"
    return replace(result, outcome=Outcome.FAILED, reason=reason, rank=0)


def _lacking(trial: Trial, measured: Mapping[str, Any]) -> str | None:
    measurement = trial.measurement
    if trial.kind is TrialKind.THROUGHPUT:
        held, needed = measured.get("num_steps", 0), min(MIN_STEPS, measurement.steps)
        if held >= needed:
            return None
        return (
            f"{held} measured steps. At least {needed} are needed, and measure.steps="
            f"{measurement.steps} were asked for"
        )
    held, asked = measured.get("num_samples", 0), measurement.max_samples
    if asked is None or measured.get("reached_target") or held >= _WHOLE * asked:
        return None
    return f"{held} training samples, and {asked} were asked for"
