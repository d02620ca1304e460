from dataclasses import replace

import pandas as pd
import pytest

from scalelab.inputs.outcome import Support
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.support import Coverage


def configurations(rows: list[tuple[int, int, int]]) -> Configurations:
    names = ["world_size", "num_nodes", "local_batch_size"]
    frame = pd.DataFrame(rows, columns=names)
    return Configurations.of(frame.assign(gradient_accumulation_steps=1))


MEASURED = configurations(
    [(1, 1, 8), (2, 1, 8), (4, 1, 16), (8, 2, 8), (16, 4, 16)],
)
FULL = Coverage(at=MEASURED, informed=frozenset())


def alone(*rows: tuple[int, int, int]) -> Coverage:
    return Coverage(at=configurations(list(rows)), informed=frozenset())


def test_each_kind_of_support() -> None:
    asked = configurations(
        [(4, 1, 16), (4, 1, 8), (12, 3, 12), (32, 8, 8), (4, 1, 32), (2, 2, 8)]
    )
    assert FULL.support(asked).tolist() == [
        Support.MEASURED,
        Support.INTERPOLATED,
        Support.INTERPOLATED,
        Support.EXTRAPOLATED,
        Support.EXTRAPOLATED,
        Support.EXTRAPOLATED,
    ]


def test_fuller_nodes_than_any_measured_are_extrapolated() -> None:
    asked = configurations([(12, 2, 8), (8, 2, 8), (3, 3, 8), (16, 3, 16)])
    assert FULL.support(asked).tolist() == [
        Support.EXTRAPOLATED,
        Support.MEASURED,
        Support.EXTRAPOLATED,
        Support.EXTRAPOLATED,
    ]


def test_more_passes_than_measured_are_inside() -> None:
    asked = replace(MEASURED, accumulation=4 * MEASURED.accumulation)
    twice = replace(MEASURED, accumulation=2 * MEASURED.accumulation)
    accumulated = Coverage(at=twice, informed=frozenset())
    assert set(accumulated.support(asked)) == {Support.INTERPOLATED}


def test_passes_where_none_were_accumulated_are_extrapolated() -> None:
    asked = replace(MEASURED, accumulation=4 * MEASURED.accumulation)
    # on one device nothing is exchanged
    alone, *others = FULL.support(asked)
    assert alone == Support.INTERPOLATED
    assert set(others) == {Support.EXTRAPOLATED}


def test_distance_counts_doublings_beyond_the_range() -> None:
    asked = configurations([(64, 16, 16), (16, 4, 64), (12, 3, 12)])
    distance = FULL.distance(asked)
    assert distance.tolist() == [[2, 0], [0, 2], [0, 0]]


def test_a_full_range_leaves_no_gap() -> None:
    assert FULL.gaps() == ()


def test_gaps_name_the_trial_that_closes_them() -> None:
    one = alone((1, 1, 1))
    gaps = {gap.parameters[0]: gap for gap in one.gaps()}
    assert set(gaps) == {"intra_node_latency", "inter_node_latency", "compute_fixed"}
    assert gaps["compute_fixed"].local_batch_size == 2
    assert gaps["inter_node_latency"].remedy == "Measure 2 nodes x 1."
    assert gaps["intra_node_latency"].world_size == 2


@pytest.mark.parametrize(
    ("measured", "asked", "expected"),
    [
        # one row on several nodes is enough, however few sizes there are
        ([(1, 1, 8), (8, 1, 8), (16, 2, 8)], (32, 4, 8), Support.EXTRAPOLATED),
        ([(1, 1, 8), (8, 1, 8), (16, 2, 8)], (64, 8, 8), Support.EXTRAPOLATED),
        ([(1, 1, 8), (4, 1, 8)], (2, 1, 8), Support.INTERPOLATED),
        ([(1, 1, 8), (4, 1, 8)], (8, 1, 8), Support.EXTRAPOLATED),
        ([(16, 2, 8)], (8, 1, 8), Support.EXTRAPOLATED),
        ([(1, 1, 8)], (1, 1, 32), Support.EXTRAPOLATED),
        # what no row contains: a second node, a second device on a node
        ([(1, 1, 8), (2, 1, 8), (4, 1, 8)], (8, 2, 8), Support.NOT_MEASURED),
        ([(1, 1, 8), (1, 1, 16)], (2, 1, 8), Support.NOT_MEASURED),
        ([(1, 1, 8), (2, 2, 8)], (2, 1, 8), Support.NOT_MEASURED),
        ([(1, 1, 8), (2, 2, 8)], (4, 4, 8), Support.EXTRAPOLATED),
    ],
)
def test_only_what_no_row_contains_is_not_measured_here(
    measured: list[tuple[int, int, int]], asked: tuple[int, int, int], expected: str
) -> None:
    coverage = alone(*measured)
    assert coverage.support(configurations([asked])).tolist() == [expected]
    named = {gap.parameters[0] for gap in coverage.gaps_at(configurations([asked]))}
    of_machine = {"intra_node_latency", "inter_node_latency"}
    assert bool(named & of_machine) == (expected == Support.NOT_MEASURED)


@pytest.mark.parametrize("known", [True, False])
def test_what_a_prior_tells_is_no_gap(known: bool) -> None:
    names = {"inter_node_latency", "inter_node_transfer"} if known else set()
    at = configurations([(1, 1, 8), (2, 1, 8), (4, 1, 16)])
    coverage = Coverage(at=at, informed=frozenset(names))
    expected = Support.EXTRAPOLATED if known else Support.NOT_MEASURED
    assert coverage.support(configurations([(8, 2, 8)])).tolist() == [expected]
