"""The learning-rate rule is one of the dimensions in which candidates differ."""

from typing import Any

import pandas as pd
import pytest
from made_up_sweeps import convergence, sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.evidence import RateRow
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.text import answer_text, rates_table
from scalelab.recommend.question.batches import AskedBatch

TARGET = Job(target="val_acc >= 0.9")
BATCHES = (64, 128, 256, 512)
GIVEN = 700_000  # samples that a run that missed was given


def of_rule(rule: str, *, factor: float = 1.0, missed: int = 0) -> pd.DataFrame:
    """Three runs at each batch; of those at the largest, some missed the target."""
    rows = convergence(BATCHES, lr_rule=rule)
    rows["samples_to_target"] = (rows["samples_to_target"] * factor).round()
    rows["seed"] = [*range(3)] * len(BATCHES)
    rows = rows.assign(num_samples=rows["samples_to_target"], allocated_gpu_s=36.0)
    late = rows.index[-missed:] if missed else rows.index[:0]
    rows.loc[late, "samples_to_target"] = None
    rows.loc[late, "num_samples"] = GIVEN
    rows.loc[late, "reached_target"] = False
    rows.loc[late, "outcome"] = "target_not_reached"
    return rows


@pytest.fixture(scope="module")
def measured() -> pd.DataFrame:
    """Linear needs the fewest samples where it arrives; at 512 it seldom does."""
    throughput = sweep((1, 2), global_batch=512, local_batches=(64,), lr_rule="sqrt")
    rules = (
        of_rule("sqrt"),
        of_rule("linear", factor=0.5, missed=2),
        of_rule("none", factor=1.3, missed=3),
    )
    return pd.concat([throughput, *rules], ignore_index=True)


def asked(measured: pd.DataFrame, **question: Any) -> Recommendation:
    return recommend(
        measured, TARGET, batches=AskedBatch(global_batch_size=512), **question
    )


@pytest.fixture(scope="module")
def found(measured: pd.DataFrame) -> Recommendation:
    return asked(measured)


def test_the_chance_chooses_the_rule_and_not_the_fewest_samples(
    found: Recommendation,
) -> None:
    assert found.meets_constraints
    assert found.learning_rate is not None
    assert found.learning_rate.rule == "sqrt"
    assert {row.settings["lr_rule"] for row in found.rows} == {"sqrt"}
    assert "(rule: sqrt)" in answer_text(found)


def test_a_rule_that_is_selected_changes_no_number(
    measured: pd.DataFrame, found: Recommendation
) -> None:
    alone = asked(measured, select={"lr_rule": "sqrt"})
    assert [r.time_s for r in alone.rows] == [r.time_s for r in found.rows]
    assert [r.basis for r in alone.rows] == [r.basis for r in found.rows]
    assert [r.probability for r in alone.rows] == [r.probability for r in found.rows]
    linear = asked(measured, select={"lr_rule": "linear"})
    assert not linear.meets_constraints
    assert linear.learning_rate is not None
    assert linear.learning_rate.rule == "linear"


def test_a_rule_that_is_selected_names_the_rate_without_a_target(
    measured: pd.DataFrame,
) -> None:
    found = recommend(measured, Job(samples=10**6), select={"lr_rule": "none"})
    assert found.learning_rate is not None
    assert found.learning_rate.rule == "none"
    timed = measured[measured["kind"] == "throughput"].assign(learning_rate=0.1)
    other = pd.concat([timed, timed.assign(lr_rule="linear")], ignore_index=True)
    found = recommend(other, Job(samples=10**6), select={"lr_rule": "linear"})
    assert found.learning_rate is not None
    assert found.learning_rate.rule == "linear"


def test_rules_are_compared_at_every_batch(found: Recommendation) -> None:
    at = {(r.settings["lr_rule"], r.global_batch_size): r for r in found.rates}
    assert len(at) == 3 * len(BATCHES)
    largest = {rule: at[rule, 512] for rule in ("sqrt", "linear", "none")}
    reached = {rule: (r.num_reached, r.num_runs) for rule, r in largest.items()}
    assert reached == {"sqrt": (3, 3), "linear": (1, 3), "none": (0, 3)}
    assert largest["sqrt"].probability > 0.9
    # one of three arrived: the formula's belief in bad luck is worth one run more
    assert largest["linear"].probability < 0.55
    assert largest["none"].probability < 0.3
    assert largest["none"].samples_to_target is None
    text = answer_text(found, 100, explain=True)
    assert "Runs to the target by rule: " in text
    (line,) = (line for line in text.splitlines() if line.strip().startswith("512"))
    assert "1/3" in line
    assert "- 0/3" in line
    assert "learning_rates" in found.to_json()


def test_runs_that_missed_are_said_with_what_they_took(
    measured: pd.DataFrame, found: Recommendation
) -> None:
    assert "Missed: 5 of 36 runs did not reach val_acc >= 0.9 (0.050 GPU-h)" in repr(
        found.said("accuracy")
    )
    said = asked(measured, select={"lr_rule": "linear"}).said("accuracy")
    assert "2 of 3 at global batch 512, rule linear, within 700,000 samples." in said[0]


def test_without_a_stated_length_nothing_later_than_the_longest_run_counts() -> None:
    throughput = sweep((1,), global_batch=512, local_batches=(64,))
    runs = of_rule("sqrt", missed=1)
    runs.loc[runs["num_samples"] == GIVEN, "num_samples"] = 310_000
    rows = pd.concat([throughput, runs], ignore_index=True)
    capped = asked(rows)
    # a run takes 300,000 samples at this batch
    assert capped.rates[-1].within_samples == 310_000
    stated = recommend(
        rows,
        Job(target="val_acc >= 0.9", samples=10**6),
        batches=AskedBatch(global_batch_size=512),
    )
    assert stated.chosen.probability > capped.chosen.probability + 0.1


def test_the_critical_batch_is_said(found: Recommendation) -> None:
    (fact,) = (fact for fact in found.facts if fact.kind == "critical_batch")
    assert fact.values["lo"] < 256 < fact.values["hi"]
    assert fact.values["rule"] == "sqrt"
    (said,) = found.said("rates")
    assert "twice the batch nearly halves the steps" in said


def test_only_settings_that_share_a_batch_or_differ_in_their_rule_are_a_table() -> None:
    def row(batch: int, **settings: Any) -> RateRow:
        return RateRow(
            settings=settings,
            global_batch_size=batch,
            learning_rate=None,
            num_runs=1,
            num_reached=0,
            samples_to_target=None,
            final_metric=None,
            probability=0.5,
            within_samples=None,
            missed_within_samples=None,
        )

    apart = [row(64, workers=2), row(128, workers=4)]
    assert rates_table(apart) == {}
    assert len(rates_table([*apart, row(64, workers=4)])) == 3
    assert len(rates_table([row(64, lr_rule="none"), row(128, lr_rule="sqrt")])) == 3
    assert rates_table([row(64, lr_rule="none"), row(128, lr_rule="none")]) == {}
