"""An answer gives both figures where a program's own rate differs from ours."""

import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend

JOB = Job(epochs=10, samples_per_epoch=100_000)


def said(rows: pd.DataFrame) -> list[str]:
    notes = recommend(rows, JOB).notes
    return [note for note in notes if note.startswith("The program's own rate")]


@pytest.mark.slow
def test_both_figures_are_given_where_they_differ() -> None:
    rows = sweep((1, 2, 4), local_batches=(16,), repeats=2)
    steps_s = rows["step_time_s"]
    assert not said(rows)
    assert not said(rows.assign(reported_step_time_s=steps_s * 1.05))
    (note,) = said(rows.assign(reported_step_time_s=steps_s / 2.4))
    assert note.startswith("The program's own rate differs in 6 trials. On 1 GPU")
    assert note.endswith("the answer uses wall time.")
    own = steps_s.where(rows["world_size"] != 4, steps_s * 16)
    marks = [["rate_disagrees"] if size == 4 else [] for size in rows["world_size"]]
    marked = rows.assign(reported_step_time_s=own, validity=marks)
    (note,) = said(marked)
    row = marked[marked["world_size"] == 4].iloc[0]
    ours = 256 / row["step_time_s"]
    assert f"it prints {ours / 16:.3g} samples/s" in note
    assert f"ScaleLab read {ours:.3g} (" in note
    assert note.endswith("does not count optimiser steps: left out.")
    assert recommend(marked, JOB).left_out == {"rate_disagrees": 2}
