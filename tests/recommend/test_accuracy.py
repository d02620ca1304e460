"""Accuracy decides: gaps are said with the choice, and rule ways to train out."""

import json
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from made_up_sweeps import sweep
from sentences import Golden, refused

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.text import answer_text
from scalelab.recommend.question.objective import Constraints

JOB = Job(epochs=10, samples_per_epoch=1_000_000)
VARIED = "options.sync_batch_norm"


def way(
    value: bool,
    *,
    speed: float,
    gap: float,
    accepted: bool | None = None,
    metric: str = "val_acc",
    **columns: Any,
) -> pd.DataFrame:
    """Throughput trials of one way, and whole runs on one device and on four."""
    timed = sweep(parallelism="ddp", **{VARIED: value})
    timed["step_time_s"] *= speed
    whole = []
    for seed, size in ((seed, size) for seed in (0, 1) for size in (1, 4)):
        final = 0.95 + 0.01 * seed + (gap if size > 1 else 0)
        row = {"kind": "end_to_end", "outcome": "completed", "parallelism": "ddp"}
        row |= {"world_size": size, "num_nodes": 1, "global_batch_size": 256}
        row |= {"local_batch_size": 32, "gradient_accumulation_steps": 8 // size}
        row |= {"seed": seed, "num_samples": 10_000, "final_metric": final}
        row |= {"final_metrics": json.dumps({"other": 7, metric: final})}
        row |= {"workload": "made_up", "device_type": "cuda", "device_name": "A100"}
        row |= {"emulated": False, "accepted": accepted, VARIED: value}
        whole.append({**row, **columns})
    return pd.concat([timed, pd.DataFrame(whole)], ignore_index=True)


def ask(*ways: pd.DataFrame, **limits: Any) -> Recommendation:
    table = pd.concat(ways, ignore_index=True)
    return recommend(table, JOB, constraints=Constraints(**limits))


def chosen(answer: Recommendation) -> Any:
    return answer.chosen.settings["sync_batch_norm"]


FAST, EXACT = (
    way(False, speed=1.0, gap=-0.018, accepted=False),
    way(True, speed=1.2, gap=0.001, accepted=True),
)


def test_a_measured_gap_is_said_with_the_choice() -> None:
    answer = ask(FAST, EXACT)
    assert not chosen(answer)
    text = " ".join(answer_text(answer, explain=True).split())
    assert (
        "Accuracy of this way: val_acc -0.018 against one process of the same samples, "
        "batch and seed (2 pairs, -0.018 to -0.018), measured on 4 GPUs at global "
        "batch 256."
    ) in text
    assert "Accuracy is assumed" not in text
    assert text.index("Accuracy of this way") < text.index("Rule:")


def test_without_a_pair_accuracy_is_assumed() -> None:
    alone = FAST[(FAST["world_size"] == 1) | (FAST["kind"] == "throughput")]
    text = answer_text(ask(alone, EXACT), explain=True)
    assert (
        "Accuracy is assumed not to depend on sync_batch_norm (chosen: False)" in text
    )


@pytest.mark.parametrize(
    ("limit", "is_exact"), [(0.018, False), (0.01, True), (0.0, True)]
)
def test_a_limit_of_the_gap_rules_ways_out(limit: float, is_exact: bool) -> None:
    answer = ask(FAST, EXACT, max_gap=limit)
    assert chosen(answer) is is_exact
    assert answer.meets_constraints
    said = "Ruled out by accuracy: sync_batch_norm=False (val_acc -0.018)."
    assert (said in answer.said("accuracy")) is is_exact


def test_what_is_ruled_out_is_the_first_contradiction() -> None:
    """Step times that scatter do not hide why nothing, or another way, is chosen."""
    scattered = FAST.copy()
    scattered.loc[scattered.index[0], "step_time_s"] *= 3
    answer = ask(scattered, accept=("val_acc > 0.999",))
    assert not answer.meets_constraints
    kinds = [each.kind for each in answer.grounds if each.state == "contradicted"]
    assert kinds[0] == "ruled_out"
    assert len(kinds) > 1


def test_what_was_asked_of_models_is_the_first_confirmation(golden: Golden) -> None:
    answer = ask(EXACT)
    judged = Fact.of("accepted", num_judged=2, num_accepted=2, conditions="val_acc > 0")
    grounds = replace(answer, facts=(*answer.facts, judged)).grounds
    confirmed = [ground.text for ground in grounds if ground.state == "confirmed"]
    golden(confirmed[0])
    assert len(confirmed) > 1


@pytest.mark.slow
def test_times_do_not_depend_on_what_is_ruled_out() -> None:
    free, held = ask(EXACT, way(False, speed=1.5, gap=-1)), ask(EXACT, FAST, max_gap=0)
    assert chosen(free) is chosen(held) is True
    assert [row.batch for row in free.rows] == [row.batch for row in held.rows]


@pytest.mark.slow
def test_of_a_loss_less_is_better() -> None:
    ways = [
        way(False, speed=1.0, gap=0.2, metric="val_loss"),
        way(True, speed=1.2, gap=-0.2, metric="val_loss"),
    ]
    assert not chosen(ask(*ways))
    assert chosen(ask(*ways, max_gap=0.1))


@pytest.mark.slow
def test_a_way_without_a_pair_may_lose_more() -> None:
    alone = FAST[FAST["kind"] == "throughput"]
    answer = ask(alone, EXACT, max_gap=0.01)
    assert chosen(answer)
    said = "Ruled out by accuracy: sync_batch_norm=False (no accuracy gap measured)."
    assert said in answer.said("accuracy")
    with refused("no_accuracy_gap", "max_gap=0.01"):
        ask(alone, max_gap=0.01)


@pytest.mark.slow
def test_a_way_of_which_nothing_was_accepted_is_not_chosen() -> None:
    answer = ask(FAST, EXACT, accept=("val_acc >= 0.95",))
    assert chosen(answer)
    assert answer.meets_constraints
    assert "Ruled out by accuracy: sync_batch_norm=False (0 of 4 trained models " in (
        answer_text(answer, explain=True)
    )


@pytest.mark.slow
def test_where_nothing_was_accepted_nothing_meets(golden: Golden) -> None:
    refused = way(True, speed=1.2, gap=0, accepted=False)
    answer = ask(FAST, refused, accept=("val_acc >= 0.99",), limits={"time": 1e6})
    assert not answer.meets_constraints
    golden(answer_text(answer))
    assert not ask(FAST, refused, accept=("val_acc >= 0.99",)).meets_constraints


@pytest.mark.slow
def test_rows_of_a_changed_program_accept_nothing() -> None:
    changed = way(True, speed=1, gap=0, accepted=True, validity=["code_changed"])
    assert not ask(changed, accept=("val_acc >= 0.9",)).meets_constraints
    slow = way(True, speed=1, gap=0, accepted=True, validity=["oversubscribed_cores"])
    assert ask(slow, accept=("val_acc >= 0.9",)).meets_constraints
