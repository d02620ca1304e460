from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_specs import command_spec

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.launch.command import results as command_results
from scalelab.launch.command.results import (
    refused,
    result_at_exit,
    result_while_running,
)
from scalelab.launch.command.steps import StepLog
from scalelab.reading.logs.lines import Report
from scalelab.records.observations import row


def trial(**changes: int | TrialKind | str) -> Trial:
    return command_spec(Path("/tmp/never"), code=Path("/tmp"), **changes).trial


def reported(of: Trial, num_steps: int, value: float | None = None) -> StepLog:
    """A command that took a second per step, and its metric at the last of them."""
    log = StepLog(of, may_repeat=False)
    for step in range(1, num_steps + 1):
        log.take([Report(step=step, samples=8 * step)], float(step))
    if value is not None:
        log.take([Report(step=None, metrics={"val_acc": value})], num_steps + 0.5)
    return log


def test_throughput_trial_is_done_after_its_steps() -> None:
    asked = trial(warmup_steps=2, steps=20)
    assert result_while_running(reported(asked, 21), asked, 0.0) is None
    result = result_while_running(reported(asked, 22), asked, 0.0)
    assert result.outcome is Outcome.COMPLETED
    versions = json.loads(result.measurements["versions"])
    assert {"scalelab", "python", "torch"} <= versions.keys()
    assert {k: v for k, v in result.measurements.items() if k != "versions"} == {
        "diverged": False,
        "num_samples": 176,
        "num_steps": 20,
        "step_time_s": 1.0,
        "step_time_lo_s": 1.0,
        "step_time_hi_s": 1.0,
        "settled": True,
        "first_losses": None,
        "throughput_samples_per_s": 8.0,
        "samples_witness": "log",
    }
    spec = command_spec(Path("/tmp/never"), code=Path("/tmp"))
    assert row(spec, result)["workload"] == "test"


def steps_of(asked: Trial, seconds: Sequence[float]) -> StepLog:
    """A command whose steps take these times, until it has measured enough."""
    log, now_s = StepLog(asked, may_repeat=False), 0.0
    for step, each in enumerate(seconds, start=1):
        now_s += each
        log.take([Report(step=step)], now_s)
        if result_while_running(log, asked, 0.0) is not None:
            break
    return log


@pytest.mark.parametrize(
    ("seconds", "num_seen", "warmup_steps", "bound"),
    [
        ([2.0] * 5 + [1.0] * 95, 25, 5, None),
        ([0.01 + 0.02 * 0.95**step for step in range(300)], 160, 80, None),
        # It ends after ten times its steps.
        ([0.01 + 0.001 * step for step in range(300)], 200, 160, "at_least"),
        ([0.01 + 0.2 * 0.99**step for step in range(300)], 200, 160, "at_most"),
        # It ends after two minutes.
        ([1.0 + 0.1 * step for step in range(300)], 41, 20, "at_least"),
    ],
)
def test_a_trial_that_has_not_settled_goes_on(
    seconds: list[float], num_seen: int, warmup_steps: int, bound: str | None
) -> None:
    log = steps_of(trial(warmup_steps=5, steps=20), seconds)
    assert (log.num_seen, log.intervals.warmup_steps) == (num_seen, warmup_steps)
    assert log.intervals.num_steps >= 20
    columns = log.step_columns()
    assert columns["settled"] is (bound is None)
    assert columns.get("step_time_bound") == bound
    last_s = seconds[num_seen - 1]
    if bound is None:
        assert columns["step_time_s"] == pytest.approx(last_s, rel=0.05)
    elif bound == "at_most":
        assert columns["step_time_s"] > last_s
        assert columns["step_time_lo_s"] < last_s
    else:
        assert columns["step_time_s"] < last_s < columns["step_time_hi_s"]


def test_a_program_that_ends_early_is_measured_after_the_warm_up_it_had() -> None:
    asked = trial(warmup_steps=5, steps=20)
    log = steps_of(asked, [2.0] * 15 + [1.0] * 12)
    assert log.intervals.num_steps == 17
    result = result_at_exit(log, asked, "")
    assert result.outcome is Outcome.COMPLETED
    assert result.measurements["num_steps"] == 22
    assert result.measurements["settled"] is False


