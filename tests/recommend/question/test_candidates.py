import pandas as pd
import pytest

from scalelab.inputs.allocation import Allocation
from scalelab.laws.rows import configurations
from scalelab.recommend.question.candidates import (
    BatchRule,
    allocation_label,
    candidates,
    places,
)


def measured(rows: list[tuple[int, ...]]) -> pd.DataFrame:
    names = ["world_size", "num_nodes", "local_batch_size"]
    frame = pd.DataFrame(rows, columns=[*names, "gradient_accumulation_steps"])
    return configurations(frame)


STRONG = measured([(1, 1, 32, 4), (2, 1, 32, 2), (4, 1, 16, 2), (8, 2, 16, 1)])
WEAK = measured([(n, 1, local, 1) for n in (1, 2) for local in (16, 32)])


def test_a_common_global_batch_is_strong_scaling() -> None:
    assert BatchRule.of(STRONG).fixed == (128,)
    assert BatchRule.of(WEAK).fixed == ()
    assert BatchRule.of(WEAK).local_batches == (16, 32)


def test_splits_multiply_to_the_global_batch() -> None:
    rule = BatchRule.of(STRONG)
    for size in (1, 2, 4, 8, 16, 64, 128):
        pairs = rule.splits(size)
        assert pairs
        for local, passes in pairs:
            assert local * passes * size == 128
            assert local <= 32
    assert rule.splits(3) == []
    assert rule.splits(256) == []


def test_odd_batches_are_split_by_a_divisor() -> None:
    rule = BatchRule(fixed=(90,), local_batches=(8,))
    assert rule.splits(2) == [(5, 9)]


def test_weak_scaling_offers_every_local_batch() -> None:
    assert BatchRule.of(WEAK).splits(64) == [(16, 1), (32, 1)]


def test_places_are_doubled_up_to_four_times_and_packed() -> None:
    assert places(STRONG, None) == [
        (1, 1),
        (2, 1),
        (4, 1),
        (8, 2),
        (16, 4),
        (32, 8),
    ]
    named = [Allocation(devices_per_node=(4, 2))]
    assert (6, 2) in places(STRONG, named)
    assert (16, 4) not in places(STRONG, named)


def test_a_node_holds_what_is_declared_not_what_was_measured_of_it() -> None:
    rows = measured([(1, 1, 8, 1), (2, 1, 8, 1)])
    assert places(rows, None) == [(1, 1), (2, 1), (4, 2), (8, 4)]
    assert places(rows, None, 8) == [(1, 1), (2, 1), (4, 1), (8, 1)]


def test_a_lone_device_is_joined_by_another_on_its_node_first() -> None:
    assert places(measured([(1, 1, 8, 1)]), None) == [(1, 1), (2, 1), (4, 2)]


def test_holes_between_measured_sizes_are_filled() -> None:
    rows = measured([(1, 1, 8, 1), (4, 1, 8, 1), (16, 4, 8, 1)])
    assert (8, 2) in places(rows, None)


def test_measured_configurations_are_asked_as_they_are() -> None:
    table = candidates({(): STRONG}, [(4, 1), (16, 4)], BatchRule.of(STRONG))
    at_four = table[table["world_size"] == 4]
    assert at_four["local_batch_size"].tolist() == [16]
    at_sixteen = table[table["world_size"] == 16]
    assert at_sixteen["local_batch_size"].tolist() == [8]


@pytest.mark.parametrize(
    ("size", "nodes", "label"), [(8, 2, "2x4"), (7, 2, "2x4+3"), (1, 1, "1x1")]
)
def test_labels_read_nodes_times_devices(size: int, nodes: int, label: str) -> None:
    assert allocation_label(size, nodes) == label
