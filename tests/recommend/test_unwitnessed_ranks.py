"""An answer names rows that rest on ranks of which nothing showed that they met."""

import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend

JOB = Job(epochs=10, samples_per_epoch=100_000)


def said(rows: pd.DataFrame) -> list[str]:
    notes = recommend(rows, JOB).notes
    return [note for note in notes if note.startswith("Not witnessed")]


@pytest.mark.slow
def test_only_rows_whose_ranks_nobody_saw_are_named() -> None:
    rows = sweep((1, 2, 4), local_batches=(16,), repeats=2)
    assert not said(rows)
    met = rows["world_size"].map({1: None, 2: "store", 4: "sockets"})
    assert not said(rows.assign(ranks_witness=met))
    unseen = rows["world_size"].map({1: None, 2: "not_witnessed", 4: "not_witnessed"})
    (note,) = said(rows.assign(ranks_witness=unseen.astype("string")))
    assert note == (
        "Not witnessed: nothing showed that the ranks of 2 to 4 GPUs work together. If "
        "each trains alone, their speedup is no scaling. Report world_size, as the "
        "framework says it."
    )
    unseen = rows["world_size"].map({1: None, 2: "store", 4: "not_witnessed"})
    (note,) = said(rows.assign(ranks_witness=unseen))
    assert "the ranks of 4 GPUs work together" in note
