from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from scalelab.errors import SchemaError, StoreError
from scalelab.experiment.program import CommandProgram, MetricsSource, WorkloadProgram
from scalelab.experiment.trial import Measurement
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.target import MetricMode, Target
from scalelab.records.attempt import AttemptResult, AttemptSpec
from scalelab.records.columns import COLUMNS, COLUMNS_BY_NAME
from scalelab.records.observations import (
    check_row,
    counting_rows,
    finished_rows,
    frame,
    program_hash,
    row,
)


def test_a_row_has_every_column_and_nothing_invented(
    make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    spec = make_spec(7, (2, 1), options={"feed": "disk", "compile": True})
    observation = row(spec, measured)
    assert set(observation) == set(COLUMNS_BY_NAME) | {
        "options.feed",
        "options.compile",
    }
    expected = {
        "schema_version": 4,
        "run": "a run",
        "trial_id": spec.trial.trial_id,
        "repeat": 0,
        "attempt": 1,
        "outcome": "completed",
        "reason": None,
        "kind": "throughput",
        "workload": "digits_mlp",
        "emulated": False,
        "parallelism": "ddp",
        "options.feed": "disk",
        "options.compile": True,
        "device_type": "cpu",
        "device_ids": ["0", "1", "0"],
        "num_nodes": 2,
        "gpus_per_node": 1.5,
        "world_size": 3,
        "data_parallel_size": 3,
        "placement": "2+1",
        "local_batch_size": 32,
        "global_batch_size": 96,
        "lr_rule": "linear",
        "base_learning_rate": 0.1,
        "learning_rate": 0.2,
        "seed": 7,
        "step_time_s": 0.0125,
        "energy_j": None,
        "target_metric": None,
        "validity": [],
    }
    assert {name: observation[name] for name in expected} == expected


def test_what_the_batch_system_gave_is_part_of_the_row(
    make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    assert row(make_spec(), measured)["queue_wait_s"] is None
    spec = replace(make_spec(), queue_wait_s=90.0, exclusive_node=True)
    values = row(AttemptSpec.from_json(spec.to_json()), measured)
    assert (values["queue_wait_s"], values["exclusive_node"]) == (90.0, True)


def test_the_target_is_part_of_the_row(
    make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    target = Target(metric="val_loss", mode=MetricMode.MIN, value=2.9)
    spec = make_spec(measurement=Measurement(target=target))
    observation = row(spec, measured)
    names = ("target_metric", "metric_mode", "target_value")
    assert [observation[name] for name in names] == ["val_loss", "min", 2.9]


@pytest.mark.parametrize(("name", "workload"), [("vit", "vit"), ("", "a run")])
def test_a_command_is_named_after_its_experiment_wherever_its_run_lies(
    make_spec: Callable[..., Any], measured: AttemptResult, name: str, workload: str
) -> None:
    spec = replace(make_spec(), program=command("python t.py", "/here", name))
    assert row(spec, measured)["workload"] == workload


def test_reasons_against_a_fit_are_united(make_spec: Callable[..., Any]) -> None:
    spec = replace(make_spec(), validity=("loopback_nodes", "code_changed"))
    result = AttemptResult(
        outcome=Outcome.COMPLETED,
        measurements={"validity": ["shared_node", "code_changed"]},
    )
    assert row(spec, result)["validity"] == [
        "loopback_nodes",
        "code_changed",
        "shared_node",
    ]


@pytest.mark.parametrize(
    ("versions", "reasons"),
    [
        ('{"scalelab": "0.1.0"}', ["shared_node", "superseded_engine"]),
        ("{", ["shared_node", "superseded_engine"]),
        ('{"scalelab": "0.1.0", "engines": 2}', ["shared_node"]),
    ],
)
def test_a_row_of_workers_that_an_engine_made_wait_is_unfit_and_run_again(
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    versions: str,
    reasons: list[str],
) -> None:
    measurements = {"validity": ["shared_node"], "versions": versions}
    synchronous = replace(measured, measurements=measured.measurements | measurements)
    assert row(make_spec(), synchronous)["validity"] == ["shared_node"]
    served = measured.measurements | measurements | {"staleness_mean": 0.97}
    observation = row(make_spec(), replace(measured, measurements=served))
    assert observation["validity"] == reasons
    stored = {**observation, "schema_version": 1, "validity": ["shared_node"]}
    assert check_row(stored)["validity"] == check_row(check_row(stored))["validity"]
    assert check_row(stored)["validity"] == reasons
    is_finished = bool(finished_rows([check_row(stored)]))
    assert is_finished == (reasons == ["shared_node"])
    foreign = {**stored, "kind": "imported"}
    assert check_row(foreign)["validity"] == ["shared_node"]


def test_a_measurement_overrides_what_the_trial_implies(
    make_spec: Callable[..., Any],
) -> None:
    result = AttemptResult(
        outcome=Outcome.COMPLETED,
        measurements={"data_parallel_size": 1, "emulated": True, "seed": None},
    )
    observation = row(make_spec(3), result)
    assert observation["data_parallel_size"] == 1
    assert observation["emulated"] is True
    assert observation["seed"] == 3


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stepp_time_s", 1.0, "is no column of the observations. Report one of"),
        ("trial_id", "0", "names the attempt"),
        ("step_time_s", "fast", "must be a number: Seconds per optimiser step"),
        ("step_time_s", True, "must be a number"),
        ("num_steps", 1.0, "must be a whole number"),
        ("reached_target", 1, "must be true or false"),
        ("device_name", 3, "must be text"),
        ("hosts", "a", "must be a list of text"),
        ("hosts", [1], "must be a list of text"),
        ("started_at", "2026-11-20T10:00:00", "must be an ISO 8601 time with its UTC"),
        ("started_at", "noon", "must be an ISO 8601 time"),
        ("started_at", 1.0, "must be an ISO 8601 time"),
    ],
)
def test_a_wrong_measurement_is_named(
    make_spec: Callable[..., Any], name: str, value: Any, message: str
) -> None:
    result = AttemptResult(outcome=Outcome.COMPLETED, measurements={name: value})
    with pytest.raises(StoreError, match=rf"measurements\['{name}'\]=.*{message}"):
        row(make_spec(), result)


def command(text: str, directory: str, name: str = "") -> CommandProgram:
    return CommandProgram(
        command=text,
        launcher="none",
        env={},
        metrics=MetricsSource(),
        code_directory=directory,
        name=name,
    )


def test_the_program_hash_sees_content_not_location() -> None:
    base = program_hash(command("python t.py", "/here/code/0123"))
    assert base == program_hash(command("python t.py", "/elsewhere/0123", "vit"))
    assert base != program_hash(command("python t.py", "/here/code/4567"))
    assert base != program_hash(command("python u.py", "/here/code/0123"))
    plain = WorkloadProgram(name="digits_mlp")
    assert program_hash(plain) != program_hash(
        WorkloadProgram(name="digits_mlp", parameters={"width": 2})
    )


def test_the_frame_has_proper_types(
    make_spec: Callable[..., Any], measured: AttemptResult, lost: AttemptResult
) -> None:
    specs = [make_spec(0, options={"depth": 2}), make_spec(1)]
    observations = frame([row(specs[0], measured), row(specs[1], lost)])
    dtypes = {
        "integer": "Int64",
        "number": "Float64",
        "flag": "boolean",
        "text": "string",
        "time": "datetime64[ns, UTC]",
        "list": "object",
    }
    for column in COLUMNS:
        assert str(observations[column.name].dtype) == dtypes[column.kind], column
    assert observations["step_time_s"].tolist() == [0.0125, pd.NA]
    assert observations["started_at"].isna().tolist() == [False, True]
    ended = pd.Timestamp("2026-11-20T10:00:01.5", tz="UTC")
    assert observations.loc[0, "ended_at"] == ended
    assert observations["hosts"].tolist() == [["h0"], None]
    assert observations["reason"].tolist() == [pd.NA, "The node vanished."]
    names = list(observations)
    assert names.index("options.depth") == names.index("parallelism") + 1


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([True, False], "boolean", [True, False]),
        ([1, 2], "Int64", [1, 2]),
        ([1, 2.5], "Float64", [1.0, 2.5]),
        ([1, "auto"], "string", ["1", "auto"]),
        ([True, 2], "string", ["True", "2"]),
    ],
)
def test_an_axis_takes_the_narrowest_type(
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    values: list[Any],
    dtype: str,
    expected: list[bool | float | str],
) -> None:
    rows = [
        row(make_spec(seed, options={"axis": value}), measured)
        for seed, value in enumerate(values)
    ]
    observations = frame([*rows, row(make_spec(9), measured)])
    assert str(observations["options.axis"].dtype) == dtype
    assert observations["options.axis"].tolist() == [*expected, pd.NA]


