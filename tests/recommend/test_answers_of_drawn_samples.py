"""Answers are about the samples that were drawn, and mark what nothing confirms."""

import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import consider, recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.text import answer_text
from scalelab.recommend.scaling import scaling_series

SIZES = (1, 2, 4)
SAMPLES = Job(samples=10_000_000)
EPOCHS = Job(epochs=20, samples_per_epoch=1_000_000)


def drawn(share: float, why: str | None = "batch_sizes") -> pd.DataFrame:
    """Return a sweep whose steps drew a share of the samples asked for."""
    rows = sweep(SIZES)
    return rows.assign(
        samples_per_step=share * rows["global_batch_size"], samples_differ=why
    )


def values_of(answer: Recommendation, kind: str) -> dict[str, object]:
    (values,) = (fact.values for fact in answer.facts if fact.kind == kind)
    return dict(values)


def states(answer: Recommendation) -> dict[str, str]:
    return {ground.kind: ground.state for ground in answer.grounds}


def test_half_of_the_samples_take_twice_the_time() -> None:
    whole, half = (recommend(drawn(share), SAMPLES) for share in (1.0, 0.5))
    for one, other in zip(whole.rows, half.rows, strict=True):
        assert other.time_s.value == pytest.approx(2 * one.time_s.value, rel=0.01)
        rates = [row.throughput_samples_per_s.value for row in (one, other)]
        assert rates[0] == pytest.approx(2 * rates[1], rel=0.01)
        steps_s = [row.step_time_s.value for row in (one, other)]
        assert steps_s[0] == pytest.approx(steps_s[1], rel=0.01)
        assert other.samples_per_step == other.batch.global_batch_size / 2


def test_a_table_of_scaling_has_the_time_of_a_step_as_it_was_measured() -> None:
    rows = drawn(0.5)
    considered = consider(rows, SAMPLES)
    answer = considered.recommendation()
    strong, *_ = scaling_series(considered, answer.rows)
    for row, measured in zip(strong.rows, strong.measured, strict=True):
        if measured is not None:
            at = rows[rows["world_size"] == row.world_size]
            assert measured.step_time_s.lo >= 0.999 * at["step_time_s"].min()
            assert measured.step_time_s.hi <= 1.001 * at["step_time_s"].max()


def test_a_job_of_steps_takes_as_long_whatever_they_draw() -> None:
    job = Job(steps=10_000, global_batch_size=64)
    whole, half = (recommend(drawn(share), job) for share in (1.0, 0.5))
    for one, other in zip(whole.rows, half.rows, strict=True):
        assert other.time_s.value == pytest.approx(one.time_s.value, rel=0.01)


def test_both_numbers_stand_in_the_first_lines() -> None:
    answer = recommend(drawn(0.5), SAMPLES)
    values = values_of(answer, "samples_differ")
    asked = answer.chosen.batch.global_batch_size
    assert (values["asked"], values["samples_per_step"]) == (asked, asked / 2)
    assert answer.chosen.barred_by is None
    head = answer_text(answer).split("\n\n")[0]
    assert f"Drawn, not asked: {asked // 2:,} samples a step, where {asked:,}" in head


def test_a_difference_without_a_reason_is_contradicted() -> None:
    answer = recommend(drawn(0.75, "unexplained"), SAMPLES)
    assert answer.chooses_none
    assert states(answer)["samples_unexplained"] == "contradicted"


def test_ranks_that_train_alone_are_no_scaling() -> None:
    rows = sweep(SIZES)
    several = rows["world_size"] > 1
    witness = several.map({True: "alone", False: None})
    answer = recommend(rows.assign(ranks_witness=witness), SAMPLES)
    assert answer.chosen.world_size == 1
    assert states(answer)["ranks_alone"] == "contradicted"
    assert {r.barred_by for r in answer.rows if r.world_size > 1} == {"contradicted"}


