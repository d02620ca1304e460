from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalelab.errors import SpecError
from scalelab.laws.rows import (
    configurations,
    curve_label,
    invalid_reasons,
    split_curves,
    step_time_rows,
)


def test_nodes_follow_from_devices_per_node() -> None:
    frame = pd.DataFrame(
        {"world_size": [4, 6, 8], "gpus_per_node": [4, 3, None], "local_batch_size": 8}
    )
    assert configurations(frame)["num_nodes"].tolist() == [1, 2, 1]


def test_the_local_batch_follows_from_the_global_batch() -> None:
    frame = pd.DataFrame(
        {
            "world_size": [4, 4],
            "global_batch_size": [256, 256],
            "gradient_accumulation_steps": [2, None],
        }
    )
    assert configurations(frame)["local_batch_size"].tolist() == [32, 64]


def test_the_global_batch_counts_the_ranks_that_see_different_samples() -> None:
    frame = pd.DataFrame(
        {
            "world_size": [8, 8, 8, 8],
            "local_batch_size": [32, 32, 32, None],
            "data_parallel_size": [2, None, None, 4],
            "global_batch_size": [64, 64, 512, 256],
            "gradient_accumulation_steps": [1, 1, 2, 1],
        }
    )
    found = configurations(frame)
    assert found["data_parallel_size"].tolist() == [2, 2, 8, 4]
    assert found["global_batch_size"].tolist() == [64, 64, 512, 256]
    assert found["local_batch_size"].tolist() == [32, 32, 32, 64]


def test_a_table_without_the_needed_columns_is_refused() -> None:
    with pytest.raises(SpecError, match=r"columns \['batch', 'gpus'\]"):
        configurations(pd.DataFrame({"gpus": [1], "batch": [2]}))


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (["shared_node"], ("shared_node",)),
        (np.array(["a", "b"]), ("a", "b")),
        ("a,b c", ("a", "b", "c")),
        (None, ()),
        (float("nan"), ()),
        ([], ()),
    ],
)
def test_validity_cells_of_any_table_are_read(
    cell: Any, expected: tuple[Any, ...]
) -> None:
    assert invalid_reasons(cell) == expected


def test_rows_are_left_out_for_a_stated_reason() -> None:
    frame = pd.DataFrame(
        {
            "world_size": [1, 1, 1, 1, 2],
            "local_batch_size": 8,
            "step_time_s": [0.1, None, 0.1, -1.0, 0.2],
            "outcome": ["completed", "completed", "failed", None, "pruned"],
            "validity": [[], [], [], [], []],
        }
    )
    chosen = step_time_rows(frame)
    assert chosen.left_out == (
        (("no step time",), 2),
        (("failed",), 1),
    )
    assert chosen.frame["world_size"].tolist() == [1, 2]


def test_trials_for_samples_to_a_target_are_not_missed_among_step_times() -> None:
    kinds = ["throughput", "convergence", "end_to_end", "convergence", None]
    frame = pd.DataFrame(
        {
            "kind": pd.array(kinds, dtype="string"),
            "world_size": [1, 1, 1, 2, 2],
            "local_batch_size": 8,
            "step_time_s": [0.1, None, None, 0.2, None],
        }
    )
    chosen = step_time_rows(frame)
    assert chosen.left_out == ((("no step time",), 1),)
    assert chosen.frame["world_size"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("column", "value"),
    [("world_size", np.inf), ("num_nodes", 5), ("local_batch_size", 0)],
)
def test_what_no_run_can_have_been_is_left_out(column: str, value: float) -> None:
    frame = pd.DataFrame(
        {"world_size": [4, 4.0], "num_nodes": 1, "local_batch_size": 8}
    ).assign(step_time_s=0.1)
    frame[column] = [frame[column].iloc[0], value]
    assert step_time_rows(frame).left_out == ((("no possible configuration",), 1),)


def test_curves_split_on_what_is_fixed_and_on_options() -> None:
    frame = pd.DataFrame(
        {
            "workload": ["a", "a", "b"],
            "options.feed": ["sharded", "replicated", None],
            "step_time_s": [1, 2, 3],
        }
    )
    curves = split_curves(frame)
    labels = {curve_label(key, curves) for key in curves}
    assert labels == {
        "workload=a, feed=sharded",
        "workload=a, feed=replicated",
        "workload=b",
    }
    assert curve_label((), [()]) == "all rows"
    assert len(split_curves(frame[["step_time_s"]])) == 1
