"""A row that is wrong by a factor moves no answer, and is named."""

import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.question.objective import Constraints

SIZES = (1, 2, 4, 8, 16, 32)
JOB = Job(epochs=10, samples_per_epoch=1_000_000)


@pytest.fixture(scope="module")
def single() -> pd.DataFrame:
    """One run of each configuration."""
    names = ["world_size", "local_batch_size", "gradient_accumulation_steps"]
    return sweep(SIZES).drop_duplicates(names).reset_index(drop=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "word"), [(10.0, "10 times slower"), (0.1, "10 times faster")]
)
def test_one_odd_row_changes_no_choice_and_is_named(
    single: pd.DataFrame, factor: float, word: str
) -> None:
    plain = recommend(single, JOB)
    deadline = Constraints(limits={"time": 1.1 * plain.rows[4].time_s.hi})
    expected = recommend(single, JOB, constraints=deadline).chosen
    assert not [note for note in plain.notes if note.startswith("Doubted")]
    is_odd = (single["world_size"] == 8) & (single["local_batch_size"] == 16)
    odd = single.copy()
    odd.loc[odd.index[is_odd][0], "step_time_s"] *= factor
    found = recommend(odd, JOB, constraints=deadline)
    assert found.chosen.world_size == expected.world_size == 16
    (note,) = [note for note in found.notes if note.startswith("Doubted")]
    assert note.startswith("Doubted: a run on 8 GPUs (2x4), local batch 16, was ")
    assert word[-6:] in note
    assert note.endswith("than the other rows say; it hardly counts. Measure it again.")
