"""A second node that costs far more than nodes usually do, and further ones beyond."""

import numpy as np
import pandas as pd
import pytest
from declared_machines import declared_step_time, random_machine, sweep_rows

from scalelab.laws.step_time.belief import stated_priors
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.node_jump import with_unusual_links
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.shapes import NODE_JUMP, Shape

PER_NODE = 4
MEASURED, ASKED = (1, 2, 4, 8), (16, 32)


def slow_machine(rng: np.random.Generator, exchange_s: float) -> dict[str, float]:
    """Return a machine whose pass of 16 samples takes 0.2 s."""
    drawn = {**random_machine(rng), "gpus_per_node": PER_NODE}
    return {**drawn, "fixed": 0.04, "per_sample": 0.01, "inter_transfer": exchange_s}


def points_of(exchange_s: float, sizes: tuple[int, ...] = MEASURED) -> Points:
    rng = np.random.default_rng(0)
    rows = sweep_rows(slow_machine(rng, exchange_s), rng, sizes=sizes)
    return Points.of(rows.assign(data_parallel_size=rows["world_size"]))


@pytest.mark.parametrize("exchange_s", [0.5, 2.0, 10.0])
def test_further_nodes_on_a_slow_network_are_no_faster_than_two(
    exchange_s: float,
) -> None:
    asked = pd.DataFrame(
        {
            "world_size": ASKED,
            "num_nodes": [size // PER_NODE for size in ASKED],
            "local_batch_size": 16,
        }
    )
    ratios, inside = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        machine = slow_machine(rng, exchange_s)
        law = StepTimeLaw.fit(sweep_rows(machine, rng, sizes=MEASURED))
        answer = law.predict(asked)
        truth = np.array([declared_step_time(machine, size, 16) for size in ASKED])
        ratios.extend(answer["step_time_s"] / truth)
        inside.extend(
            answer["step_time_lo_s"].lt(truth) & answer["step_time_hi_s"].gt(truth)
        )
    assert min(ratios) > 0.4  # not a twentieth, as if only a pair of nodes were slow
    assert np.mean(inside) >= 0.8


@pytest.mark.parametrize("shape", Shape)
def test_only_a_surprising_jump_widens_its_prior(shape: Shape) -> None:
    prior = stated_priors()[shape]
    usual = with_unusual_links(points_of(0.02), prior, shape)
    assert usual is prior
    slow = with_unusual_links(points_of(10.0), prior, shape)
    jump = NODE_JUMP, NODE_JUMP
    assert slow.covariance[jump] > 4 * prior.covariance[jump]
    others = np.arange(len(prior.mean)) != NODE_JUMP
    kept = np.ix_(others, others)
    assert (slow.covariance[kept] == prior.covariance[kept]).all()
    assert (slow.mean == prior.mean).all()


def test_one_node_tells_nothing_of_the_jump() -> None:
    prior = stated_priors()[Shape.TIERS]
    alone = points_of(20.0, sizes=(1, 2, 4))
    assert with_unusual_links(alone, prior, Shape.TIERS) is prior
