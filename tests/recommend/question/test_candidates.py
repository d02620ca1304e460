import numpy as np
import pandas as pd
import pytest

from scalelab.inputs.placeholders import Untold
from scalelab.laws.rows import configurations
from scalelab.recommend.question.batches import AskedBatch, BatchRule
from scalelab.recommend.question.candidates import (
    allocation_label,
    candidates,
    is_printed,
    places,
    runnable,
)
from scalelab.records.columns import PROGRAM_COLUMN


def measured(rows: list[tuple[int, ...]]) -> pd.DataFrame:
    names = ["world_size", "num_nodes", "local_batch_size"]
    frame = pd.DataFrame(rows, columns=[*names, "gradient_accumulation_steps"])
    return configurations(frame)


STRONG = measured([(1, 1, 32, 4), (2, 1, 32, 2), (4, 1, 16, 2), (8, 2, 16, 1)])
RULE = BatchRule.of(STRONG, AskedBatch(), None)


def test_places_are_doublings_and_whole_nodes_up_to_four_times_packed() -> None:
    found = places(STRONG)
    assert found[:3] == [(1, 1), (2, 1), (4, 1)]
    assert found[3:] == [(4 * nodes, nodes) for nodes in range(2, 9)]
    assert (6, 2) in places(STRONG, [6])
    assert (16, 4) not in places(STRONG, [6])


def test_a_node_holds_what_is_declared_not_what_was_measured_of_it() -> None:
    rows = measured([(1, 1, 8, 1), (2, 1, 8, 1)])
    assert places(rows) == [(1, 1), (2, 1), (4, 2), (6, 3), (8, 4)]
    assert places(rows, (), 8) == [(1, 1), (2, 1), (4, 1), (8, 1)]


def test_a_lone_device_is_joined_by_another_on_its_node_first() -> None:
    assert places(measured([(1, 1, 8, 1)])) == [(1, 1), (2, 1), (4, 2)]


def test_holes_between_measured_sizes_are_filled() -> None:
    rows = measured([(1, 1, 8, 1), (4, 1, 8, 1), (16, 4, 8, 1)])
    assert (8, 2) in places(rows)


def test_the_table_has_the_measured_sizes_and_the_doublings_or_those_asked() -> None:
    sizes = np.array([1, 2, 4, 8, 12, 16, 20, 32])
    assert sizes[is_printed(sizes, STRONG)].tolist() == [1, 2, 4, 8, 16, 32]
    assert sizes[is_printed(sizes, STRONG, [12])].tolist() == [1, 2, 4, 8, 12]


def test_measured_configurations_and_every_split_are_asked() -> None:
    table = candidates({(): STRONG}, [(4, 1), (16, 4)], RULE)
    at_four = table[table["world_size"] == 4]
    assert at_four["local_batch_size"].tolist() == [16, 32]
    at_sixteen = table[table["world_size"] == 16]
    assert at_sixteen["local_batch_size"].tolist() == [8]
    assert not table.duplicated().any()


def test_a_whole_number_stays_one_where_another_curve_has_none() -> None:
    curves = {(("parallelism", "a"), ("options.period", 4)): STRONG, (): STRONG}
    found = candidates(curves, [(1, 1)], RULE)
    assert set(found["options.period"].tolist()) == {4, pd.NA}
    assert found["options.period"].dtype == "Int64"


def test_a_batch_that_is_missing_at_one_size_is_asked_there_too() -> None:
    rows = measured([(n, 1, b, 1) for n in (1, 2, 4) for b in (16, 32)][:-1])
    rule = BatchRule.of(rows, AskedBatch(), None)
    table = candidates({(): rows}, [(4, 1)], rule)
    assert {16} <= set(table["local_batch_size"])
    assert (table["local_batch_size"] * 4 <= rule.largest).all()


@pytest.mark.parametrize(
    ("size", "nodes", "label"), [(8, 2, "2x4"), (7, 2, "2x4+3"), (1, 1, "1x1")]
)
def test_labels_read_nodes_times_devices(size: int, nodes: int, label: str) -> None:
    assert allocation_label(size, nodes) == label


