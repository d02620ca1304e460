from itertools import chain

import pandas as pd
import pytest
from made_up_sweeps import convergence, sweep
from sentences import Golden, refused

from scalelab.experiment.job import Job
from scalelab.inputs.target import Target
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.kept import Question
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import sentences
from scalelab.recommend.answer.text import answer_text
from scalelab.recommend.by_device import answer
from scalelab.recommend.knowledge import History
from scalelab.recommend.question.objective import Constraints, RunSite
from scalelab.site.choice import site_of

JOB = Job(epochs=10, samples_per_epoch=1_000_000)
HOUR = 3600.0
FASTER = 2.5


def both(**columns: object) -> pd.DataFrame:
    """Measurements on two groups; a GPU of the second is faster, and has another name.

    On CPUs that stand for both the names would be the same.
    """
    old = sweep(node_group="a100", **columns)
    new = sweep(node_group="h100", seed=5, **{"device_name": "H100", **columns})
    new["step_time_s"] /= FASTER
    return pd.concat([old, new], ignore_index=True)


def sites(old: float | None, new: float | None) -> dict[str | None, RunSite]:
    """Return the groups of a site with the prices of their GPUs."""
    groups = {"a100": old, "h100": new}
    site = site_of(
        {
            "name": "alpine",
            "scheduler": "slurm",
            "device_type": "cuda",
            "gpus_per_node": 4,
            "node_groups": {
                name: {} if price is None else {"price_per_gpu_hour": price}
                for name, price in groups.items()
            },
        }
    )
    return {
        name: RunSite(site=group, devices_on_node=4, is_emulated=False)
        for name, group in site.groups.items()
    }


def question(**changed: object) -> Question:
    asked = {
        "job": JOB,
        "limits": Constraints(),
        "gpus": (),
        "select": {},
        "law": "scalelab",
        "learn_from": (),
    }
    return Question(**{**asked, **changed})


def said(found: Recommendation) -> list[str]:
    return [*chain(*sentences(found).values())]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return both()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prices", "best", "why"),
    [
        pytest.param(
            *((None, None), "h100", "the one that is fastest"),
            marks=pytest.mark.repetition,
        ),
        ((1.0, None), "h100", "the one that is fastest"),
        pytest.param(
            *((1.0, 2.0), "h100", "the one that costs least"),
            marks=pytest.mark.repetition,
        ),
        ((1.0, 4.0), "a100", "the one that costs least"),
    ],
)
def test_the_cheaper_group_is_recommended_or_the_faster_one(
    frame: pd.DataFrame, prices: tuple[float, float], best: str, why: str
) -> None:
    found = answer(question(), frame, sites(*prices))
    assert found.node_group == best
    (other,) = {"a100", "h100"} - {best}
    assert list(found.elsewhere) == [other]
    assert found.objective.endswith(f"of the devices, {why}")
    assert (found.chosen.cost is None) == (
        (prices[0] is None and best == "a100") or (prices[1] is None and best == "h100")
    )


@pytest.mark.slow
def test_each_group_is_answered_from_its_own_rows(frame: pd.DataFrame) -> None:
    found = answer(question(), frame, sites(1.0, 2.0))
    alone = recommend(frame[frame["node_group"] == "a100"], JOB)
    there = found.elsewhere["a100"]
    # what the workload costs by the batch on the other group is known beside them
    assert there.time_s.value == pytest.approx(alone.chosen.time_s.value, rel=1e-3)
    assert there.allocation == alone.chosen.allocation
    assert found.device_name == "H100"
    assert found.sweep_gpu_hours == pytest.approx(frame["allocated_gpu_s"].sum() / HOUR)
    assert "by the profile of site alpine.h100" in str(found.price)


