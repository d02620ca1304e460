"""Links far slower than those of most machines, and allocations beyond the measured."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from declared_machines import declared_step_time, random_machine, sweep_rows

from scalelab.laws.step_time.ensemble import with_unusual_links
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.shape_prior import stated_priors
from scalelab.laws.step_time.shapes import EXCHANGE, NODE_JUMP, Shape


def slow_machine(
    rng: np.random.Generator, per_node: int, **exchange_s: float
) -> dict[str, float]:
    """Return a machine whose pass of 16 samples takes 0.2 s."""
    drawn = {**random_machine(rng), "gpus_per_node": per_node}
    return {**drawn, "fixed": 0.04, "per_sample": 0.01, **exchange_s}


def predicted(
    machine: dict[str, float],
    rng: np.random.Generator,
    sizes: tuple[int, ...],
    asked: Sequence[int],
) -> pd.DataFrame:
    """Return the answer for further sizes, relative to what is true of them."""
    law = StepTimeLaw.fit(sweep_rows(machine, rng, sizes=sizes))
    nodes = [-(-size // machine["gpus_per_node"]) for size in asked]
    answer = law.predict(
        pd.DataFrame({"world_size": asked, "num_nodes": nodes, "local_batch_size": 16})
    )
    truth = np.array([declared_step_time(machine, size, 16) for size in asked])
    names = ["step_time_s", "step_time_lo_s", "step_time_hi_s"]
    return answer[names].div(truth, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("per_node", "sizes", "asked", "slow"),
    [
        (4, (1, 2, 4, 8), (16, 32), "inter_transfer"),
        (4, (1, 4, 8, 12), (16, 32, 64), "inter_transfer"),
        (8, (1, 2), (4, 8), "intra_transfer"),
    ],
)
@pytest.mark.parametrize(
    "exchange_s", [10.0, pytest.param(1.0, marks=pytest.mark.repetition)]
)
def test_further_allocations_on_a_slow_network_are_no_bargain(
    per_node: int,
    sizes: tuple[int, ...],
    asked: tuple[int, ...],
    slow: str,
    exchange_s: float,
) -> None:
    answers = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        machine = slow_machine(rng, per_node, **{slow: exchange_s})
        answers.append(predicted(machine, rng, sizes, asked))
    relative = pd.concat(answers)
    assert relative["step_time_s"].min() > 0.5  # not a twentieth
    inside = relative["step_time_lo_s"].lt(1) & relative["step_time_hi_s"].gt(1)
    assert inside.mean() >= 0.8


def points_of(sizes: tuple[int, ...], **exchange_s: float) -> Points:
    rng = np.random.default_rng(0)
    rows = sweep_rows(slow_machine(rng, 4, **exchange_s), rng, sizes=sizes)
    return Points.of(rows.assign(data_parallel_size=rows["world_size"]))


@pytest.mark.parametrize("shape", Shape)
def test_only_unusual_links_widen_their_prior(shape: Shape) -> None:
    prior, sizes = stated_priors()[shape], (1, 2, 4, 8)
    usual = points_of(sizes, inter_transfer=0.02, intra_transfer=0.02)
    assert with_unusual_links(usual, prior, shape) is prior
    for parameter, slow in ((NODE_JUMP, "inter"), (EXCHANGE, "intra")):
        points = points_of(sizes, **{f"{slow}_transfer": 50.0})
        wider = with_unusual_links(points, prior, shape)
        before, after = np.diag(prior.covariance), np.diag(wider.covariance)
        assert after[parameter] == pytest.approx(16 * before[parameter])
        assert (np.delete(after, parameter) == np.delete(before, parameter)).all()
        assert (wider.mean == prior.mean).all()


def test_rows_tell_only_of_links_that_they_use() -> None:
    prior = stated_priors()[Shape.ONE_RING]
    alone = points_of((1,), intra_transfer=50.0)
    assert with_unusual_links(alone, prior, Shape.ONE_RING) is prior
    on_one_node = points_of((1, 2, 4), intra_transfer=50.0)
    wider = with_unusual_links(on_one_node, prior, Shape.ONE_RING)
    jump = NODE_JUMP, NODE_JUMP
    assert wider.covariance[jump] == prior.covariance[jump]
