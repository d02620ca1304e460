"""Rows that are wrong by a factor, too slow and too fast alike."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from declared_machines import declared_step_time, random_machine, sweep_rows

from scalelab.laws.step_time.law import StepTimeLaw

SIZES = (1, 2, 4, 8, 16, 32)
ANSWER = ["step_time_lo_s", "step_time_s", "step_time_hi_s"]


def machine(seed: int) -> tuple[dict[str, Any], np.random.Generator]:
    rng = np.random.default_rng(seed)
    return {**random_machine(rng), "gpus_per_node": 4}, rng


def asked(sizes: tuple[int, ...] = SIZES) -> pd.DataFrame:
    nodes = [-(-size // 4) for size in sizes]
    return pd.DataFrame(
        {"world_size": sizes, "num_nodes": nodes, "local_batch_size": 16}
    )


def with_odd(rows: pd.DataFrame, size: int, factor: float) -> pd.DataFrame:
    """Only the first run of a configuration is odd."""
    is_odd = (rows["world_size"] == size) & (rows["local_batch_size"] == 16)
    odd = rows.copy()
    odd.loc[odd.index[is_odd][0], "step_time_s"] *= factor
    return odd


@pytest.mark.slow
@pytest.mark.parametrize(
    "factor", [10.0, pytest.param(0.1, marks=pytest.mark.repetition)]
)
@pytest.mark.parametrize("size", [2, 8, 32])
@pytest.mark.parametrize(
    ("batches", "repeats"),
    [
        ((16,), 1),
        pytest.param((8, 16, 32), 1, marks=pytest.mark.repetition),
        ((8, 16, 32), 3),
    ],
)
def test_one_odd_row_is_doubted_and_named(
    factor: float, size: int, batches: tuple[int, ...], repeats: int
) -> None:
    for seed in range(3):
        declared, rng = machine(seed)
        rows = sweep_rows(declared, rng, batches=batches, repeats=repeats)
        law = StepTimeLaw.fit(with_odd(rows, size, factor))
        answer = law.predict(asked())
        truth = np.array([declared_step_time(declared, n, 16) for n in SIZES])
        ratios = answer["step_time_s"].to_numpy() / truth
        assert np.abs(np.log(ratios)).max() < np.log(1.6)
        (named,) = law.doubted.to_dict("records")
        assert (named["world_size"], named["local_batch_size"]) == (size, 16)
        assert named["factor"] == pytest.approx(factor, rel=0.6)
        assert named["factor"] == named["step_time_s"] / named["predicted_s"]


@pytest.mark.slow
def test_too_slow_and_too_fast_are_doubted_alike() -> None:
    declared, rng = machine(1)
    rows = sweep_rows(declared, rng, repeats=1)
    slow, fast = (
        np.log(StepTimeLaw.fit(with_odd(rows, 8, factor)).predict(asked())[ANSWER])
        for factor in (10.0, 0.1)
    )
    assert np.abs(slow - fast).to_numpy().max() < 0.05


@pytest.mark.slow
@pytest.mark.repetition
def test_no_row_of_a_clean_sweep_is_doubted() -> None:
    for seed in range(6):
        declared, rng = machine(seed)
        rows = sweep_rows(declared, rng, noise=0.03)
        assert StepTimeLaw.fit(rows).doubted.empty


def test_a_slow_second_node_is_a_cost_and_no_odd_row() -> None:
    """The only row on several nodes may be ten times slower: the link may be slow."""
    declared, rng = machine(2)
    rows = sweep_rows(declared, rng, sizes=(1, 2, 4, 8), batches=(16,), repeats=1)
    slow = with_odd(rows, 8, 10.0)
    law = StepTimeLaw.fit(slow)
    assert law.doubted.empty
    measured = slow.loc[slow["world_size"] == 8, "step_time_s"].item()
    answer = law.predict(asked((8,)))
    assert answer["step_time_s"].item() == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("factor", [3.0, 0.5])
@pytest.mark.parametrize("repeats", [2, 3])
@pytest.mark.parametrize("batches", [(16,), (8, 16, 32)])
def test_runs_that_agree_are_believed(
    factor: float, repeats: int, batches: tuple[int, ...]
) -> None:
    declared, rng = machine(0)
    rows = sweep_rows(declared, rng, batches=batches, repeats=repeats)
    is_odd = (rows["world_size"] == 8) & (rows["local_batch_size"] == 16)
    rows.loc[is_odd, "step_time_s"] *= factor
    law = StepTimeLaw.fit(rows)
    assert law.doubted.empty

    measured = rows.loc[is_odd, "step_time_s"].median()
    answer = law.predict(asked())
    lo, middle, hi = answer.loc[answer["world_size"] == 8, ANSWER].to_numpy()[0]
    assert lo < measured < hi
    assert middle == pytest.approx(measured, rel=0.03)
    drawn = np.median(law.draws(asked((8,))))
    assert drawn == pytest.approx(measured, rel=0.03)

    truth = np.array([declared_step_time(declared, n, 16) for n in SIZES])
    ratios = (answer["step_time_s"].to_numpy() / truth)[np.array(SIZES) != 8]
    assert np.abs(np.log(ratios)).max() < np.log(1.2), "it says nothing of others"


def test_runs_that_contradict_each_other_are_not_believed_for_their_median() -> None:
    declared, rng = machine(0)
    rows = sweep_rows(declared, rng, batches=(8, 16, 32), repeats=2)
    law = StepTimeLaw.fit(with_odd(rows, 8, 5.0))
    truth = declared_step_time(declared, 8, 16)
    answer = law.predict(asked((8,)))["step_time_s"].item()
    assert answer == pytest.approx(truth, rel=0.5)
