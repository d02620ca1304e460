"""A setting that is selected leaves other curves out of all that is said."""

import numpy as np
import pandas as pd
import pytest
from made_up_sweeps import convergence, sweep

from scalelab.experiment.job import Job
from scalelab.inputs.outcome import Support
from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.support import weakest
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation

JOB = Job(samples=10**7)
FIRST = {"parallelism": "ddp"}
SLOW = {"parallelism": "fsdp"}


@pytest.fixture(scope="module")
def two_ways() -> pd.DataFrame:
    """One way is 3 times as fast, and was also measured on half the devices."""
    fast = sweep((1, 2, 4, 8), **FIRST)
    slow = sweep((2, 4, 8), seed=5, **SLOW)
    slow["step_time_s"] *= 3
    return pd.concat([fast, slow], ignore_index=True)


def of_slow(rows: pd.DataFrame) -> Recommendation:
    return recommend(rows, JOB, select=SLOW)


def test_the_baseline_is_among_what_was_selected(two_ways: pd.DataFrame) -> None:
    found = of_slow(two_ways)
    base = next(row for row in found.rows if row.is_baseline)
    assert base.world_size == 2
    assert base.basis == "measured"
    assert base.scaling_efficiency.value == pytest.approx(1.0, abs=0.02)
    assert found.baseline == "2 GPUs"


def test_a_deselected_curve_is_not_counted_doubted_or_noted(
    two_ways: pd.DataFrame,
) -> None:
    before = of_slow(two_ways)
    spoilt = two_ways.copy()
    is_fast = spoilt["parallelism"] == "ddp"
    spoilt.loc[is_fast & (spoilt["world_size"] == 1), "step_time_s"] *= [1, 1, 9] * 2
    more = spoilt[is_fast].assign(outcome="failed", reason="it fell over")
    after = of_slow(pd.concat([spoilt, more], ignore_index=True))
    assert after.num_observations == before.num_observations
    assert after.left_out == before.left_out
    assert [f.kind for f in after.facts] == [f.kind for f in before.facts]
    assert after.baseline == before.baseline


def test_selecting_changes_no_time(two_ways: pd.DataFrame) -> None:
    every = recommend(two_ways, JOB)
    fast = recommend(two_ways, JOB, select=FIRST)
    found = {(r.world_size, r.batch): r for r in every.rows if r.settings == FIRST}
    shared = [r for r in fast.rows if (r.world_size, r.batch) in found]
    assert len(shared) >= 4
    for row in shared:
        assert row.time_s == found[row.world_size, row.batch].time_s


def test_an_efficiency_against_other_settings_says_so(two_ways: pd.DataFrame) -> None:
    slow_alone = two_ways[(two_ways["parallelism"] == "fsdp")]
    one_fast = two_ways[
        (two_ways["parallelism"] == "ddp") & (two_ways["world_size"] == 1)
    ]
    found = recommend(pd.concat([slow_alone, one_fast], ignore_index=True), JOB)
    assert any(row.settings == SLOW for row in found.rows)
    said = " ".join(found.said("efficiency"))
    assert "Some rows are against other settings: parallelism ddp." in said


def parts(rows: pd.DataFrame, answer: Recommendation) -> list[tuple[str, str]]:
    """Return what the step time and the samples of each row rest on."""
    asked = pd.DataFrame(
        {
            "world_size": row.world_size,
            "num_nodes": row.num_nodes,
            "local_batch_size": row.batch.local_batch_size,
            "gradient_accumulation_steps": row.batch.gradient_accumulation_steps,
            "global_batch_size": row.batch.global_batch_size,
            "data_parallel_size": row.batch.data_parallel_size,
            "workload": "made_up",
            "device_type": "cuda",
            "device_name": "A100",
            "emulated": False,
        }
        for row in answer.rows
    )
    steps = StepTimeLaw.fit(rows).predict(asked)["support"]
    samples = ConvergenceLaw.fit(rows).predict(asked)["support"]
    return list(zip(steps, samples, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_a_basis_is_no_stronger_than_its_weakest_part(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = tuple(sorted({1, *rng.choice([2, 3, 4, 6, 8], 2).tolist()}))
    batches = tuple(sorted(rng.choice([64, 128, 192, 256, 512, 1024], 3).tolist()))
    throughput = sweep(
        sizes, global_batch=None, local_batches=(32, 64), seed=seed, lr_rule="sqrt"
    )
    trained = convergence(tuple(dict.fromkeys(batches)), seed=seed)
    rows = pd.concat([throughput, trained], ignore_index=True)
    answer = recommend(rows, Job(target="val_acc >= 0.9"))
    order = [str(each) for each in Support]
    for row, (steps, samples) in zip(answer.rows, parts(rows, answer), strict=True):
        assert order.index(row.basis) >= order.index(str(steps))
        assert order.index(row.basis) >= order.index(str(samples))


def test_the_weakest_part_names_the_whole() -> None:
    steps = np.array([Support.MEASURED, Support.EXTRAPOLATED, Support.MEASURED])
    samples = np.array(["interpolated", "measured", "measured"])
    whole = weakest(steps, samples).tolist()
    assert whole == ["interpolated", "extrapolated", "measured"]


def test_passes_that_the_chosen_curve_never_made_are_no_measurement() -> None:
    """Another curve accumulated; that says nothing of this one."""
    never = sweep((1, 2, 4), global_batch=None, local_batches=(32,), **FIRST)
    often = sweep((1, 2, 4), global_batch=256, local_batches=(16,), **SLOW)
    often["step_time_s"] *= 5
    rows = pd.concat([never, often], ignore_index=True)
    found = recommend(rows, Job(samples=10**7, global_batch_size=256))
    chosen = found.chosen
    assert chosen.settings == FIRST
    assert chosen.batch.gradient_accumulation_steps > 1
    assert chosen.world_size == 1 or chosen.basis == "extrapolated"
    shown = [r for r in found.rows if r.settings == FIRST and r.world_size in (2, 4)]
    assert {r.basis for r in shown} == {"extrapolated"}
    (said,) = (note for note in found.notes if note.startswith("Extrapolated"))
    assert "of which only the last is taken to exchange gradients" in said
