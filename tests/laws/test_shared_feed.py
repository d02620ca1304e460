"""Machines whose devices share a source of samples that passes only so many."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from scalelab.laws.step_time.ensemble import with_shared_feed
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.step_time.shape_prior import Evidence, stated_priors
from scalelab.laws.step_time.shapes import FEED, NUM_PARAMETERS, Shape

PER_NODE = 4
Step = Callable[[int, int], float]


def limited(samples_per_s: float) -> Step:
    def step_s(size: int, batch: int) -> float:
        alone = 0.02 + 0.00125 * batch + 0.005 * (size > 1)
        return max(alone, size * batch / samples_per_s)

    return step_s


def rows(
    step_s: Step,
    sizes: tuple[int, ...],
    batches: tuple[int, ...] = (32, 64, 128),
    seed: int = 0,
    **columns: str,
) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = [
        {
            "world_size": size,
            "data_parallel_size": size,
            "num_nodes": -(-size // PER_NODE),
            "local_batch_size": batch,
            "gradient_accumulation_steps": 1,
            "step_time_s": step_s(size, batch) * np.exp(0.01 * rng.standard_normal()),
        }
        for size in sizes
        for batch in batches
    ]
    return pd.DataFrame(found).assign(**columns)


def relative(law: StepTimeLaw, step_s: Step, *sizes: int, **columns: str) -> np.ndarray:
    """Return value, lower and upper end of predictions, relative to what is true."""
    asked = rows(step_s, sizes, (64,), **columns)
    answer = law.predict(asked)[["step_time_s", "step_time_lo_s", "step_time_hi_s"]]
    truth = np.array([step_s(size, 64) for size in sizes])
    return np.asarray(answer.div(truth, axis=0))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("sizes", "samples_per_s"),
    # a quarter too slow on 8 devices; from 8 devices on; on several nodes only
    [((1, 2, 4, 8), 4000), ((1, 2, 4, 8, 16), 4000), ((1, 4, 8, 12, 16), 6000)],
)
def test_further_devices_get_no_more_samples(
    sizes: tuple[int, ...], samples_per_s: float, seed: int
) -> None:
    step_s = limited(samples_per_s)
    law = StepTimeLaw.fit(rows(step_s, sizes, seed=seed))
    value, lo, hi = relative(law, step_s, 32, 64).T
    assert value == pytest.approx([1, 1], abs=0.15)
    assert (lo < 1).all()
    assert (hi > 1).all()
    table = law.parameters().set_index("name")
    assert table.loc["shared_feed", "value"] == pytest.approx(samples_per_s, rel=0.1)
    assert table.loc["shared_feed", "unit"] == "samples/s"


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize(
    "step_s",
    [
        lambda size, batch: 0.02 + 0.00125 * batch + 0.004 * (size - 1),
        lambda size, batch: 0.02 + 0.00125 * batch + 0.03 * (size > PER_NODE),
        lambda size, batch: (0.02 + 0.00125 * batch) * (1.3 if size > 1 else 1.0),
    ],
)
def test_exchanges_and_stragglers_are_taken_for_no_feed(
    step_s: Step, shape: Shape
) -> None:
    prior, frame = stated_priors()[shape], rows(step_s, (1, 2, 4, 8, 16))
    assert with_shared_feed(Points.of(frame), prior, shape) is prior
    assert "shared_feed" not in StepTimeLaw.fit(frame).parameters()["name"].tolist()


def test_one_batch_on_each_allocation_does_not_tell_a_feed_from_an_exchange() -> None:
    prior, shape = stated_priors()[Shape.ONE_RING], Shape.ONE_RING
    frame = rows(limited(4000), (1, 2, 4, 8, 16), (64,))
    assert with_shared_feed(Points.of(frame), prior, shape) is prior


def test_a_feed_says_nothing_of_another_workload() -> None:
    same: dict[str, str] = {"device_name": "A100"}
    known = rows(limited(3000), (1, 2, 4, 8, 16), **same, workload="pictures")
    small = rows(limited(1e6), (1, 2, 4), **same, workload="text")
    prior = StepTimePrior.learn(known)
    step_s, columns = limited(1e6), {**same, "workload": "text"}
    law = StepTimeLaw.fit(small, prior=prior)
    assert relative(law, step_s, 8, 16, **columns)[:, 0] == pytest.approx(1, abs=0.15)


def test_evidence_without_a_parameter_is_that_of_the_others() -> None:
    rng = np.random.default_rng(0)
    root = rng.standard_normal((NUM_PARAMETERS, 2 * NUM_PARAMETERS))
    information, best = root @ root.T, rng.standard_normal(NUM_PARAMETERS)
    evidence = Evidence(
        information=information,
        information_vector=information @ best,
        amplitudes=np.zeros(4),
    ).without(FEED)
    others = np.arange(NUM_PARAMETERS) != FEED
    left = evidence.information[np.ix_(others, others)]
    covariance = np.linalg.inv(information)[np.ix_(others, others)]
    assert np.linalg.inv(left) == pytest.approx(covariance)
    vector = evidence.information_vector
    assert np.linalg.solve(left, vector[others]) == pytest.approx(best[others])
    assert evidence.information[FEED] == pytest.approx(0, abs=1e-9)
    assert vector[FEED] == pytest.approx(0, abs=1e-9)
