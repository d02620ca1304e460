"""Observations are prepared for the laws once, however many parts of an answer ask."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from made_up_runs import trial_row
from made_up_sweeps import convergence, sweep
from report_pages import page_of

from scalelab.experiment.job import Job
from scalelab.inputs.target import Target
from scalelab.laws import rows
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.kept import Question
from scalelab.recommend.by_device import answer
from scalelab.recommend.knowledge import History
from scalelab.recommend.question.objective import Constraints
from scalelab.records.observations import frame

JOB = Job(epochs=10, samples_per_epoch=1_000_000)


@pytest.fixture
def times_prepared(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count how often observations were prepared so far."""
    calls = []
    prepare = rows.step_time_rows

    def spy(observations: pd.DataFrame) -> rows.FitRows:
        calls.append(observations)
        return prepare(observations)

    monkeypatch.setattr(rows, "step_time_rows", spy)
    monkeypatch.setattr("scalelab.recommend.knowledge.step_time_rows", spy)
    return lambda: len(calls)


def whole_runs() -> pd.DataFrame:
    trained = convergence()
    ended = trained.assign(
        kind="end_to_end", world_size=4, num_nodes=1, time_to_target_s=9000.0
    )
    return pd.concat([sweep(lr_rule="sqrt"), trained, ended], ignore_index=True)


def test_a_recommendation_prepares_its_observations_once(
    times_prepared: Callable[..., Any],
) -> None:
    recommend(sweep(), JOB)
    assert times_prepared() == 1


@pytest.mark.slow
def test_checking_the_product_of_both_laws_prepares_nothing_more(
    times_prepared: Callable[..., Any],
) -> None:
    target = Target.parse("val_acc >= 0.9")
    found = recommend(whole_runs(), None, constraints=Constraints(target=target))
    assert any("end-to-end" in note for note in found.notes)
    assert times_prepared() == 1


@pytest.mark.slow
def test_node_groups_share_what_was_prepared_and_so_do_other_runs(
    times_prepared: Callable[..., Any],
) -> None:
    groups = [sweep(node_group=name) for name in ("a100", "h100")]
    history = History.of([("other", sweep(workload="other", node_group="a100"))])
    question = Question(
        job=JOB,
        limits=Constraints(),
        gpus=(),
        select={},
        law="scalelab",
        learn_from=(),
    )
    answer(question, pd.concat(groups, ignore_index=True), {}, history)
    assert times_prepared() == 2, "the run, and the other run"


@pytest.mark.slow
def test_a_report_prepares_nothing_that_its_answer_did(
    times_prepared: Callable[..., Any],
) -> None:
    observations = frame(
        [trial_row(n, 32, repeat=k) for n in (1, 2, 4, 8) for k in range(2)]
    )
    prepared = rows.prepared(observations)
    found = recommend(prepared, JOB)
    page_of(found, prepared, title="once")
    assert times_prepared() == 1