def walked(of_rank: float) -> pd.DataFrame:
    """Return a sweep whose ranks each draw so many samples in a pass."""
    rows = sweep(SIZES)
    return rows.assign(
        data_parallel_size=rows["world_size"],
        samples_of_pass=of_rank * rows["world_size"],
        samples_of_dataset=of_rank,
    )


def test_with_epochs_each_rank_must_have_a_part_of_the_data() -> None:
    answer = recommend(walked(1_000_000), EPOCHS)
    assert answer.chosen.world_size == 1
    assert values_of(answer, "whole_data")["in_epochs"]
    assert states(answer)["whole_data"] == "contradicted"


def test_without_epochs_that_is_said() -> None:
    answer = recommend(walked(1_000_000), SAMPLES)
    assert answer.chosen.world_size > 1
    assert states(answer)["whole_data"] == "open"


def test_parts_of_the_data_are_no_whole_data() -> None:
    rows = sweep(SIZES)
    rows = rows.assign(samples_of_pass=1_000_000, samples_of_dataset=1_000_000)
    for job in (EPOCHS, SAMPLES):
        answer = recommend(rows, job)
        assert not {"whole_data", "another_epoch"} & {f.kind for f in answer.facts}
        assert answer.chosen.world_size > 1


def test_another_length_of_an_epoch_is_said_with_both_numbers() -> None:
    rows = sweep(SIZES).assign(samples_of_pass=250_000, samples_of_dataset=250_000)
    answer = recommend(rows, EPOCHS)
    assert values_of(answer, "another_epoch") == {
        "samples_per_epoch": 1_000_000,
        "samples_of_pass": 250_000,
    }
    head = answer_text(answer).split("\n\n")[0]
    assert "1,000,000 samples an epoch" in head
    assert "250,000" in head


def unconfirmed(sizes: tuple[int, ...], column: str) -> pd.DataFrame:
    """Return a sweep in which nothing confirmed a figure on some device counts."""
    rows = sweep(SIZES)
    doubted = rows["world_size"].isin(sizes)
    witness = doubted.map({True: "not_witnessed", False: "loader"})
    return rows.assign(**{column: witness})


@pytest.mark.parametrize(
    ("column", "mark", "kind"),
    [
        ("samples_witness", "samples", "samples_not_witnessed"),
        ("ranks_witness", "ranks", "not_witnessed"),
    ],
)
def test_a_witnessed_row_is_chosen_before_one_that_is_not(
    column: str, mark: str, kind: str
) -> None:
    rows = unconfirmed((2, 4), column)
    answer = recommend(rows, SAMPLES)
    assert answer.chosen.world_size == 1
    assert answer.chosen.marks is None
    others = [row for row in answer.rows if row.world_size > 1]
    assert {(row.marks, row.barred_by) for row in others} == {(mark, "marked")}
    assert states(answer)[kind] == "marked"
    accepted = recommend(rows, SAMPLES, accept_unmeasured=True)
    assert accepted.chosen.world_size > 1
    assert accepted.chosen.marks == mark


def test_where_no_row_is_witnessed_each_is_marked_and_one_is_chosen() -> None:
    answer = recommend(unconfirmed(SIZES, "samples_witness"), SAMPLES)
    assert answer.chosen.world_size > 1
    assert answer.meets_constraints
    assert {row.marks for row in answer.rows} == {"samples"}
    assert answer.chosen.barred_by is None
    head, table = answer_text(answer).split("\n\n")
    assert "Marked: the samples of a step." in head
    times = [line for line in table.splitlines() if "measured" in line]
    assert all("?" in line for line in times)
    assert "?: no second source confirms the samples of a step." in table


def test_rows_of_a_table_carry_no_mark() -> None:
    answer = recommend(sweep(SIZES).assign(kind="imported"), SAMPLES)
    assert {row.marks for row in answer.rows} == {None}
    assert "?" not in answer_text(answer)


