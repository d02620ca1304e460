from dataclasses import replace

import pandas as pd
import pytest

from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.support import Coverage, Support


def configurations(rows: list[tuple[int, int, int]]) -> Configurations:
    names = ["world_size", "num_nodes", "local_batch_size"]
    frame = pd.DataFrame(rows, columns=names)
    return Configurations.of(frame.assign(gradient_accumulation_steps=1))


MEASURED = configurations(
    [(1, 1, 8), (2, 1, 8), (4, 1, 16), (8, 2, 8), (16, 4, 16)],
)
FULL = Coverage(at=MEASURED, informed=frozenset())


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


def test_more_passes_than_measured_are_inside_for_physics_alone() -> None:
    asked = replace(MEASURED, accumulation=4 * MEASURED.accumulation)
    assert set(FULL.support(asked)) == {Support.INTERPOLATED}
    assert not FULL.surrounds(asked).any()
    assert FULL.surrounds(MEASURED).all()


def test_distance_counts_doublings_beyond_the_range() -> None:
    asked = configurations([(64, 16, 16), (16, 4, 64), (12, 3, 12)])
    distance = FULL.distance(asked)
    assert distance.tolist() == [[2, 0], [0, 2], [0, 0]]


def test_a_full_range_leaves_no_gap() -> None:
    assert FULL.gaps() == ()


def test_gaps_name_the_trial_that_closes_them() -> None:
    one = Coverage(at=configurations([(1, 1, 1)]), informed=frozenset())
    gaps = {gap.parameters[0]: gap for gap in one.gaps()}
    assert set(gaps) == {"intra_node_latency", "inter_node_latency", "compute_fixed"}
    assert gaps["compute_fixed"].local_batch_size == 2
    assert gaps["inter_node_latency"].remedy == "Measure 2 nodes x 1."
    assert gaps["intra_node_latency"].world_size == 2


def test_the_cheaper_neighbour_closes_a_gap() -> None:
    far = configurations([(1, 1, 8), (4, 1, 8), (16, 4, 16)])
    gaps = Coverage(at=far, informed=frozenset()).gaps()
    assert [gap.remedy for gap in gaps] == [
        "Measure 1 node x 2.",
        "Measure 2 nodes x 4.",
    ]


def test_between_measured_sizes_a_single_size_is_enough() -> None:
    at = configurations([(1, 1, 8), (4, 1, 16)])
    coverage = Coverage(at=at, informed=frozenset())
    asked = configurations([(2, 1, 8), (8, 1, 8), (8, 2, 8)])
    assert coverage.support(asked).tolist() == [
        Support.INTERPOLATED,
        Support.UNSUPPORTED,
        Support.UNSUPPORTED,
    ]


@pytest.mark.parametrize("known", [True, False])
def test_what_a_prior_tells_is_no_gap(known: bool) -> None:
    names = {"inter_node_latency", "inter_node_transfer"} if known else set()
    at = configurations([(1, 1, 8), (2, 1, 8), (4, 1, 16)])
    coverage = Coverage(at=at, informed=frozenset(names))
    expected = Support.EXTRAPOLATED if known else Support.UNSUPPORTED
    assert coverage.support(configurations([(8, 2, 8)])).tolist() == [expected]