@pytest.mark.parametrize(("stages", "known"), [(2, [2, 4, 8]), (None, [2, 4])])
def test_pipelines_keep_their_stages_and_their_micro_batches(
    stages: int | None, known: list[int]
) -> None:
    options = {"options.schedule": "1f1b", "options.split_size": 8}
    if stages is not None:
        options["options.stages"] = stages
    key = tuple(sorted({"parallelism": "pipeline", **options}.items()))
    rows = pd.DataFrame(
        {
            "world_size": [2, 4],
            "num_nodes": 1,
            "local_batch_size": 32,
            "gradient_accumulation_steps": 1,
            "data_parallel_size": [1, 2] if stages else [1, 1],
        }
    )
    frame = configurations(rows)
    asked = BatchRule.of(frame, AskedBatch(), None)
    found = candidates({key: frame}, [(n, 1) for n in (2, 3, 4, 8)], asked)
    assert sorted(set(found["world_size"])) == known
    assert set(found["local_batch_size"] % 8) == {0}
    assert set(found["local_batch_size"] // 8 >= (stages or 2)) == {True}
    replicas = found["data_parallel_size"]
    assert replicas.equals(found["world_size"] // 2 if stages else replicas * 0 + 1)


def test_what_somebody_else_calls_a_pipeline_is_believed() -> None:
    rows = pd.DataFrame(
        {
            "world_size": [4],
            "num_nodes": 1,
            "local_batch_size": 30,
            "gradient_accumulation_steps": 1,
            "data_parallel_size": 2,
        }
    )
    frame = configurations(rows)
    asked = BatchRule.of(frame, AskedBatch(), None)
    found = candidates({(("parallelism", "pipeline"),): frame}, [(8, 1)], asked)
    assert set(found["data_parallel_size"]) == {4}


@pytest.mark.parametrize(
    ("untold", "allowed"),
    [
        (set(), {(32, 1), (32, 2), (16, 1), (16, 4), (8, 1)}),
        ({Untold.ACCUMULATION}, {(32, 1), (16, 1), (8, 1)}),
        ({Untold.ACCUMULATION, Untold.LOCAL_BATCH}, {(32, 1), (16, 1)}),
    ],
)
def test_a_command_is_asked_for_no_batch_that_it_is_not_told_of(
    untold: set[Untold], allowed: set[tuple[int, int]]
) -> None:
    rows = measured([(n, 1, b, 1) for n in (1, 2, 4) for b in (16, 32)])
    splits = [(32, 1), (32, 2), (16, 1), (16, 4), (8, 1)]
    for key, name in (((), None), (((PROGRAM_COLUMN, "mine"),), "mine")):
        assert {*runnable(rows, key, {name: untold})(splits, 2)} == allowed
        assert runnable(rows, key, {"other": untold})(splits, 2) == splits


def test_a_command_that_fixes_its_global_batch_shares_it_on_more_devices() -> None:
    rows = measured([(1, 1, 32, 1), (2, 1, 16, 1), (4, 1, 8, 1)])
    untold = {None: {Untold.LOCAL_BATCH, Untold.ACCUMULATION}}
    assert runnable(rows, (), untold)([(4, 1), (8, 1), (2, 2)], 8) == [(4, 1)]


@pytest.mark.parametrize(
    "column",
    [
        ("parallelism", "fsdp"),
        ("options.zero_stage", 3),
        ("options.ZeRO stage", 3),
        ("options.sharding_strategy", "FULL_SHARD"),
    ],
)
def test_sharded_parameters_say_nothing_of_accumulation_that_was_not_measured(
    column: tuple[str, str | int],
) -> None:
    alone = measured([(1, 1, 8, 1), (2, 1, 8, 1)])
    splits = [(8, 1), (8, 2), (8, 4)]
    assert runnable(alone, (column,), {})(splits, 2) == [(8, 1)]
    both = measured([(1, 1, 8, 1), (2, 1, 8, 2)])
    assert runnable(both, (column,), {})(splits, 2) == [(8, 1), (8, 2)]
    # nothing to gather
    assert runnable(alone, (column,), {})(splits, 1) == splits
    other = ("options.zero_stage", 2)
    assert runnable(alone, (other,), {})(splits, 2) == splits
