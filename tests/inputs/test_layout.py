"""Layouts: the products of their degrees, and which ranks they put together."""

import dataclasses
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import refused

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.layout import Layout, short_label

SMALL = st.integers(1, 6)
GROUPED = st.one_of(
    st.tuples(SMALL, st.none()), st.tuples(st.none(), SMALL)
)  # replicate and shard, of which one is the rest
LAYOUTS = st.builds(
    lambda tensor, pipeline, context, expert, grouped: Layout(
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        replicate=grouped[0],
        shard=grouped[1],
    ),
    SMALL,
    SMALL,
    SMALL,
    SMALL,
    GROUPED,
)


@given(LAYOUTS, st.integers(1, 500))
def test_the_degrees_multiply_to_the_world_or_are_refused(
    layout: Layout, world_size: int
) -> None:
    product = layout.tensor * layout.pipeline * layout.context
    parallel = world_size // product
    fits = world_size % product == 0 and all(
        parallel % (size or 1) == 0
        for size in (layout.expert, layout.replicate, layout.shard)
    )
    try:
        sizes = layout.sizes(world_size)
    except SpecError:
        assert not fits
        return
    assert fits
    assert product * sizes["data_parallel_size"] == world_size
    groups = sizes["data_replicate_size"] * sizes["data_shard_size"]
    assert groups == sizes["data_parallel_size"]
    assert sizes["data_parallel_size"] % sizes["expert_parallel_size"] == 0


@given(LAYOUTS, st.integers(1, 8))
def test_experts_need_no_further_ranks(layout: Layout, times: int) -> None:
    world_size = 60 * times * layout.replica_size  # which all degrees divide
    without = dataclasses.replace(layout, expert=1)
    assert layout.sizes(world_size)["data_parallel_size"] == 60 * times
    assert without.data_parallel_size(world_size) == 60 * times


@given(st.integers(1, 6), st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_a_group_of_consecutive_ranks_never_reaches_across_nodes(
    tensor: int, devices: list[int]
) -> None:
    place = Allocation(devices_per_node=tuple(devices))
    nodes = [
        node for node, count in enumerate(place.devices_per_node) for _ in range(count)
    ]
    groups = itertools.zip_longest(*[iter(nodes)] * tensor)
    is_within = all(len(set(group)) == 1 for group in groups)
    try:
        Layout(tensor=tensor).check_nodes(place)
    except SpecError:
        assert not is_within
    else:
        assert is_within


@given(LAYOUTS)
def test_a_layout_is_found_again_by_its_recorded_degrees(layout: Layout) -> None:
    assert Layout.of_degrees({**layout.degrees, "precision": "bf16"}) == layout


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"tensor_parallel_size": 2},
        {**Layout().degrees, "tensor_parallel_size": "2"},
        {**Layout().degrees, "data_shard_size": 2},
    ],
)
def test_settings_that_lack_a_degree_name_no_layout(named: dict[str, object]) -> None:
    assert Layout.of_degrees(named) is None


@given(st.integers(1, 8), st.integers(1, 200))
def test_a_split_batch_has_the_largest_equal_parts_for_all_stages(
    pipeline: int, local: int
) -> None:
    split = Layout(pipeline=pipeline, micro_batches="split")
    if local < pipeline:
        with refused("batch_below_stages", "local_batch_size="):
            split.check_local_batch(local)
        return
    split.check_local_batch(local)
    micro = split.micro_batch_size(local)
    sizes = [
        n for n in range(1, local + 1) if local % n == 0 and local // n >= pipeline
    ]
    assert micro == max(sizes)


@given(st.integers(1, 8), st.integers(1, 200))
def test_an_accumulated_micro_batch_is_the_local_batch(
    pipeline: int, local: int
) -> None:
    accumulated = Layout(pipeline=pipeline)
    accumulated.check_local_batch(local)
    assert accumulated.micro_batch_size(local) == local


@pytest.mark.parametrize(
    ("layout", "world_size", "message"),
    [
        (
            Layout(tensor=2, pipeline=2),
            6,
            "layout: tensor=2 x pipeline=2 x context=1 (=4) does not divide 6 devices. "
            "Use a multiple of 4 devices, or smaller degrees.",
        ),
        (
            Layout(tensor=2, expert=4),
            12,
            "layout: expert=4 does not divide data_parallel_size=6, which is 12 "
            "devices / 2 of a replica. Use a multiple of 8 devices, or another expert.",
        ),
        (
            Layout(replicate=None, shard=8),
            4,
            "layout: data.shard=8 does not divide data_parallel_size=4, which is 4 "
            "devices / 1 of a replica. Use a multiple of 8 devices, or another "
            "data.shard.",
        ),
    ],
)
def test_the_whole_message_where_ranks_cannot_be_divided(
    layout: Layout, world_size: int, message: str
) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        layout.data_parallel_size(world_size)


def test_the_whole_message_where_a_layer_would_reach_across_nodes() -> None:
    message = (
        "layout: tensor=8 does not divide the 4 devices of a node of 2x4: a layer "
        "would be divided across nodes, whose links are slow. Use a divisor, other "
        "devices, or allow it with layout.tensor_across_nodes: true."
    )
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        Layout(tensor=8).check_nodes(Allocation(devices_per_node=(4, 4)))


def test_the_whole_message_where_a_batch_cannot_be_split() -> None:
    message = (
        "layout: local_batch_size=2 has less than a sample for each of the pipeline=4 "
        "stages, and layout.micro_batches=split splits it into at least one "
        "micro-batch per stage. Use at least 4, or fewer stages."
    )
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        Layout(pipeline=4, micro_batches="split").check_local_batch(2)


def test_a_label_holds_the_degrees_among_settings() -> None:
    settings = {"pipeline_parallel_size": 2, "tensor_parallel_size": 4, "seed": 1}
    assert short_label(settings) == "tp4 pp2"
    assert short_label({"precision": "bf16"}) == ""