def test_exit_after_the_least_steps_is_completed() -> None:
    asked = trial(warmup_steps=2, steps=50)
    result = result_at_exit(reported(asked, 22), asked, "")
    assert result.outcome is Outcome.COMPLETED
    assert result.measurements["num_steps"] == 20
    assert result.measurements["steps_missed"] == 30


def test_exit_after_all_steps_misses_none() -> None:
    asked = trial(warmup_steps=2, steps=20)
    assert (
        "steps_missed"
        not in result_at_exit(reported(asked, 22), asked, "").measurements
    )


def test_exit_too_early_says_how_many_steps_were_seen_and_needed() -> None:
    asked = trial(warmup_steps=2, steps=50)
    result = result_at_exit(reported(asked, 21), asked, "")
    assert (result.outcome, result.rank) == (Outcome.FAILED, 0)
    assert result.reason == (
        "the program ended by itself after 21 steps, of which 19 could be measured "
        "(warmup_steps=2 and what comes before the first report do not count); at "
        "least 20 are needed, and steps=50 were asked for. Let it train longer, or "
        "report more often"
    )
    assert result_at_exit(
        reported(asked, 8), trial(warmup_steps=2, steps=6), ""
    ).outcome is (Outcome.COMPLETED)


def test_exit_without_a_report_says_where_they_were_looked_for() -> None:
    asked = trial()
    result = result_at_exit(reported(asked, 0), asked, "looked there")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "looked there")


def test_steps_that_all_arrived_at_once_are_no_measurement() -> None:
    asked = trial(warmup_steps=0, steps=50)
    log = StepLog(asked, may_repeat=False)
    log.take([Report(step=1)], 1.0)
    log.take([Report(step=step) for step in range(2, 40)], 1.0)
    result = result_at_exit(log, asked, "")
    assert result.outcome is Outcome.FAILED
    assert result.reason == (
        "all 38 measured steps arrived at once, so their times are not known. Flush "
        "the output after each line, or report seconds as t"
    )


def convergence(**changes: Any) -> Trial:
    return trial(
        kind=TrialKind.CONVERGENCE,
        target="val_acc >= 0.5",
        max_samples=80,
        warmup_steps=2,
        **changes,
    )


def test_convergence_trial_is_done_at_its_target() -> None:
    asked = convergence()
    log = reported(asked, 4, 0.4)
    assert result_while_running(log, asked, 0.0) is None
    log.take([Report(step=None, metrics={"val_acc": 0.5})], 5.0)
    result = result_while_running(log, asked, 0.0)
    assert result.outcome is Outcome.COMPLETED
    assert {k: v for k, v in result.measurements.items() if k != "versions"} == {
        "first_losses": None,
        "diverged": False,
        "num_samples": 32,
        "num_steps": 2,
        "reached_target": True,
        "final_metric": 0.5,
        "final_metrics": json.dumps(log.metrics, separators=(",", ":")),
        "steps_to_target": 4,
        "samples_to_target": 32,
        "time_to_target_s": 4.0,
    }


def test_convergence_trial_gives_up_beyond_its_limit() -> None:
    asked = convergence()
    # At the limit itself the evaluation is still to come.
    assert result_while_running(reported(asked, 10, 0.3), asked, 0.0) is None
    result = result_while_running(reported(asked, 11, 0.3), asked, 0.0)
    assert result.outcome is Outcome.TARGET_NOT_REACHED
    assert result.reason == (
        "val_acc >= 0.5 was not reached after 88 samples; the last value is 0.3."
    )
    assert result.measurements["reached_target"] is False
    assert "samples_to_target" not in result.measurements


def test_convergence_trial_that_ends_by_itself_is_measured() -> None:
    asked = convergence()
    result = result_at_exit(reported(asked, 6, 0.3), asked, "")
    assert result.outcome is Outcome.TARGET_NOT_REACHED
    assert "after 48 samples" in result.reason
    result = result_at_exit(reported(asked, 6, 0.6), asked, "")
    assert result.outcome is Outcome.COMPLETED


def test_target_at_the_first_report_has_no_time() -> None:
    asked = convergence()
    result = result_at_exit(reported(asked, 1, 0.6), asked, "")
    assert result.measurements["samples_to_target"] == 8
    assert "time_to_target_s" not in result.measurements


