"""The difference between two sets of runs, and how sure it is."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from sentences import refused

from scalelab.laws.paired import paired
from scalelab.laws.rows import FitRows, step_time_rows

Rows = Callable[..., FitRows]
SIZES, REPEATS = (1, 2, 4, 8), 3


@pytest.fixture
def rows(rng: np.random.Generator) -> Rows:
    """Return what makes runs: some configurations, three times each, in order."""

    def made(
        change: float = 0.0, spread: float = 0.03, drift: float = 0.0, **columns: object
    ) -> FitRows:
        frame = pd.DataFrame({"world_size": [*SIZES] * REPEATS, "local_batch_size": 8})
        noise = np.exp(spread * rng.standard_normal(len(frame)))
        rising = np.exp(drift * np.linspace(0, 1, len(frame)))
        hours = pd.to_timedelta(np.arange(len(frame)), unit="h")
        own = {
            "step_time_s": (1 + change) / frame["world_size"] * noise * rising,
            "started_at": pd.Timestamp("2026-01-01", tz="UTC") + hours,
        }
        return step_time_rows(frame.assign(**{**own, **columns}))

    return made


def test_intervals_and_chances_are_as_often_right_as_they_say(rows: Rows) -> None:
    compared = [paired(rows(), rows(0.1)) for _ in range(200)]
    holding = sum(found.change.lo < 0.1 < found.change.hi for found in compared)
    assert 165 <= holding  # 180 are expected, with a deviation of 4

    chances = np.array([found.chance_above(0.1) for found in compared])
    assert 0.4 < chances.mean() < 0.6
    assert (chances > 0.95).mean() < 0.1
    assert (chances < 0.05).mean() < 0.1


def test_a_machine_that_drifts_makes_it_less_sure(rows: Rows) -> None:
    steady, drifting = (
        paired(rows(drift=drift), rows(drift=drift)).error for drift in (0.0, 0.3)
    )
    assert drifting > 2 * steady


def test_runs_without_times_of_their_start_are_compared(rows: Rows) -> None:
    found = paired(rows(started_at=None), rows(0.2, started_at=None))
    assert 0.12 < found.change.value < 0.28


def test_a_single_run_each_is_less_sure_than_several(rows: Rows) -> None:
    one = rows().take(pd.RangeIndex(len(SIZES)))
    other = rows(0.2).take(pd.RangeIndex(len(SIZES)))
    single, several = paired(one, other), paired(rows(), rows(0.2))
    assert (single.table["runs_before"] == 1).all()
    assert single.error > several.error


def test_settings_that_vary_are_told_apart_and_others_are_not(rows: Rows) -> None:
    ways = {"precision": ["fp32"] * 8 + ["bf16"] * 4}
    assert len(paired(rows(), rows(device_name="A100")).table) == 4
    table = paired(rows(**ways), rows(**ways)).table
    assert sorted(zip(table["world_size"], table["precision"], strict=True)) == [
        (size, way) for size in SIZES for way in ("bf16", "fp32")
    ]
    single = paired(rows(precision="fp32"), rows(**ways)).table
    assert single["runs_after"].tolist() == [2, 2, 2, 2]  # of three, one is bf16
    with refused("nothing_in_both"):
        paired(rows(precision="fp16"), rows(**ways))
