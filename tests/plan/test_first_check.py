"""The check of a first trial, against rows as programs that are read wrongly leave."""

from __future__ import annotations

from typing import Any

import pytest

from scalelab.plan.first_check import (
    WHY_OTHERS,
    Sign,
    findings,
    is_sound,
    loss_ends,
)
from scalelab.records.columns import COLUMNS

MISSING: dict[str, Any] = {column.name: None for column in COLUMNS}
ROW = MISSING | {
    "outcome": "completed",
    "device_ids": ["0"],
    "world_size": 1,
    "local_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "global_batch_size": 16,
    "data_parallel_size": 1,
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
    ("own_s", "stops"), [(0.112, False), (0.089, False), (0.3, True), (0.033, True)]
)
def test_a_rate_of_the_programs_own_may_stop_a_sweep(own_s: float, stops: bool) -> None:
    row = ROW | {"reported_step_time_s": own_s}
    (finding,) = findings(row)
    assert (finding.sign, finding.stops) == (Sign.RATES_DISAGREE, stops)
    assert finding.figures["step_time_s"] == 0.1
    assert finding.figures["reported_step_time_s"] == own_s
    rate = finding.figures["reported_samples_per_s"]
    assert rate == pytest.approx(16 / own_s)
    assert is_sound(row) is not stops
    # The loader confirms what the probe has measured: then the log is no witness.
    confirmed = row | {"measured_by": "inside", "samples_witness": "loader"}
    (finding,) = findings(confirmed)
    assert (finding.sign, finding.stops) == (Sign.LOG_DISAGREES, False)


def test_trials_without_a_measurement() -> None:
    assert signs(outcome="failed") == [Sign.NOT_MEASURED]
    assert signs(outcome="failed", world_size=2) == [Sign.SEVERAL_RANKS_FAIL]
    (alone,) = findings(ROW | {"outcome": "failed", "world_size": 2})
    assert alone.advice == {"gpus": [1], "launcher": "none"}
    # Its reason says what to change.
    (refused,) = findings(ROW | {"outcome": "refused", "world_size": 2})
    assert (refused.sign, refused.stops) == (Sign.NOT_MEASURED, True)
    assert refused.advice == {}
    own = "Rank 0 raised KeyError at train.py:12: 'x'."
    (raised,) = findings(ROW | {"outcome": "failed", "world_size": 2, "reason": own})
    assert (raised.sign, raised.stops, raised.advice) == (Sign.NOT_MEASURED, True, {})
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


def test_what_nothing_confirms_is_said() -> None:
    assert signs(samples_witness="not_witnessed") == [Sign.SAMPLES_NOT_WITNESSED]
    assert signs(ranks_witness="same_data") == [Sign.SAME_DATA]
    assert signs(busy_machine=True) == [Sign.BUSY_MACHINE]
    assert signs(gpu_throttled=True) == [Sign.GPU_THROTTLED]
    assert signs(settled=False, step_time_bound="at_most") == [Sign.NOT_SETTLED]
    assert signs(ranks_witness="alone") == [Sign.RANKS_ALONE]
    for why in WHY_OTHERS:
        assert signs(samples_differ=why) == [Sign.SAMPLES_DIFFER]
    assert signs(settled=True, samples_witness="log", ranks_witness="one_process") == []


def test_equal_losses_of_other_batches_are_said_once() -> None:
    small = ROW | {"first_losses": "2.3 2.2 2.1 2.0"}
    large = small | {"world_size": 2, "global_batch_size": 32}
    other = large | {"first_losses": "2.3 2.2 2.1 1.9"}
    rows = [small, large, ROW, large, other]
    found = [findings(row, others=rows) for row in (small, large, ROW, other)]
    assert [[each.sign for each in some] for some in found] == [
        [],
        [Sign.EQUAL_LOSSES],
        [],
        [],
    ]
    assert found[1][0].figures == {"batches": "16 and 32"}
    assert not found[1][0].stops
    assert findings(small, others=[small, small]) == [], "repeats may be equal"


@pytest.mark.parametrize(
    ("step_s", "of_row", "is_doubted"),
    [
        (0.2, {}, True),  # twice the samples in twice the time
        (0.11, {}, False),
        (0.05, {}, True),  # four times as fast as one rank
        (0.2, {"measured_by": "inside"}, False),
        (0.2, {"options.program": "other"}, False),
        (0.2, {"data_parallel_size": 1}, False),  # two devices of one replica
        (None, {}, False),
    ],
)
def test_a_speedup_that_ranks_cannot_have_is_doubted(
    step_s: float | None, of_row: dict[str, Any], is_doubted: bool
) -> None:
    one = ROW | {"measured_by": "log", "options.program": "this"}
    two = {"world_size": 2, "data_parallel_size": 2, "global_batch_size": 32}
    row = one | two | {"step_time_s": step_s} | of_row
    found = findings(row, others=[one, row])
    assert [finding.sign for finding in found] == [Sign.UNLIKELY_SPEEDUP] * is_doubted
    if step_s and is_doubted:
        assert found[0].figures["speedup"] == pytest.approx(0.2 / step_s)
        assert is_sound(row)
    assert findings(one, others=[one, row]) == []
    assert findings(row, others=[row]) == []


def test_the_ends_of_a_loss_need_a_few_values() -> None:
    assert loss_ends([2.0, 1.0, 0.5]) is None
    assert loss_ends([4.0, 2.0, 1.0, 1.0, 0.5, 0.1]) == (3.0, pytest.approx(0.3))