def test_metric_that_was_never_reported_is_refused() -> None:
    asked = convergence()
    result = result_at_exit(reported(asked, 6), asked, "")
    assert result.outcome is Outcome.REFUSED
    assert result.traceback == (
        "scalelab.errors.SpecError: target metric 'val_acc' was never reported by the "
        "command. It reported these metrics: none."
    )


@pytest.mark.parametrize("last", [math.nan, math.inf, -math.inf])
def test_a_target_metric_that_ends_as_no_number_has_diverged(last: float) -> None:
    asked = convergence()
    log = reported(asked, 6, 0.3)
    log.take([Report(step=7, metrics={"val_acc": last, "loss": 0.1})], 7.0)
    result = result_at_exit(log, asked, "")
    assert result.outcome is Outcome.TARGET_NOT_REACHED
    assert result.reason == f"Diverged: val_acc was {last} after 56 samples."
    assert result.measurements["diverged"] is True
    assert result.measurements["reached_target"] is False
    assert "final_metric" not in result.measurements
    finals = json.loads(result.measurements["final_metrics"])
    assert set(finals.values()) == {None}


def test_a_value_that_recovers_is_no_divergence() -> None:
    asked = convergence()
    log = reported(asked, 6, math.nan)
    log.take([Report(step=7, metrics={"val_acc": 0.3, "loss": math.nan})], 7.0)
    result = result_at_exit(log, asked, "")
    assert result.outcome is Outcome.TARGET_NOT_REACHED
    assert result.measurements["diverged"] is False
    assert result.measurements["final_metric"] == 0.3


def test_without_a_target_the_loss_tells_divergence() -> None:
    asked = trial(kind=TrialKind.END_TO_END, max_samples=80, warmup_steps=2)
    log = reported(asked, 5)
    log.take([Report(step=6, metrics={"train_loss": math.nan, "acc": 0.1})], 6.0)
    result = result_at_exit(log, asked, "")
    assert result.outcome is Outcome.TARGET_NOT_REACHED
    assert result.measurements["diverged"] is True


def test_step_times_of_a_throughput_trial_that_diverged_are_kept() -> None:
    asked = trial(warmup_steps=0)
    log = StepLog(asked, may_repeat=False)
    for step in range(1, 40):
        log.take([Report(step=step, metrics={"loss": math.nan})], float(step))
    result = command_results.completed(log, asked)
    assert result.outcome is Outcome.COMPLETED
    assert result.measurements["diverged"] is True
    assert result.measurements["step_time_s"] == 1.0
    assert result.measurements["first_losses"] is None


def test_end_to_end_trial_without_a_target_is_completed_at_its_end() -> None:
    asked = trial(kind=TrialKind.END_TO_END, max_samples=80, warmup_steps=2)
    assert result_while_running(reported(asked, 10), asked, 0.0) is None
    for result in (
        result_while_running(reported(asked, 11), asked, 0.0),
        result_at_exit(reported(asked, 5), asked, ""),
    ):
        assert result.outcome is Outcome.COMPLETED
        assert result.measurements.keys() == {
            "num_samples",
            "num_steps",
            "versions",
            "first_losses",
            "diverged",
        }


def test_trial_without_a_limit_goes_on() -> None:
    asked = trial(kind=TrialKind.END_TO_END)
    assert result_while_running(reported(asked, 99), asked, 0.0) is None


def test_refusal_ends_with_the_error_a_sweep_looks_for() -> None:
    result = refused(SpecError("lr=-1 is wrong."))
    assert result.outcome is Outcome.REFUSED
    assert result.reason == "lr=-1 is wrong."
    assert result.traceback == "scalelab.errors.SpecError: lr=-1 is wrong."


def test_versions_of_what_is_not_installed_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(package: str) -> str:
        if package == "torch":
            raise command_results.metadata.PackageNotFoundError(package)
        return "1.2"

    monkeypatch.setattr(command_results.metadata, "version", version)
    command_results._versions.cache_clear()
    known = json.loads(command_results._versions())
    command_results._versions.cache_clear()
    assert known["numpy"] == "1.2"
    assert "torch" not in known