def test_no_rows_still_make_a_frame_with_types() -> None:
    observations = frame([])
    assert list(observations) == [column.name for column in COLUMNS]
    assert str(observations["started_at"].dtype) == "datetime64[ns, UTC]"


def test_an_older_row_is_read_and_a_newer_one_refused(
    make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    observation = row(make_spec(), measured)
    older = {n: v for n, v in observation.items() if n != "energy_source"}
    assert frame([{**older, "schema_version": 0}])["energy_source"].isna().all()
    with pytest.raises(
        SchemaError, match=r"schema_version=5; this ScaleLab reads up to"
    ):
        frame([{**observation, "schema_version": 5}])


@pytest.mark.parametrize(
    ("outcomes", "counting"),
    [
        (["node_fail", "completed"], 2),
        (["completed", "completed"], 1),
        (["failed", "out_of_memory", "completed"], 2),
        (["node_fail", "failed", "preempted"], 3),
        (["target_not_reached"], 1),
    ],
)
def test_the_attempt_that_counts(outcomes: list[str], counting: int) -> None:
    rows = [
        {"trial_id": "a", "attempt": number, "outcome": outcome}
        for number, outcome in enumerate(outcomes, start=1)
    ]
    for order in (rows, rows[::-1]):
        (chosen,) = counting_rows(order)
        assert chosen["attempt"] == counting


def test_a_trial_is_finished_unless_it_was_lost_or_is_to_be_tried_again() -> None:
    rows = [
        {"trial_id": outcome.value, "attempt": 1, "outcome": outcome.value}
        for outcome in Outcome
    ]
    finished = {row["trial_id"] for row in finished_rows(rows)}
    assert set(Outcome) - finished == {"preempted", "node_fail", "cancelled"}
    finished = {row["trial_id"] for row in finished_rows(rows, retry_failed=True)}
    assert finished == {"completed", "target_not_reached", "out_of_memory", "pruned"}
