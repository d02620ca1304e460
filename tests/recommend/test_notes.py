"""What an answer notes about its rows and about what it was asked: without any fit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_up_runs import outlook_row
from made_up_sweeps import sweep
from sentences import Golden

from scalelab.experiment.job import Job
from scalelab.inputs.numerals import Interval
from scalelab.inputs.outcome import Support
from scalelab.laws.rows import configurations, step_time_rows
from scalelab.laws.support import Gap
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.facts import Contents, Fact
from scalelab.recommend.answer.note_words import in_words
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.notes import (
    about_efficiency,
    against_cheapest,
    are_of_first_epoch,
    considered,
    contents_of_times,
    contradicting,
    cut_to_an_epoch,
    not_chosen,
    not_identifiable,
)
from scalelab.recommend.prediction.consistency import (
    contradictions,
    disagreeing_rates,
    equal_losses,
    not_settled,
    not_witnessed,
    unknown_scatter,
)
from scalelab.recommend.question.batches import AskedBatch, BatchRule

ROWS = sweep((1, 2, 4), local_batches=(16,), repeats=1)
TWICE = sweep((1, 2, 4), local_batches=(16,), repeats=2)
JOB = Job(samples=1_000_000)


def rule(job: Job = JOB, asked: AskedBatch | None = None) -> BatchRule:
    names = ["world_size", "num_nodes", "local_batch_size"]
    rows = [(n, 1, 32, 1) for n in (1, 2, 4, 8)]
    frame = pd.DataFrame(rows, columns=[*names, "gradient_accumulation_steps"])
    return BatchRule.of(configurations(frame), asked or AskedBatch(), job)


# ------------------------------------------------------------------------- rows
@pytest.mark.slow
def test_a_single_reading_is_not_taken_as_exact() -> None:
    measured = [row for row in recommend(ROWS, JOB).rows if row.basis == "measured"]
    assert measured
    for row in measured:
        assert row.step_time_s.hi > 1.01 * row.step_time_s.lo


@pytest.mark.parametrize(
    ("columns", "contents"),
    [
        ({"compute_s": 0.1}, "steps"),
        ({"compute_s": None, "evaluation_s": 0.5}, "steps_and_checkpoints"),
        ({"compute_s": None, "evaluation_s": 0.0}, "all"),
        ({"compute_s": None, "evaluation_s": None}, "all"),
        ({"compute_s": None, "kind": "imported"}, "given"),
    ],
)
def test_times_contain_what_the_rows_say(
    columns: dict[str, object], contents: Contents
) -> None:
    assert contents_of_times(step_time_rows(ROWS.assign(**columns))) is contents


@pytest.mark.parametrize(
    ("seen", "by", "job", "is_said"),
    [
        (999, "log", {"epochs": 90}, True),
        (1000, "inside", {"target": "val_acc >= 0.9"}, True),
        (1000, "inside", {"epochs": 1}, False),
        (1001, "log", {"epochs": 90}, False),
        (999, "log", {"steps": 62}, False),
        (999, "engine", {"epochs": 90}, False),
        (999, "log", {"samples": 90_000, "samples_per_epoch": None}, False),
    ],
)
def test_a_window_inside_the_first_of_several_epochs_is_told(
    seen: int, by: str, job: dict[str, Any], is_said: bool
) -> None:
    rows = step_time_rows(ROWS.assign(num_samples=seen, measured_by=by))
    asked = Job(**{"samples_per_epoch": 1000, **job})
    assert are_of_first_epoch(rows, asked, 16) is is_said
    assert not are_of_first_epoch(rows, None, 16)


def scatter(rows: pd.DataFrame) -> list[Fact]:
    return list(unknown_scatter(step_time_rows(rows)))


def test_runs_with_few_readings_and_no_repeat_are_told() -> None:
    step_s = ROWS["step_time_s"]
    rows = ROWS.assign(step_time_lo_s=0.99 * step_s, step_time_hi_s=1.01 * step_s)
    assert scatter(rows) == []
    few = rows.copy()
    few.loc[:1, ["step_time_lo_s", "step_time_hi_s"]] = np.nan
    assert scatter(few) == [Fact("few_readings", {"num_runs": 2})]
    again = few.assign(repeat=1, step_time_s=1.02 * few["step_time_s"])
    assert scatter(pd.concat([few, again], ignore_index=True)) == []


def test_a_table_without_repeats_is_told() -> None:
    rows = ROWS.assign(kind="table")
    assert scatter(rows) == [Fact("no_repeats")]
    again = rows.assign(repeat=1, step_time_s=1.02 * rows["step_time_s"])
    assert scatter(pd.concat([rows, again], ignore_index=True)) == []


@pytest.mark.parametrize(
    ("witnesses", "ends"),
    [
        ({}, None),
        ({1: None, 2: "store", 4: "sockets"}, None),
        ({1: None, 2: "not_witnessed", 4: "not_witnessed"}, (2, 4)),
        ({1: None, 2: "store", 4: "not_witnessed"}, (4, 4)),
    ],
)
def test_only_rows_whose_ranks_nobody_saw_are_named(
    witnesses: dict[int, str | None], ends: tuple[int, int] | None
) -> None:
    rows = TWICE
    if witnesses:
        seen = rows["world_size"].map(witnesses).astype("string")
        rows = rows.assign(ranks_witness=seen)
    found = [fact.values for fact in not_witnessed(step_time_rows(rows))]
    if ends is None:
        assert found == []
    else:
        (values,) = found
        assert (values["least"], values["most"]) == ends
        assert values["count"] == list(map(str, seen)).count("not_witnessed")


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        ("ranks_witness", "same_data", "same_data"),
        ("samples_witness", "not_witnessed", "samples_not_witnessed"),
    ],
)
def test_what_nothing_has_confirmed_is_named(
    column: str, value: object, kind: str
) -> None:
    rows = step_time_rows(TWICE.assign(**{column: value}))
    (fact,) = not_witnessed(rows)
    assert (fact.kind, fact.values["count"]) == (kind, len(TWICE))
    assert not [*not_witnessed(step_time_rows(TWICE.assign(**{column: "inside"})))]


def test_unsettled_steps_are_named_with_the_bound_of_the_nearest() -> None:
    assert not [*not_settled(step_time_rows(TWICE.assign(settled=True)), 4)]

    rows = TWICE.assign(settled=TWICE["world_size"] == 1, step_time_bound="at_least")
    (fact,) = not_settled(step_time_rows(rows), 4)
    at = rows[rows["world_size"] == 4]["step_time_s"]
    assert fact.values == {
        "bound": "at_least",
        "count": int((rows["world_size"] > 1).sum()),
        "world_size": 4,
        "step_time_s": at.iloc[0],
    }
    (older,) = not_settled(step_time_rows(TWICE.assign(settled=False)), 4)
    assert older.values["bound"] is None  # recorded before bounds were


def test_both_figures_are_given_where_a_program_prints_another_rate() -> None:
    steps_s = TWICE["step_time_s"]

    def noted(**columns: object) -> list[Fact]:
        return list(disagreeing_rates(step_time_rows(TWICE.assign(**columns))))

    assert noted() == []
    assert noted(reported_step_time_s=steps_s * 1.05) == []
    (fact,) = noted(reported_step_time_s=steps_s / 2.4)
    assert (fact.values["num_trials"], fact.values["world_size"]) == (6, 1)
    assert fact.values["is_left_out"] is False
    own = steps_s.where(TWICE["world_size"] != 4, steps_s * 16)
    marks = [["rate_disagrees"] if size == 4 else [] for size in TWICE["world_size"]]
    (fact,) = noted(reported_step_time_s=own, validity=marks)
    assert fact.values["is_left_out"] is True
    ours_s, own_s = fact.values["step_time_s"], fact.values["reported_step_time_s"]
    assert own_s == pytest.approx(16 * ours_s)


def test_equal_losses_of_other_batches_are_told() -> None:
    rows = sweep((1, 2, 4), global_batch=None, local_batches=(16,), repeats=2)
    printed = rows["world_size"].map({1: "2.3 2.2 2.1 2.0", 2: "2.3 2.2 2.1 2.0"})
    (fact,) = equal_losses(step_time_rows(rows.assign(first_losses=printed)))
    assert fact == Fact("equal_losses", {"batches": ["16", "32"]})
    # Ranks that share a batch may print its mean loss.
    assert not [*equal_losses(step_time_rows(TWICE.assign(first_losses="2.3 2.2 2")))]
    assert not [*equal_losses(step_time_rows(rows))]


@pytest.mark.parametrize(
    ("witness", "most"), [(None, 4), ("one_process", 1), ("not_witnessed", 4)]
)
def test_no_further_devices_are_proposed_for_one_plain_process(
    witness: str | None, most: int
) -> None:
    alone = sweep((1,), repeats=2).assign(ranks_witness=witness)
    answer = recommend(alone, JOB)
    assert max(row.world_size for row in answer.rows) == most
    asked = recommend(alone, JOB, gpus=[1, 2])
    assert max(row.world_size for row in asked.rows) == 2


def test_of_contradicting_configurations_the_worst_is_named() -> None:
    sizes = (1, 2, 4, 8, 16)
    first = sweep(sizes, local_batches=(16,), repeats=1, global_batch=None)
    rows = pd.concat([first, first.assign(step_time_s=3.0)], ignore_index=True)
    (fact,) = contradicting(contradictions(step_time_rows(rows)))
    assert fact.kind == "contradicting"
    assert fact.values["num_configurations"] == len(sizes)
    assert fact.values["num_runs"] == 2
    assert fact.values["most_s"] == 3.0
    assert fact.values["factor"] == pytest.approx(3.0 / first["step_time_s"].min())


# --------------------------------------------------------------------- question
def test_rows_beyond_the_allowed_batches_are_not_chosen() -> None:
    rows = [outlook_row(8, 256), outlook_row(16, 512, is_eligible=False)]
    (fact,) = not_chosen(rule(), rows, is_proposed=False, is_accepted=False)
    assert fact == Fact(
        "batch_too_large",
        {
            "world_size": 16,
            "largest": 256,
            "why": "the largest that was measured",
            "may_ask": True,
        },
    )
    assert (
        list(not_chosen(rule(), rows[:1], is_proposed=False, is_accepted=False)) == []
    )


def test_rows_that_rest_on_a_belief_are_not_chosen() -> None:
    guess = outlook_row(8, 256, is_eligible=False, basis=Support.NOT_MEASURED)
    (fact,) = not_chosen(rule(), [guess], is_proposed=True, is_accepted=False)
    assert fact == Fact(
        "unmeasured_not_chosen", {"world_sizes": [8], "is_proposed": True}
    )
    beyond = outlook_row(8, 512, is_eligible=False, basis=Support.NOT_MEASURED)
    (fact,) = not_chosen(rule(), [beyond], is_proposed=True, is_accepted=True)
    assert fact.kind == "batch_too_large"


def test_an_epoch_cuts_the_batches() -> None:
    epoch = Job(epochs=90, samples_per_epoch=100)
    assert list(cut_to_an_epoch(rule())) == []
    cut = Fact("cut_to_an_epoch", {"largest": 100})
    assert list(cut_to_an_epoch(rule(epoch))) == [cut]


def test_what_was_considered_names_what_else_may_be_asked() -> None:
    rows = [outlook_row(size, 256) for size in (1, 8)]
    values = considered(rule(), rows, []).values
    assert (values["least"], values["most"]) == (1, 8)
    assert (values["may_ask_devices"], values["may_ask_batches"]) == (True, True)
    epoch = Job(epochs=90, samples_per_epoch=100)
    values = considered(rule(epoch), rows, [1]).values
    assert (values["may_ask_devices"], values["may_ask_batches"]) == (False, False)


# ------------------------------------------------------------------------ answer
def test_an_efficiency_is_named_and_explained_where_it_exceeds_1(
    golden: Golden,
) -> None:
    base = outlook_row(4, 256, is_baseline=True, scaling=None)
    better = Interval(value=1.2, lo=1.1, hi=1.3)
    fewer = outlook_row(1, 256, scaling="weak", scaling_efficiency=better)
    plain = outlook_row(8, 256)
    more = replace(plain, scaling_efficiency=better)
    weak = replace(more, scaling="weak")
    unsure = replace(more, scaling_efficiency=Interval(value=1.02, lo=0.9, hi=1.1))

    def said(*rows: OutlookRow) -> list[str]:
        return [in_words(fact, "GPU") for fact in about_efficiency([base, *rows], 4)]

    assert said() == []
    strong = "Strong efficiency: samples/s per GPU against 4 GPUs at the same global "
    assert said(plain) == [f"{strong}batch."]
    slow = "the fewest devices were measured slow: measure them again."
    cache = "Efficiency over 100%: a smaller batch per device may fit a cache, or "
    assert said(more)[1:] == [cache + slow]
    assert said(weak)[1:] == [f"Efficiency over 100%: {slow}"]
    golden(*said(unsure)[1:])
    golden(*said(fewer)[1:])
    golden(said(plain, weak)[0])


def test_the_choice_is_compared_with_the_cheapest_row_that_may_be_chosen() -> None:
    rows = [outlook_row(size, 256, is_chosen=size == 8) for size in (1, 4, 8)]
    cheapest = min(rows[:2], key=lambda row: row.gpu_hours.value)
    more = rows[2].gpu_hours.value / cheapest.gpu_hours.value - 1
    values = {"world_size": cheapest.world_size, "more": more}
    assert list(against_cheapest(rows)) == [Fact("against_cheapest", values)]
    barred = [replace(row, is_eligible=row.is_chosen) for row in rows]
    assert list(against_cheapest(barred)) == []


def test_a_gap_of_several_curves_is_told_once() -> None:
    gap = Gap(
        parameters=("inter_node_latency",),
        why="one node was measured",
        remedy="Measure two nodes.",
        world_size=8,
        num_nodes=2,
        local_batch_size=16,
        data_parallel_size=8,
    )
    gaps = [gap, replace(gap, local_batch_size=8)]
    (fact,) = not_identifiable(gaps, is_emulated=False)
    assert fact.values["may_learn"]
    (declared,) = not_identifiable(gaps, is_emulated=True)
    assert not declared.values["may_learn"]
    (other,) = not_identifiable(
        [replace(gap, parameters=("overlap",))], is_emulated=False
    )
    assert not other.values["may_learn"]