@pytest.mark.slow
def test_a_budget_takes_the_fastest_group_that_keeps_it(frame: pd.DataFrame) -> None:
    least = min(
        row.cost.value
        for row in answer(question(), frame, sites(1.0, 20.0)).rows
        if row.cost
    )
    limits = Constraints(limits={"money": least * 1.5})
    found = answer(question(limits=limits), frame, sites(1.0, 20.0))
    assert found.node_group == "a100"
    assert found.meets_constraints
    assert not found.elsewhere["h100"].probability


@pytest.mark.slow
def test_where_nothing_holds_the_least_over_is_the_closest(
    frame: pd.DataFrame, golden: Golden
) -> None:
    found = answer(
        question(limits=Constraints(limits={"time": 1.0})), frame, sites(1, 2)
    )
    assert not found.meets_constraints
    assert found.node_group == "h100"
    golden(found.objective)
    (line,) = (text for text in said(found) if text.startswith("On a100 instead"))
    golden(line)


@pytest.mark.slow
def test_a_group_may_be_chosen(frame: pd.DataFrame) -> None:
    asked = question(select={"node_group": "a100"})
    found = answer(asked, frame, sites(1.0, 2.0))
    assert found.node_group == "a100"
    assert found.elsewhere == {}
    with refused("value_not_measured", "node_group=v100"):
        answer(question(select={"node_group": "v100"}), frame, {})


@pytest.mark.slow
def test_without_groups_it_is_the_plain_answer() -> None:
    plain = answer(question(), sweep(), {})
    assert plain == recommend(sweep(), JOB)
    assert plain.node_group == ""


@pytest.mark.slow
def test_a_group_that_cannot_be_answered_is_said(frame: pd.DataFrame) -> None:
    broken = frame.copy()
    broken.loc[broken["node_group"] == "a100", "outcome"] = "failed"
    found = answer(question(), broken, sites(1.0, 2.0))
    assert found.node_group == "h100"
    assert found.notes[-1].startswith("a100 is not compared: ")


@pytest.mark.repetition
@pytest.mark.slow
def test_samples_learnt_on_one_group_hold_on_the_other() -> None:
    lessons = convergence().assign(node_group="a100")
    frame = pd.concat([both(lr_rule="sqrt"), lessons], ignore_index=True)
    target = Target.parse("val_acc >= 0.9")
    found = answer(question(limits=Constraints(target=target)), frame, sites(1, 2))
    rows = {found.node_group: found.chosen, **found.elsewhere}
    assert set(rows) == {"a100", "h100"}
    a100, h100 = (rows[name].samples.value for name in ("a100", "h100"))
    assert h100 == pytest.approx(a100, rel=0.3)


@pytest.mark.slow
def test_the_text_names_both_groups(frame: pd.DataFrame) -> None:
    found = answer(question(), frame, sites(1.0, 2.0))
    text = answer_text(found, 100, explain=True)
    assert " H100 (" in text.splitlines()[0]
    assert " h100 node" in text.splitlines()[0]
    other = found.elsewhere["a100"]
    size = f"{other.world_size} GPUs ({other.allocation})"
    assert f"On a100 instead: {size}, " in text
    assert any(size in sentence for sentence in said(found))
    assert "usd" in text


@pytest.mark.repetition
@pytest.mark.slow
def test_the_groups_of_cpus_are_told_apart_by_name_alone() -> None:
    found = answer(question(), both(device_name="A100"), sites(None, None))
    assert found.node_group == "h100"
    assert found.device_name == "A100"


@pytest.mark.repetition
@pytest.mark.slow
def test_a_group_that_learns_nothing_from_other_runs_is_compared_still(
    frame: pd.DataFrame,
) -> None:
    other = sweep(workload="other", node_group="a100")
    history = History.of([("before", other)])
    answered = answer(question(), frame, {}, history)
    assert answered.node_group == "h100"
    assert answered.elsewhere.keys() == {"a100"}
    assert not any("not compared" in note for note in answered.notes)
    unrelated = History.of([("before", other.assign(node_group="old"))])
    with refused("nothing_to_learn", "before"):
        answer(question(), frame, {}, unrelated)
