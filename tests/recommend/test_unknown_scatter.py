"""Runs whose step time was read so rarely that nothing tells how it scatters."""

import numpy as np
import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend

JOB = Job(epochs=10, samples_per_epoch=100_000)


def said(rows: pd.DataFrame) -> list[str]:
    notes = recommend(rows, JOB).notes
    return [note for note in notes if note.startswith("Scatter unknown")]


@pytest.mark.slow
def test_runs_with_few_readings_and_no_repeat_are_told() -> None:
    rows = sweep((1, 2, 4), local_batches=(16,), repeats=1)
    rows["step_time_lo_s"] = 0.99 * rows["step_time_s"]
    rows["step_time_hi_s"] = 1.01 * rows["step_time_s"]
    assert not said(rows)
    few = rows.copy()
    few.loc[:1, ["step_time_lo_s", "step_time_hi_s"]] = np.nan
    (note,) = said(few)
    assert note == (
        "Scatter unknown: 2 runs without repeats, and with one to three readings of "
        "the step time in each; the usual scatter is assumed. Report steps more often, "
        "train longer, or raise measure.repeats."
    )
    again = few.assign(repeat=1, step_time_s=1.02 * few["step_time_s"])
    assert not said(pd.concat([few, again]))


@pytest.mark.slow
def test_a_table_without_repeats_is_told() -> None:
    rows = sweep((1, 2, 4), local_batches=(16,), repeats=1).assign(kind="table")
    assert said(rows) == [
        "Scatter unknown: nothing was measured twice; further runs are taken to differ "
        "by the usual few percent. Repeat some."
    ]
    again = rows.assign(repeat=1, step_time_s=1.02 * rows["step_time_s"])
    assert not said(pd.concat([rows, again], ignore_index=True))


@pytest.mark.slow
def test_a_single_reading_is_not_taken_as_exact() -> None:
    rows = sweep((1, 2, 4), local_batches=(16,), repeats=1)
    for row in recommend(rows, JOB).rows:
        if row.basis == "measured":
            assert row.step_time_s.hi > 1.01 * row.step_time_s.lo
