"""The check of a first trial, against rows as programs that are read wrongly leave."""

from __future__ import annotations

from typing import Any

import pytest

from scalelab.plan.first_check import Sign, findings, is_sound, loss_ends
from scalelab.records.columns import COLUMNS

MISSING: dict[str, Any] = {column.name: None for column in COLUMNS}
ROW = MISSING | {
    "outcome": "completed",
    "device_ids": ["0"],
    "world_size": 1,
    "local_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "global_batch_size": 16,
    "step_time_s": 0.1,
    "validity": [],
}


def signs(**values: Any) -> list[Sign]:
    return [finding.sign for finding in findings(ROW | values)]


def test_nothing_is_found_where_all_agrees() -> None:
    row = ROW | {"reported_step_time_s": 0.105, "data_wait_s": 0.01}
    assert findings(row, losses=[3.0, 2.5, 2.0, 1.5]) == []
    assert is_sound(row)


@pytest.mark.parametrize(
    ("own_s", "accumulation", "sign", "stops"),
    [
        (0.112, 1, Sign.RATES_DISAGREE, False),
        (0.089, 1, Sign.RATES_DISAGREE, False),
        (0.3, 1, Sign.RATES_DISAGREE, True),
        (0.033, 1, Sign.RATES_DISAGREE, True),
        (1.39, 1, Sign.SAMPLES_AS_STEPS, True),  # open_clip: 16 samples a step
        (0.41, 4, Sign.PASSES_AS_STEPS, True),
        (0.05, 2, Sign.STEPS_AS_PASSES, True),  # diffusers' bar, read as Lightning's
    ],
)
def test_a_rate_of_the_programs_own_says_what_was_counted(
    own_s: float, accumulation: int, sign: Sign, stops: bool
) -> None:
    row = ROW | {
        "reported_step_time_s": own_s,
        "gradient_accumulation_steps": accumulation,
        "global_batch_size": 16 * accumulation,
    }
    (finding,) = findings(row)
    assert (finding.sign, finding.stops) == (sign, stops)
    assert finding.figures["step_time_s"] == 0.1
    assert finding.figures["reported_step_time_s"] == own_s
    rate = finding.figures["reported_samples_per_s"]
    assert rate == pytest.approx(16 * accumulation / own_s)
    assert is_sound(row) is not stops


def test_the_expression_that_counts_samples_gets_the_group_for_them() -> None:
    row = ROW | {"reported_step_time_s": 1.6}
    regex = [r"Epoch: \d+ \[ *(?P<step>\d+)/(?P<steps_in_all>\d+)", "val (?P<acc>.*)"]
    (finding,) = findings(row, regex=regex)
    changed = r"Epoch: \d+ \[ *(?P<samples_of_epoch>\d+)/(?P<samples_in_epoch>\d+)"
    assert finding.advice == {"metrics": {"regex": [changed, "val (?P<acc>.*)"]}}
    assert findings(row)[0].advice == {}  # nothing that could be renamed


def test_trials_without_a_measurement() -> None:
    assert signs(outcome="failed") == [Sign.NOT_MEASURED]
    assert signs(outcome="failed", world_size=2) == [Sign.SEVERAL_RANKS_FAIL]
    (alone,) = findings(ROW | {"outcome": "refused", "world_size": 2})
    assert alone.advice == {"gpus": [1], "launcher": "none"}
    assert signs(outcome="stalled") == [Sign.TOO_SILENT]
    (full,) = findings(ROW | {"outcome": "host_out_of_memory"})
    assert (full.sign, full.stops) == (Sign.DOES_NOT_FIT, True)
    assert full.advice == {"local_batch_size": 8}


def test_what_says_nothing_of_the_program_stops_nothing() -> None:
    for lost in ({"outcome": "node_fail"}, {"outcome": "refused", "device_ids": []}):
        (finding,) = findings(ROW | lost)
        assert (finding.sign, finding.stops) == (Sign.LOST, False)
        assert not is_sound(ROW | lost)
    full = ROW | {"outcome": "out_of_memory", "step_time_s": None}
    assert signs(outcome="out_of_memory") == [Sign.DOES_NOT_FIT]
    assert is_sound(full), "that it does not fit is a measurement"


def test_doubts_are_said_and_stop_nothing() -> None:
    doubtful = {
        "world_size": 2,
        "ranks_witness": "not_witnessed",
        "data_wait_s": 0.05,
        "validity": ["oversubscribed_cores"],
    }
    found = findings(ROW | doubtful, losses=[1.0, 1.0, 1.0, 1.0])
    assert {finding.sign for finding in found} == {
        Sign.RANKS_NOT_WITNESSED,
        Sign.LOSS_NOT_FALLING,
        Sign.WAITS_FOR_INPUT,
        Sign.MARKED,
    }
    assert not any(finding.stops for finding in found)
    assert signs(world_size=2, ranks_witness="store") == []


def test_the_ends_of_a_loss_need_a_few_values() -> None:
    assert loss_ends([2.0, 1.0, 0.5]) is None
    assert loss_ends([4.0, 2.0, 1.0, 1.0, 0.5, 0.1]) == (3.0, pytest.approx(0.3))
