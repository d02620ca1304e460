"""Slow tails: further devices may gain nothing, and an unknown link may be slow."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from scalelab.inputs.links import Link
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.mixture import Mixture
from scalelab.laws.step_time.prior import StepTimePrior

SIZES = (1, 2, 4, 8, 16)


def rows(*, last: float = 1.0, **columns: object) -> pd.DataFrame:
    """Steps of one node of many devices; the largest count is slower by a factor."""
    steps = [0.1 + 0.004 * np.log2(size) for size in SIZES]
    steps[-1] *= last
    frame = {"world_size": SIZES, "local_batch_size": 8, "step_time_s": steps}
    return pd.DataFrame(frame).assign(**columns)


def asked(*sizes: int) -> pd.DataFrame:
    return pd.DataFrame({"world_size": sizes, "local_batch_size": 8})


def ends(law: StepTimeLaw, *sizes: int) -> pd.DataFrame:
    """Log times, 95% intervals relative to the median."""
    answer = np.log(law.predict(asked(*sizes), interval=0.95).filter(like="step_time"))
    return answer.sub(answer["step_time_s"], axis=0)


def without_cliffs(law: StepTimeLaw) -> StepTimeLaw:
    curves = {key: replace(curve, cliff=0.0) for key, curve in law.curves.items()}
    return replace(law, curves=curves)


def test_only_the_slow_side_beyond_the_measured_counts_is_longer() -> None:
    law = StepTimeLaw.fit(rows())
    plain = without_cliffs(law)
    sizes = (8, 16, 32, 64, 256)
    medians = [each.predict(asked(*sizes))["step_time_s"] for each in (law, plain)]
    assert medians[0].to_numpy() == pytest.approx(medians[1].to_numpy(), rel=2e-3)
    longer = ends(law, *sizes)["step_time_hi_s"] - ends(plain, *sizes)["step_time_hi_s"]
    assert longer[:2].to_numpy() == pytest.approx(0.0, abs=2e-3)
    assert (np.diff(longer[1:]) > 0).all()
    shorter = (
        ends(law, *sizes)["step_time_lo_s"] - ends(plain, *sizes)["step_time_lo_s"]
    )
    assert np.abs(shorter).max() < 0.2 * longer.max()


def test_the_draws_have_the_tail_too() -> None:
    law = StepTimeLaw.fit(rows())
    drawn, plain = (each.draws(asked(64))[:, 0] for each in (law, without_cliffs(law)))
    # 5.9% of the draws have met a cliff somewhere on two doublings
    assert np.quantile(drawn, 0.98) > 1.3 * np.quantile(plain, 0.98)
    assert np.median(drawn) == pytest.approx(np.median(plain), rel=0.01)


@pytest.mark.parametrize(
    "suspicious", [{"parallelism": "parameter_server"}, {"last": 1.5}]
)
def test_servers_and_a_doubling_that_gave_little_make_a_cliff_likelier(
    suspicious: dict[str, object],
) -> None:
    (usual,) = StepTimeLaw.fit(rows()).curves.values()
    (curve,) = StepTimeLaw.fit(rows(**suspicious)).curves.values()
    assert curve.cliff > 2 * usual.cliff


def test_a_doubted_slow_row_of_the_most_devices_may_be_right_after_all() -> None:
    law = StepTimeLaw.fit(rows(last=4.0))
    assert law.doubted["world_size"].tolist() == [16]
    answer = law.predict(asked(32))
    measured_s = rows(last=4.0)["step_time_s"].iloc[-1]
    assert answer["step_time_s"].item() < 0.5 * measured_s
    assert answer["step_time_hi_s"].item() > measured_s


def test_an_unknown_link_may_be_slower_than_all_published_ones() -> None:
    two_nodes = pd.DataFrame(
        {"world_size": [32], "num_nodes": [2], "local_batch_size": [8]}
    )
    prior = StepTimePrior.shipped()
    stated = prior.with_links(Link(bandwidth_bytes_per_s=25e9))
    step_s = rows()["step_time_s"].iloc[-1]
    for known, slow in (
        (StepTimeLaw.fit(rows()), 0.05),
        (StepTimeLaw.fit(rows(gradient_bytes=1e8), prior=stated), 0.0),
        (StepTimeLaw.fit(pd.concat([rows(), two_nodes.assign(step_time_s=0.15)])), 0.0),
    ):
        drawn = known.draws(two_nodes)[:, 0]
        assert np.median(drawn) < 2 * step_s
        # a slow link makes a step 5 times as long, within a factor of 2.2
        assert (drawn > 4 * step_s).mean() == pytest.approx(slow, abs=0.025)


def test_a_mixture_keeps_its_median_under_a_tail() -> None:
    weights, means = np.array([[0.7], [0.3]]), np.array([[0.0], [0.5]])
    plain = Mixture(weights=weights, means=means, variances=np.full((2, 1), 0.01))
    tailed = plain.with_tail(np.array([0.1]), np.array([1.0]), np.array([0.04]))
    assert tailed.weights.sum() == pytest.approx(1.0)
    assert tailed.quantile(0.5) == pytest.approx(plain.quantile(0.5), abs=2e-3)
    assert tailed.quantile(0.97) > plain.quantile(0.97) + 0.4
