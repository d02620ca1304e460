"""Calls from Python: an error names the argument as Python does, and what to write."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from measured_runs import EMULATED, measured_run

import scalelab
from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.running.sweep_end import SweepEnd
from scalelab.scheduling.summary import SweepSummary
from scalelab.session import Run, import_table, load


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load(measured_run(tmp_path / "run").directory)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_time": 4}, "max_time=4 has no unit. Write max_time='4h' or max_time_s"),
        ({"max_time": "4"}, "max_time: '4' is not a duration. Write a positive number"),
        ({"max_time": [4]}, "max_time=[4] is neither text nor a number. Write max_tim"),
        ({"max_gpu_hours": {}}, "max_gpu_hours={} is neither text nor a number."),
        ({"steps": 100, "job": {"steps": 9}}, "job and steps both say the job. Give"),
        ({"price": "2xyz"}, "recommend: price: the currency 'xyz' is not known."),
        ({"price": {"c4": 0}}, "recommend: price: 0 is not a price: it must be great"),
        ({"price": {"c4": [2]}}, "recommend: price: [2] is not a price. Write 2.5"),
        ({"price": "c4=2/day"}, "'2/day': nothing is charged per 'day'. Valid: dev"),
        (
            {"price": 2, "price_per_gpu_hour_usd": 2},
            "price and price_per_gpu_hour_usd both say a price. Give one of them.",
        ),
        ({"global_batch_size": 64}, "global_batch_size is no argument. Write batch="),
        ({"max_hour": 4}, "max_hour limits no resource. Did you mean 'max_gpu_hours'"),
        ({"confidence": "high"}, "recommend: confidence='high' must be a number."),
        (
            {"confidence": 90},
            "recommend: confidence: 90 must be less than 1. Write 0.9.",
        ),
        ({"confidence": None}, "recommend: confidence=None must be a number."),
        ({"target": 0.75}, "recommend: target: 0.75 is not a target. Write a metric,"),
        ({"price_per_gpu_hour_usd": [2]}, "price_per_gpu_hour_usd: [2] is not a price"),
        ({"price_per_gpu_hour_usd": -2}, "price_per_gpu_hour_usd: -2 is not a price:"),
        ({"price_per_gpu_hour_usd": "2eur"}, "='2eur' is not in usd. Write price="),
        ({"job": "90 epochs"}, "recommend: job: '90 epochs' is no job. Write its keys"),
        ({"job": 5}, "recommend: job: 5 is no job. Write its keys, such as {'epochs'"),
        ({"job": {"epochs": "many"}}, "recommend: job.epochs='many' must be a number."),
        ({"job": {"colour": 3}}, "recommend: unknown key 'job.colour'."),
        ({"batch": 2.5}, "recommend: batch=2.5 must be a whole number."),
        ({"max_batch": True}, "recommend: max_batch=True must be a whole number."),
        (
            {"local_batch": 10**10},
            "local_batch=10000000000 must be at most 1,000,000,000.",
        ),
        ({"gpus": "8"}, "recommend: gpus='8' must be a whole number. Numbers of devi"),
        ({"gpus": "8,16"}, "gpus='8,16' is one text. A list needs brackets: [8, 16]."),
        ({"gpus": 0}, "recommend: gpus=0 must be at least 1."),
        ({"gpus": [8, 2.5]}, "recommend: gpus[1]=2.5 must be a whole number."),
        ({"select": "workload=a"}, "recommend: select='workload=a' must be a mapping"),
        ({"select": {"workload": [1]}}, "recommend: select.workload: [1] is not a tex"),
        ({"law": 3}, "recommend: law=3 must be text."),
        ({"law": "murphy"}, "law='murphy' is unknown. Choose one of"),
        ({"learn_from": 7}, "recommend: learn_from: 7 is no path. Write one such as"),
    ],
)
def test_a_wrong_argument_is_named_as_in_python(
    run: Run, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=re.escape(message)) as caught:
        run.recommend(**given)
    assert "--" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"gpus": 4}, {"gpus": [4]}),
        ({"gpus": np.array([2, 4])}, {"gpus": range(2, 5, 2)}),
        ({"gpus": pd.Series([4])}, {"gpus": {4}}),
        ({"gpus": []}, {"gpus": None}),
        ({"job": {}}, {"job": None}),
        ({"job": {"samples": np.int64(900)}}, {"job": Job(samples=900)}),
        ({"max_gpu_hours": "100gpu-h"}, {"max_gpu_hours": 100}),
        ({"max_time": "6days"}, {"max_time_s": 6 * 86400.0}),
        ({"price_per_gpu_hour_usd": "2.5usd"}, {"price_per_gpu_hour_usd": 2.5}),
        ({"price": "2.5usd"}, {"price_per_gpu_hour_usd": 2.5}),
        ({"price": ["2.5usd"]}, {"price": 2.5}),
        ({"price": {"": "2.5usd/gpu-h"}}, {"price": "$2.50"}),
        ({"confidence": np.float64(0.8)}, {"confidence": 0.8}),
        ({"select": {"world_size": np.int64(2)}}, {"select": {"world_size": 2}}),
    ],
)
def test_the_same_said_otherwise_is_the_same_question(
    run: Run, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert run.recommend(**one) == run.recommend(**other)


def test_one_run_to_learn_from_needs_no_list(run: Run, tmp_path: Path) -> None:
    for given in (str(tmp_path / "none"), tmp_path / "none", [tmp_path / "none"]):
        with pytest.raises(scalelab.errors.StoreError, match="none is not a run"):
            run.recommend(learn_from=given)
        with pytest.raises(scalelab.errors.StoreError, match="none is not a run"):
            run.fit(learn_from=given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load(5), "load: directory: 5 is no path. Write one such as 'runs/dig"),
        (lambda: load(""), "load: directory: '' is no path."),
        (lambda: scalelab.load(None), "load: directory: None is no path."),
        (lambda: scalelab.sweep(3), "sweep: experiment: 3 is no path."),
        (
            lambda: scalelab.sweep("e.yaml", budget="10 apples"),
            "sweep: budget: '10 apples' is no budget of a sweep.",
        ),
        (
            lambda: scalelab.sweep("e.yaml", retry_failed="yes"),
            "sweep: retry_failed='yes' must be true or false.",
        ),
        (lambda: import_table(3, "r"), "import_table: table: 3 is no path."),
        (
            lambda: import_table("t.csv", "r", column="a=b"),
            "import_table: column='a=b' must be a mapping of keys to values. Their",
        ),
        (
            lambda: import_table("t.csv", "r", column={"world_size": 3}),
            "import_table: column.world_size=3 must be text.",
        ),
    ],
)
def test_other_calls_check_their_arguments_too(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        call()


def test_a_constant_of_a_table_may_be_a_number(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("gpus,step_time_s,local_batch_size\n1,0.1,8\n2,0.12,8\n")
    run = import_table(table, tmp_path / "run", constant={"num_nodes": 1})
    assert run.observations["num_nodes"].tolist() == [1, 1]


def test_a_budget_may_have_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[float | None] = []

    def take(asked: Any, *, rate: object) -> SweepEnd:
        budgets.append(asked.budget and asked.budget.amount / 3600)
        return SweepEnd(summary=SweepSummary(), is_interrupted=False, left_jobs=())

    monkeypatch.setattr("scalelab.running.execution.run_sweep", take)
    measured_run(tmp_path / "run")
    (tmp_path / "e.yaml").write_text(EMULATED)
    for budget in ("30gpu-min", 0.5, None):
        scalelab.sweep(tmp_path / "e.yaml", directory=tmp_path / "run", budget=budget)
    assert budgets == [0.5, 0.5, None]


def test_hints_and_notes_name_arguments_not_options(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("gpus,samples/s,global_batch_size\n1,10,64\n2,19,64\n8,70,64\n")
    with pytest.raises(SpecError, match="constant") as caught:
        import_table(table, tmp_path / "a")
    assert "--" not in str(caught.value)
    assert "constant={'gpus_per_node': '8'}" in str(caught.value)
    imported = import_table(table, tmp_path / "b", constant={"gpus_per_node": 8})
    answer = imported.recommend(job={"samples": 10**6})
    said = [*answer.notes, *answer.unsupported, *imported.import_notes]
    assert not [text for text in said if "--" in text]
    assert [text for text in said if "accept_unmeasured=True" in text]


def test_an_argument_that_is_misspelt_is_not_taken_for_a_limit_alone(run: Run) -> None:
    with pytest.raises(SpecError, match="Did you mean 'accept_unmeasured'"):
        run.recommend(acept_unmeasured=True)