def test_a_program_that_ends_early_is_said_with_both_numbers() -> None:
    rows = sweep(SIZES).assign(num_steps=22, steps_missed=28)
    answer = recommend(rows, SAMPLES)
    assert values_of(answer, "ended_early") == {
        "count": len(rows),
        "num_steps": 22,
        "asked_steps": 50,
    }
    assert states(answer)["ended_early"] == "open"
    every = recommend(sweep(SIZES).assign(steps_missed=None), SAMPLES)
    assert "ended_early" not in states(every)


def of_programs(**columns: dict[str, object]) -> pd.DataFrame:
    """Return a sweep of a fast and a slow program, with columns by program."""
    rows = sweep(SIZES)
    slower = rows.assign(
        step_time_s=2 * rows["step_time_s"],
        **{"options.program": "slow.py"},
    )
    both = pd.concat([rows.assign(**{"options.program": "fast.py"}), slower])
    for name, by_program in columns.items():
        both[name] = both["options.program"].map(by_program)
    return both.reset_index(drop=True)


def test_the_programs_and_their_times_stand_in_the_first_lines() -> None:
    answer = recommend(of_programs(), SAMPLES)
    times = values_of(answer, "programs")["times_s"]
    assert isinstance(times, dict)
    assert times["slow.py"] == pytest.approx(2 * times["fast.py"], rel=0.05)
    head = answer_text(answer).split("\n\n")[0]
    assert head.index("program fast.py") < head.index("slow.py")


def test_a_doubt_of_another_program_names_it() -> None:
    halves = {"slow.py": 0.5 * 64}
    rows = of_programs(
        samples_differ={"slow.py": "batch_sizes"}, samples_per_step=halves
    )
    answer = recommend(rows, SAMPLES)
    values = values_of(answer, "samples_differ")
    assert values["program"] == "slow.py"
    assert "Drawn" not in answer_text(answer).split("\n\n")[0]
    said = answer_text(answer, explain=True)
    assert "slow.py: Drawn, not asked" in said


def test_a_doubt_of_the_chosen_program_comes_first_and_names_none() -> None:
    rows = of_programs(
        samples_differ={"fast.py": "batch_sizes", "slow.py": "batch_sizes"},
        samples_per_step={"fast.py": 60.0, "slow.py": 60.0},
    )
    answer = recommend(rows, SAMPLES)
    first, *others = (f.values for f in answer.facts if f.kind == "samples_differ")
    assert "program" not in first
    assert {values["program"] for values in others} == {"slow.py"}
    assert "\nDrawn, not asked: 60 samples" in answer_text(answer)


def test_what_contradicts_another_program_is_a_ground() -> None:
    alone = {"slow.py": "alone"}
    rows = of_programs(ranks_witness=alone)
    rows["ranks_witness"] = rows["ranks_witness"].where(rows["world_size"] > 1)
    grounds = {g.kind: g.text for g in recommend(rows, SAMPLES).grounds}
    assert grounds["ranks_alone"].endswith("(slow.py)")


def test_a_mark_of_another_program_is_no_ground() -> None:
    rows = of_programs(samples_witness={"slow.py": "not_witnessed"})
    answer = recommend(rows, SAMPLES)
    assert "samples_not_witnessed" not in states(answer)
    assert values_of(answer, "samples_not_witnessed")["program"] == "slow.py"


def test_runs_that_contradict_one_another_name_their_program() -> None:
    rows = of_programs()
    is_slow = rows["options.program"] == "slow.py"
    again = rows[is_slow].assign(step_time_s=3 * rows["step_time_s"])
    answer = recommend(pd.concat([rows, again], ignore_index=True), SAMPLES)
    assert values_of(answer, "contradicting")["settings"] == {"program": "slow.py"}
    assert ", program slow.py, took" in answer_text(answer, explain=True)


def test_of_one_program_without_a_name_nothing_is_named() -> None:
    rows = drawn(0.5).assign(**{"options.program": None})
    assert "program" not in values_of(recommend(rows, SAMPLES), "samples_differ")
