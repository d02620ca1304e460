"""A run that was measured on one node learns of others what several cost."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from measured_runs import COMMAND, EMULATED, completed, measured_run, step_time_s
from sentences import refused

from scalelab.errors import StoreError
from scalelab.experiment.trial import Trial
from scalelab.inputs.allocation import Allocation
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.records.attempt import AttemptResult
from scalelab.session import Run, load

ONE_NODE = COMMAND.replace("name: trained", "name: heavier").replace(
    "gpus: [1, 2, 4, 8, 16]", "gpus: [1, 2, 4]"
)
LARGEST = Allocation.packed(16, devices_on_node=4)


def heavier(trial: Trial) -> AttemptResult:
    """Computation takes half as long again as that of the run it learns from."""
    step = step_time_s(trial.allocation, trial.local_batch_size)
    step += 0.5 * (0.010 + 0.002 * trial.local_batch_size)
    return completed(trial, step_time_s=step)


@pytest.fixture(autouse=True)
def _code(here: Path) -> None:
    (here / "train.py").write_text("")


@pytest.fixture
def asked(here: Path) -> Run:
    return load(measured_run(here / "heavier", ONE_NODE, heavier).directory)


@pytest.fixture
def taught(here: Path) -> Path:
    return measured_run(here / "trained", COMMAND).directory


def facts(answer: Recommendation) -> dict[str, Any]:
    return {fact.kind: fact.values for fact in answer.facts}


def of_kind(facts: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [fact for fact in facts if fact["kind"] == kind]


def assert_learned(facts: dict[str, Any], name: str) -> None:
    """One curve of one run has informed the answer."""
    learned = facts["learned_from"]
    assert learned["num_curves"] == 1
    (run,) = learned["runs"]
    assert run.startswith(f"{name} (")


def bases(answer: Recommendation) -> dict[int, str]:
    return {row.world_size: row.basis for row in answer.rows}


@pytest.mark.slow
def test_what_one_node_cannot_tell_is_learned_from_another_run(
    asked: Run, taught: Path
) -> None:
    batches = {"local_batch": 32, "max_batch": 512}
    alone = asked.recommend(gpus=[8, 16], **batches)
    assert bases(alone)[8] == bases(alone)[16] == "not measured here"
    assert facts(alone)["unmeasured_not_chosen"]["world_sizes"] == [8, 16]
    answer = asked.recommend(gpus=[8, 16], learn_from=[taught], **batches)
    assert bases(answer)[8] == bases(answer)[16] == "extrapolated"
    assert_learned(facts(answer), "trained")
    assert answer.num_observations == alone.num_observations
    row = answer.rows[-1]
    batch = row.batch.local_batch_size
    true = step_time_s(LARGEST, batch) + 0.5 * (0.010 + 0.002 * batch)
    assert row.step_time_s.lo < true < row.step_time_s.hi
    assert row.step_time_s.value == pytest.approx(true, rel=0.25)


@pytest.mark.repetition
@pytest.mark.slow
def test_one_measured_size_is_enough_where_others_tell_the_rest(
    here: Path, taught: Path
) -> None:
    text = ONE_NODE.replace("gpus: [1, 2, 4]", "gpus: [4]")
    asked = load(measured_run(here / "single", text, heavier).directory)
    assert bases(asked.recommend(gpus=[8, 16]))[16] == "not measured here"
    answer = asked.recommend(gpus=[8, 16], learn_from=[taught])
    assert bases(answer)[16] == "extrapolated"
    row = answer.rows[-1]
    batch = row.batch.local_batch_size
    true = step_time_s(LARGEST, batch) + 0.5 * (0.010 + 0.002 * batch)
    assert row.step_time_s.lo < true < row.step_time_s.hi


@pytest.mark.slow
def test_an_answer_is_kept_for_the_runs_it_was_learned_from(
    asked: Run, taught: Path
) -> None:
    def again() -> Run:
        return load(asked.directory)

    alone, told = again().recommend(), again().recommend(learn_from=[taught])
    assert bases(alone) != bases(told)
    assert again().recommend(learn_from=["trained"]) == told
    assert again().recommend() == alone
    copied = measured_run(taught.with_name("copied"), COMMAND).directory
    assert again().recommend(learn_from=[taught, copied]) == told
    from_more = measured_run(taught.with_name("more"), COMMAND, heavier).directory
    assert again().recommend(learn_from=[taught, from_more]) != told


@pytest.mark.repetition
@pytest.mark.slow
def test_a_run_named_twice_teaches_once(asked: Run, taught: Path) -> None:
    once = asked.recommend(gpus=[16], learn_from=[taught])
    twice = asked.recommend(gpus=[16], learn_from=[taught, "trained"])
    assert twice.rows == once.rows
    notes = [fact for fact in once.facts if fact.kind != "next_step"]  # a question
    assert [fact for fact in twice.facts if fact.kind != "next_step"] == notes


@pytest.mark.slow
def test_a_law_learns_too(asked: Run, taught: Path) -> None:
    question = asked.observations.head(1).assign(world_size=16, num_nodes=4)
    law = asked.fit(learn_from=[taught])
    assert law.predict(question)["support"].item() == "extrapolated"
    assert len(law.curves) == 1
    alone = asked.fit().predict(question)
    assert alone["support"].item() == "not measured here"


@pytest.mark.slow
def test_runs_that_cannot_teach_are_refused(
    asked: Run, taught: Path, here: Path
) -> None:
    unrelated = measured_run(here / "small", EMULATED).directory
    with refused("nothing_to_learn", "small"):
        asked.recommend(learn_from=[unrelated])
    answer = asked.recommend(learn_from=[unrelated, taught])
    assert_learned(facts(answer), "trained")
    with refused("own_rows", "heavier"):
        asked.recommend(learn_from=[asked.directory])
    with pytest.raises(StoreError, match="absent"):
        asked.fit(learn_from=[here / "absent"])
    with refused("law_learns_alone", "'usl'"):
        asked.recommend(law="usl", learn_from=[taught])


def table(workloads: Mapping[str, int]) -> str:
    """Return measurements of workloads on up to so many devices."""
    rows = ["workload,device_name,gpus,nodes,local_batch_size,step_time_s"]
    for workload, most in workloads.items():
        for count in (size for size in (1, 2, 4, 8, 16) if size <= most):
            place = Allocation.packed(count, devices_on_node=4)
            for batch in (16, 32):
                step = step_time_s(place, batch) + 0.001 * batch * (workload == "b")
                cells = (workload, "A100", count, place.num_nodes, batch, step)
                rows.append(",".join(map(str, cells)))
    return "\n".join(rows)


@pytest.mark.repetition
@pytest.mark.slow
def test_the_other_workloads_of_a_run_teach_too(
    scalelab: Callable[..., Any], here: Path
) -> None:
    for name, workloads in (("alone", {"b": 4}), ("both", {"a": 16, "b": 4})):
        (here / f"{name}.csv").write_text(table(workloads))
        assert scalelab("import", f"{name}.csv").code == 0
    asked = ("--select", "workload=b", "--samples", 1_000_000, "--gpus", "8,16")
    alone, both = (
        scalelab("recommend", f"runs/{name}", *asked).out for name in ("alone", "both")
    )
    assert "extrapolated" not in alone
    all_of_it = scalelab("recommend", "runs/alone", *asked, "--explain").out
    assert "--learn-from RUN" in " ".join(all_of_it.split())
    in_json = json.loads(scalelab("recommend", "runs/alone", *asked, "--json").out)
    (unmeasured,) = of_kind(in_json["facts"], "unmeasured_not_chosen")
    assert unmeasured["world_sizes"] == [8, 16]
    assert "not measured here" not in both
    assert both.count("extrapolated") == 2


@pytest.mark.slow
def test_the_command_learns(
    scalelab: Callable[..., Any], asked: Run, taught: Path
) -> None:
    asked = ("recommend", "heavier", "--gpus", 16, "--learn-from", "trained")
    answer = scalelab(*asked)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.count("extrapolated") == 1
    in_json = json.loads(scalelab(*asked, "--json").out)
    (learned,) = of_kind(in_json["facts"], "learned_from")
    assert_learned({"learned_from": learned}, "trained")
    scalelab("recommend", "heavier", "--learn-from", "heavier").assert_refused()
    scalelab("recommend", "heavier", "--learn-from", "nowhere").assert_refused()
