"""A row that is wrong by a factor moves no answer, and is named."""

import pandas as pd
import pytest
from made_up_sweeps import sweep
from sentences import Golden

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.question.batches import AskedBatch
from scalelab.recommend.question.objective import Constraints

SIZES = (1, 2, 4, 8, 16, 32)
JOB = Job(epochs=10, samples_per_epoch=1_000_000)
LOCAL_32 = AskedBatch(local_batch_size=32)


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
    single: pd.DataFrame, factor: float, word: str, golden: Golden
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
    golden(note)
    assert word[-6:] in note
    golden(note)


@pytest.mark.slow
def test_an_answer_does_not_rule_out_the_only_run_of_its_configuration(
    single: pd.DataFrame, golden: Golden
) -> None:
    slow = single.copy()
    at = slow.index[(slow["world_size"] == 4) & (slow["local_batch_size"] == 32)]
    slow.loc[at, "step_time_s"] *= 1.4
    measured_s = slow.loc[at[0], "step_time_s"] * 10 * 1_000_000 / 256
    deadline = Constraints(limits={"time": measured_s / 1.2})
    found = recommend(slow, JOB, constraints=deadline, batches=LOCAL_32)
    (row,) = [row for row in found.rows if row.world_size == 4]
    assert row.time_s.lo < measured_s < row.time_s.hi
    assert row.probability is not None
    assert 0.25 < row.probability <= 0.5
    (note,) = [note for note in found.notes if note.startswith("Doubted")]
    golden(note)
    later = Constraints(limits={"time": 1.35 * measured_s})
    again = recommend(slow, JOB, constraints=later, batches=LOCAL_32)
    assert again.next_trial is not None
    assert again.chosen.world_size != again.next_trial.world_size == 4
    golden(again.next_trial.why)


# 1 to 8 devices of one node at batch 256; then a second node, in seconds per step.
ONE_NODE = {1: 1.04245, 2: 0.5446, 4: 0.29732, 8: 0.17566}


def strong(second_node_s: float | None) -> pd.DataFrame:
    times = {**ONE_NODE, **({16: second_node_s} if second_node_s else {})}
    return pd.DataFrame(
        [
            {
                "workload": "resnet",
                "device_type": "cuda",
                "outcome": "completed",
                "world_size": size,
                "data_parallel_size": size,
                "num_nodes": -(-size // 8),
                "local_batch_size": 256 // size,
                "gradient_accumulation_steps": 1,
                "global_batch_size": 256,
                "step_time_s": step_s,
            }
            for size, step_s in times.items()
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "factor", [0.1, pytest.param(0.25, marks=pytest.mark.repetition)]
)
def test_a_lone_second_node_that_is_too_fast_is_doubted(
    factor: float, golden: Golden
) -> None:
    alone = recommend(strong(None), Job(samples=1e7))
    found = recommend(strong(0.1731 * factor), Job(samples=1e7))
    (note,) = [note for note in found.notes if note.startswith("Doubted")]
    golden(note)
    assert "times faster than the other rows suggest" in note
    assert found.chosen.world_size in (4, 8)
    assert found.chosen.batch == next(
        row.batch for row in alone.rows if row.world_size == found.chosen.world_size
    )
    basis = {row.world_size: row.basis for row in found.rows}
    assert [basis[size] for size in ONE_NODE] == ["measured"] * 4
    assert basis[16] == basis[32] == "not measured here"


@pytest.mark.slow
@pytest.mark.parametrize("second_node_s", [0.1731, 1.7])
def test_a_lone_second_node_may_be_as_slow_as_it_is(second_node_s: float) -> None:
    found = recommend(strong(second_node_s), Job(samples=1e7))
    assert not [note for note in found.notes if note.startswith("Doubted")]
    assert {row.world_size: row.basis for row in found.rows}[16] == "measured"


@pytest.mark.slow
def test_no_row_of_the_table_takes_less_of_time_and_of_devices() -> None:
    found = recommend(strong(0.0577), Job(samples=1e7))
    chosen = found.chosen
    assert not [
        row.world_size
        for row in found.rows
        if row.basis == "measured"
        and row.time_s.value < 0.95 * chosen.time_s.value
        and row.gpu_hours.value < 0.95 * chosen.gpu_hours.value
    ]
    assert chosen.world_size > 2  # a poor first doubling is made up for
    for row in found.rows:  # time and throughput are of one step time
        seconds = 1e7 / row.throughput_samples_per_s.value
        assert row.time_s.value == pytest.approx(seconds, rel=0.01)
        assert row.step_time_s.value == pytest.approx(256 * seconds / 1e7, rel=0.01)


def contradicting(notes: tuple[str, ...]) -> list[str]:
    return [note for note in notes if note.startswith(("Contradicting", "Doubted"))]


@pytest.mark.slow
def test_runs_of_one_configuration_that_contradict_are_named_and_measured_again(
    golden: Golden,
) -> None:
    twice = pd.concat([strong(None).query("world_size == 4")] * 2, ignore_index=True)
    assert not contradicting(recommend(twice, Job(samples=1e7)).notes)
    twice.loc[1, "step_time_s"] *= 5
    found = recommend(twice, Job(samples=1e7))
    (note,) = contradicting(found.notes)
    golden(note)
    trial = found.next_trial
    assert trial is not None
    assert (trial.world_size, trial.batch) == (4, found.chosen.batch)
    golden(trial.why)


@pytest.mark.slow
def test_a_run_that_a_repeat_contradicts_is_not_named_twice() -> None:
    rows = pd.concat([strong(0.1), strong(0.1).query("world_size == 2")])
    rows = rows.reset_index(drop=True)
    rows.loc[len(rows) - 1, "step_time_s"] *= 10
    (note,) = contradicting(recommend(rows, Job(samples=1e7)).notes)
    assert ". 2 runs on 2 GPUs (1x2), local batch 128, took " in note
