import numpy as np
import pytest

from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.process import correlations


def at(rows: list[tuple[int, ...]]) -> Configurations:
    columns = np.array(rows, dtype=float).T
    names = ("world_size", "num_nodes", "samples", "accumulation")
    return Configurations(**dict(zip(names, columns, strict=True)))


HERE = at([(4, 1, 8, 1)])


def test_a_configuration_agrees_with_itself() -> None:
    assert correlations(HERE, HERE).ravel() == pytest.approx([1, 1, 1, 1])


def test_each_part_is_shared_by_what_it_belongs_to() -> None:
    others = at([(8, 2, 8, 1), (4, 1, 16, 1), (4, 1, 8, 2), (4, 2, 8, 1)])
    _, batch, placement, same = correlations(HERE, others)[:, 0]
    assert batch.tolist() == [1, 0, 1, 1]
    assert placement.tolist() == [0, 1, 1, 0]
    assert same.tolist() == [0, 0, 0, 0]


def test_the_smooth_part_fades_with_distance_and_at_the_node_boundary() -> None:
    near, far, across = correlations(
        HERE, at([(4, 1, 9, 1), (64, 1, 800, 1), (4, 2, 8, 1)])
    )[0, 0]
    assert near > 0.9
    assert far < 0.05
    assert across < 0.7


def test_any_amplitudes_give_a_covariance(rng: np.random.Generator) -> None:
    rows = [
        (n, -(-n // 4), b, a)
        for n in (1, 2, 3, 4, 8, 16)
        for b in (1, 2, 5)
        for a in (1, 2)
    ]
    variances = rng.uniform(0, 1, 4)
    matrix = np.tensordot(variances, correlations(at(rows), at(rows)), 1)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9
