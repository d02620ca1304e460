"""Ways to train side by side, and what each costs in accuracy."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_up_runs import trial_row

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.evidence import side_by_side
from scalelab.recommend.answer.text import ways_table
from scalelab.recommend.evidence import ways, with_accuracy_gaps
from scalelab.records.observations import frame

ONE = {"kind": "end_to_end", "outcome": "completed", "parallelism": "ddp"}
ONE |= {"world_size": 1, "global_batch_size": 64, "local_batch_size": 64, "seed": 0}
ONE |= {"num_samples": 6400, "workload": "digits_mlp", "final_metric": 0.9}


def rows(*changes: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([{**ONE, **each} for each in changes])


def gaps(*changes: dict[str, Any]) -> list[float]:
    return list(with_accuracy_gaps(rows(*changes))["accuracy_gap"])


def test_a_gap_is_against_one_process_of_the_same_seed() -> None:
    found = gaps(
        {},
        {"seed": 1, "final_metric": 0.8},
        {"world_size": 2, "parallelism": "local_sgd", "final_metric": 0.92},
        {"world_size": 2, "seed": 1, "final_metric": 0.79},
    )
    assert np.isnan(found[:2]).all()
    assert found[2:] == pytest.approx([0.02, -0.01])


@pytest.mark.parametrize(
    "change",
    [
        {"num_samples": 3200},
        {"global_batch_size": 128},
        {"seed": 7},
        {"precision": "bf16"},
        {"options.width": 3},
        {"num_samples": None},
        {"final_metric": None},
    ],
)
def test_without_such_a_pair_there_is_no_gap(change: dict[str, Any]) -> None:
    one = {"precision": "fp32", "options.width": 2}
    (_, gap) = gaps(one, {**one, "world_size": 2, **change})
    assert np.isnan(gap)


def test_options_of_a_strategy_do_not_part_pairs() -> None:
    options = {"parallelism": "local_sgd", "options.averaging_period": 4}
    (_, gap) = gaps({}, {**options, "world_size": 2, "final_metric": 0.95})
    assert gap == pytest.approx(0.05)


def test_one_process_that_compresses_is_no_plain_model() -> None:
    plain = {"options.gradient_compression": "none"}
    products = {"options.gradient_compression": "powersgd", "options.powersgd_rank": 2}
    found = gaps(
        plain,
        {**products, "final_metric": 0.7},
        {**products, "world_size": 2, "final_metric": 0.88},
    )
    assert np.isnan(found[:2]).all()
    assert found[2] == pytest.approx(-0.02)


def test_ways_are_rows_with_their_own_columns() -> None:
    two = {"world_size": 2}
    served = {**two, "parallelism": "parameter_server", "options.rule": "dynsgd"}
    served |= {"staleness_mean": 0.9, "staleness_max": 3, "final_metric": 0.88}
    local = {**two, "parallelism": "local_sgd"}
    frame = rows(
        {"step_time_s": 0.4},
        {"seed": 1, "step_time_s": 0.6},
        {**two, "step_time_s": 0.25},
        {**served, "step_time_s": 0.3},
        {**served, "seed": 1, "final_metric": 0.84, "staleness_max": 5},
        {**served, "options.rule": "elastic"},
        {**local, "options.averaging_period": 16, "bubble_share": 0.25},
        {**local, "options.averaging_period": 4, "time_to_target_s": 9.0},
        {**local, "outcome": "failed", "options.averaging_period": 99},
    )
    found = ways(frame)
    assert [(row.world_size, row.parallelism, dict(row.settings)) for row in found] == [
        (1, "ddp", {}),
        (2, "ddp", {}),
        (2, "local_sgd", {}),
        (2, "local_sgd", {}),
        (2, "parameter_server", {"rule": "dynsgd"}),
        (2, "parameter_server", {"rule": "elastic"}),
    ]
    assert [row.averaging_period for row in found[2:4]] == [4, 16]
    assert [row.num_servers for row in found] == [None] * 4 + [1, 1]
    dynsgd = found[4]
    assert dynsgd.accuracy_gap is not None
    spread = dynsgd.accuracy_gap
    assert (spread.mean, spread.lo, spread.hi) == pytest.approx((-0.04, -0.06, -0.02))
    assert (dynsgd.staleness_mean, dynsgd.staleness_max) == (0.9, 5)
    assert found[0].step_time_s == 0.5

    table = ways_table(side_by_side(found))
    assert len(table["way"]) == 1 + 5  # those on two devices
    assert "size" not in table
    assert table["bubble"] == ["bubble", "", "", "25%", "", ""]
    assert table["gap"][4] == "-0.040 (-0.060 to -0.020)"
    assert table["staleness"][4] == "0.90 (max 5)"
    assert "size" in ways_table(found)


def test_one_way_is_no_comparison() -> None:
    assert ways(rows({}, {"world_size": 2}, {"world_size": 4})) == ()
    assert ways(rows({}).drop(columns="parallelism")) == ()
    assert side_by_side(()) == ()


def test_times_of_throughput_trials_count_where_there_are_any() -> None:
    other = {"parallelism": "fsdp"}
    timed = {**other, "kind": "throughput", "final_metric": None}
    frame = rows(
        {},
        {**other, "step_time_s": 5.0},
        {**timed, "step_time_s": 1.0},
        {**timed, "step_time_s": 9.0, "validity": ["loopback_nodes"]},
    )
    assert ways(frame)[1].step_time_s == 1.0


def test_rows_of_which_nothing_is_known_are_no_block() -> None:
    usual = {"world_size": 2, "kind": "throughput", "step_time_s": 0.1}
    crowded = {**usual, "world_size": 4, "validity": ["oversubscribed_cores"]}
    blank = {"final_metric": None, "num_samples": None}
    measured = [
        {**blank, **each, "parallelism": way}
        for way in ("ddp", "local_sgd")
        for each in (usual, crowded)
    ]
    found = ways(rows(*measured, {**blank, **crowded, "parallelism": "fsdp"}))
    assert {row.world_size for row in found} == {2, 4}
    shown = side_by_side(found)
    assert [(row.world_size, row.step_time_s) for row in shown] == [(2, 0.1)] * 2


def test_ranks_that_were_made_slow_are_no_choice() -> None:
    slow = "options.slow_rank_factor"
    measured = frame(
        [
            trial_row(size, 64, noise=noise, **({slow: factor} if size > 1 else {}))
            for factor, noise in ((1.0, 1.0), (3.0, 0.7))
            for size in (1, 2, 4, 8)
        ]
    )
    job = Job(epochs=2, samples_per_epoch=200_000)
    answer = recommend(measured, job)
    factors = {r.world_size: r.settings.get("slow_rank_factor") for r in answer.rows}
    assert {factors[size] for size in (2, 4, 8)} == {1.0}
    asked = recommend(measured, job, select={"slow_rank_factor": 3.0})
    assert asked.chosen.world_size > 1
    assert asked.chosen.is_eligible
