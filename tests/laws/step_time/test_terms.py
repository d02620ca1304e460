"""The parts of a step, on machines whose parts are known."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.physics import NEVER, Configurations
from scalelab.laws.step_time.shapes import (
    CONTENTION,
    EXCHANGE,
    FEED,
    IMBALANCE,
    NODE_JUMP,
    NUM_PARAMETERS,
    OVERLAP,
    PARAMETERS,
    Shape,
    Terms,
    log_time,
    split,
)

EXCHANGED = ("intra_node", "inter_node")
PER_NODE = 8


def at(sizes: list[int], nodes: list[int], batch: float = 4.0) -> Configurations:
    return Configurations(
        world_size=np.array(sizes, dtype=float),
        num_nodes=np.array(nodes, dtype=float),
        samples=np.full(len(sizes), batch),
        accumulation=np.ones(len(sizes)),
    )


def machine() -> np.ndarray:
    """A quarter fixed cost, nothing hidden, exchange of 0.4, jump by a factor of 2."""
    values = np.zeros(NUM_PARAMETERS)
    values[PARAMETERS.index("fixed_share")] = np.log(1 / 3)
    values[PARAMETERS.index("batch_exponent")] = 1.0
    values[PARAMETERS.index("batch_sharpness")] = values[OVERLAP] = -40.0
    values[EXCHANGE], values[NODE_JUMP] = np.log(0.4), np.log(2)
    values[IMBALANCE], values[CONTENTION] = np.log(0.1), np.log(0.05)
    values[FEED] = NEVER
    return values


@pytest.mark.parametrize(
    ("shape", "intra", "inter"),
    # tiers: 0.4 * 3/2 in the node and 0.4 * 2 between; a ring of eight: 0.4 * 7/4 * 2
    [(Shape.TIERS, 0.6, 0.8), (Shape.ONE_RING, 0.7, 0.7), (Shape.EXPOSED, 0.7, 0.7)],
)
def test_a_hand_worked_step(shape: Shape, intra: float, inter: float) -> None:
    parts = split(machine(), at([8], [2]), shape)
    assert parts.fixed.item() == pytest.approx(0.25)
    assert parts.per_sample.item() == pytest.approx(0.75 * 4)
    assert parts.waiting.item() == pytest.approx(0.1 * 3.25)
    assert parts.contention.item() == pytest.approx(0.05 * 3 * 3.25)
    assert parts.intra_node.item() == pytest.approx(intra)
    assert parts.inter_node.item() == pytest.approx(inter)


@pytest.mark.parametrize("shape", Shape)
def test_parts_add_up_to_the_step_and_none_is_negative(
    rng: np.random.Generator, shape: Shape
) -> None:
    where = at([1, 2, 4, 8, 8, 16], [1, 1, 1, 1, 2, 16])
    for _ in range(50):
        values = machine() + 0.7 * rng.standard_normal(NUM_PARAMETERS)
        values[PARAMETERS.index("batch_exponent")] = rng.uniform(0.6, 1.0)
        values[FEED] = rng.uniform(-3, 0)
        parts = split(values, where, shape)
        step = np.exp(log_time(values, where, shape)[0])
        assert parts.step_time_s == pytest.approx(step)
        for name in ("fixed", "waiting", "contention", "feed", *EXCHANGED):
            assert (getattr(parts, name) >= -1e-12).all(), name


@pytest.mark.parametrize("shape", Shape)
def test_an_exchange_belongs_to_the_links_it_crosses(shape: Shape) -> None:
    parts = split(machine(), at([1, 8, 4], [1, 1, 4]), shape)
    assert parts.intra_node.tolist() == [0, pytest.approx(0.7), 0]
    assert parts.inter_node[:2] == pytest.approx([0, 0])
    assert parts.inter_node[2] > 0.4


def measured(step_s: Callable[[int, int, int], float]) -> pd.DataFrame:
    """Rows of nodes of 8 devices; ``step_s(k, m, b)`` with k devices on m nodes."""
    rng = np.random.default_rng(0)
    rows = [
        {"world_size": k * m, "num_nodes": m, "local_batch_size": b}
        | {"step_time_s": step_s(k, m, b) * np.exp(0.01 * rng.standard_normal())}
        for k, m in ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4))
        for b in (8, 16, 32, 64)
    ]
    return pd.DataFrame(rows)


def causes(step_s: Callable[[int, int, int], float], batch: int = 16) -> Terms:
    """Return the fitted parts on 4 full nodes."""
    asked = {"world_size": [32], "num_nodes": [4], "local_batch_size": [batch]}
    law = StepTimeLaw.fit(measured(step_s))
    parts = law.terms(pd.DataFrame(asked))
    assert parts is not None
    expected = law.predict(pd.DataFrame(asked))["step_time_s"].item()
    assert parts.step_time_s.item() == pytest.approx(expected, rel=0.05)
    return parts


def largest(parts: Terms) -> str:
    overhead = ("waiting", "contention", "feed", *EXCHANGED, "unexplained")
    return max(overhead, key=lambda name: getattr(parts, name).item())


def test_a_slow_network_is_found_between_the_nodes() -> None:
    def step_s(k: int, m: int, b: int) -> float:
        return 0.01 + 0.002 * b + 0.004 * (k > 1) + 0.06 * (m > 1)

    parts = causes(step_s)
    assert largest(parts) == "inter_node"
    assert parts.inter_node.item() == pytest.approx(0.06, rel=0.3)


def test_a_feed_that_all_devices_share_is_found() -> None:
    def step_s(k: int, m: int, b: int) -> float:
        return max(0.01 + 0.002 * b + 0.004 * (k > 1), k * m * b / 5000)

    parts = causes(step_s)
    assert largest(parts) == "feed"
    assert parts.feed.item() == pytest.approx(32 * 16 / 5000 - 0.046, rel=0.15)


def test_contention_is_found_in_the_node() -> None:
    def step_s(k: int, m: int, b: int) -> float:
        return (0.01 + 0.002 * b) * (1 + 0.15 * (k - 1))

    parts = causes(step_s)
    assert largest(parts) == "contention"
    assert parts.contention.item() == pytest.approx(0.042 * 0.15 * 7, rel=0.3)


def test_slow_links_in_the_node_are_told_from_contention_by_the_batch() -> None:
    def step_s(k: int, m: int, b: int) -> float:
        return 0.01 + 0.002 * b + 0.05 * 2 * (k - 1) / k

    assert largest(causes(step_s)) == "intra_node"


def test_fixed_cost_and_samples_come_apart() -> None:
    parts = causes(lambda k, m, b: 0.08 + 0.001 * b)
    assert parts.fixed.item() == pytest.approx(0.08, rel=0.1)
    assert parts.per_sample.item() == pytest.approx(0.016, rel=0.4)
