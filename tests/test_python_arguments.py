"""Calls from Python: an error names the argument as Python does, and what to write."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from measured_runs import EMULATED, measured_run
from sentences import refused

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
    ("given", "code", "values"),
    [
        ({"max_time": 4}, "not_a_limit", ["max_time=4", "max_time='4h'", "max_time_s"]),
        ({"max_time": "4"}, "not_a_quantity", ["max_time: '4'"]),
        ({"max_time": [4]}, "not_a_limit", ["max_time=[4]"]),
        ({"max_gpu_hours": {}}, "not_a_limit", ["max_gpu_hours={}"]),
        ({"steps": 100, "job": {"steps": 9}}, "job_said_twice", ["steps"]),
        ({"price": "2xyz"}, "unknown_currency", ["price", "'xyz'"]),
        ({"price": {"c4": 0}}, "price_not_positive", ["price: 0"]),
        ({"price": {"c4": [2]}}, "not_a_price", ["price: [2]", "2.5"]),
        ({"price": "c4=2/day"}, "unknown_unit_of_price", ["'2/day'", "'day'"]),
        ({"price": 2, "price_per_gpu_hour_usd": 2}, "price_said_twice", []),
        ({"global_batch_size": 64}, "unknown_argument", ["batch="]),
        ({"max_hour": 4}, "unknown_limit", ["max_hour", "'max_gpu_hours'"]),
        ({"confidence": "high"}, "float_type", ["confidence='high'"]),
        ({"confidence": 90}, "share_of_hundred", ["confidence: 90", "0.9"]),
        ({"confidence": None}, "float_type", ["confidence=None"]),
        ({"target": 0.75}, "not_text", ["target: 0.75"]),
        ({"price_per_gpu_hour_usd": [2]}, "not_a_price", ["price_per_gpu_hour_usd"]),
        ({"price_per_gpu_hour_usd": -2}, "price_not_positive", ["-2"]),
        ({"price_per_gpu_hour_usd": "2eur"}, "price_in_other_currency", ["'2eur'"]),
        ({"job": "90 epochs"}, "not_a_job", ["job: '90 epochs'"]),
        ({"job": 5}, "not_a_job", ["job: 5", "{'epochs'"]),
        ({"job": {"epochs": "many"}}, "float_type", ["job.epochs='many'"]),
        ({"job": {"colour": 3}}, "extra_forbidden", ["'job.colour'"]),
        ({"batch": 2.5}, "int_type", ["batch=2.5"]),
        ({"max_batch": True}, "int_type", ["max_batch=True"]),
        ({"local_batch": 10**10}, "less_than_equal", ["10000000000"]),
        ({"gpus": "8"}, "int_type", ["gpus='8'"]),
        ({"gpus": "8,16"}, "int_type", ["gpus='8,16'", "[8, 16]"]),
        ({"gpus": 0}, "greater_than_equal", ["gpus=0"]),
        ({"gpus": [8, 2.5]}, "int_type", ["gpus[1]=2.5"]),
        ({"select": "workload=a"}, "dict_type", ["select='workload=a'"]),
        ({"select": {"workload": [1]}}, "not_a_scalar", ["select.workload: [1]"]),
        ({"law": 3}, "string_type", ["law=3"]),
        ({"law": "murphy"}, "unknown_law", ["law='murphy'", "amdahl"]),
        ({"learn_from": 7}, "not_a_path", ["learn_from: 7"]),
    ],
)
def test_a_wrong_argument_is_named_as_in_python(
    run: Run, given: dict[str, Any], code: str, values: list[str]
) -> None:
    with refused(code, *values) as caught:
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
    ("call", "code", "value"),
    [
        (lambda: load(5), "not_a_path", "load: directory: 5"),
        (lambda: load(""), "not_a_path", "load: directory: ''"),
        (lambda: scalelab.load(None), "not_a_path", "load: directory: None"),
        (lambda: scalelab.sweep(3), "not_a_path", "sweep: experiment: 3"),
        (
            lambda: scalelab.sweep("e.yaml", budget="10 apples"),
            "not_a_budget",
            "sweep: budget: '10 apples'",
        ),
        (
            lambda: scalelab.sweep("e.yaml", retry_failed="yes"),
            "bool_type",
            "sweep: retry_failed='yes'",
        ),
        (lambda: import_table(3, "r"), "not_a_path", "import_table: table: 3"),
        (
            lambda: import_table("t.csv", "r", column="a=b"),
            "dict_type",
            "import_table: column='a=b'",
        ),
        (
            lambda: import_table("t.csv", "r", column={"world_size": 3}),
            "string_type",
            "import_table: column.world_size=3",
        ),
    ],
)
def test_other_calls_check_their_arguments_too(
    call: Callable[[], Any], code: str, value: str
) -> None:
    with refused(code, value):
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
    with refused("unknown_limit", "'accept_unmeasured'"):
        run.recommend(acept_unmeasured=True)
