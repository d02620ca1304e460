import numpy as np
import pandas as pd
import pytest
from declared_machines import sweep_rows

from scalelab.laws.prior import StepTimePrior
from scalelab.laws.shapes import NUM_PARAMETERS, Shape
from scalelab.laws.step_time import StepTimeLaw
from scalelab.laws.support import Support

MACHINE = {"device_type": "cuda", "device_name": "here"}


def far(per_node=4):
    return pd.DataFrame(
        {"world_size": [32], "num_nodes": [32 // per_node], "local_batch_size": [16]}
    )


@pytest.fixture(scope="module")
def others(machine):
    """Two workloads of one machine, whose second node costs much."""
    rng = np.random.default_rng(3)
    frames = []
    for name, factor in (("a", 0.7), ("b", 1.6)):
        other = {**machine, "per_sample": machine["per_sample"] * factor}
        frames.append(sweep_rows(other, rng).assign(workload=name, **MACHINE))
    return pd.concat(frames)


def test_the_shipped_beliefs_are_proper():
    beliefs = StepTimePrior.shipped().beliefs
    assert set(beliefs) == set(Shape)
    for belief in beliefs.values():
        assert belief.mean.shape == (NUM_PARAMETERS,)
        assert np.linalg.eigvalsh(belief.covariance).min() > 0
        assert belief.mean[0] == 0


def test_the_same_machine_is_believed_more_than_the_same_workload_elsewhere(others):
    prior = StepTimePrior.learn(others)
    jump = 6
    spread = {
        name: prior.about(key)[Shape.ONE_RING].covariance[jump, jump]
        for name, key in (
            ("here", tuple({"workload": "c", **MACHINE}.items())),
            ("elsewhere", (("workload", "a"), ("device_name", "there"))),
            ("unrelated", (("workload", "c"), ("device_name", "there"))),
        )
    }
    assert spread["here"] < 0.7 * spread["elsewhere"]
    assert spread["elsewhere"] <= spread["unrelated"] * 1.001


def test_what_the_machine_shows_is_told_and_elsewhere_is_not(others):
    prior = StepTimePrior.learn(others)
    here = tuple({"workload": "c", **MACHINE}.items())
    assert "inter_node_transfer" in prior.told_about(here)
    assert prior.told_about((("workload", "a"),)) == frozenset()


def test_other_workloads_of_the_machine_sharpen_what_one_node_cannot_tell(
    others, rows, truth
):
    own = rows.assign(workload="c", **MACHINE)
    own = own[own["num_nodes"] == 1]
    asked = far().assign(workload="c", **MACHINE)
    alone = StepTimeLaw.fit(own).predict(asked, guess=True)
    told = StepTimeLaw.fit(own, StepTimePrior.learn(others)).predict(asked)
    expected = truth(32, 16)
    error = {
        name: abs(np.log(answer["step_time_s"].item() / expected))
        for name, answer in (("alone", alone), ("told", told))
    }
    assert error["told"] < 0.7 * error["alone"]
    assert alone["support"].item() == Support.UNSUPPORTED
    assert told["support"].item() == Support.EXTRAPOLATED
    assert told["step_time_lo_s"].item() < expected < told["step_time_hi_s"].item()


def test_the_own_rows_override_a_wrong_prior(others, rows, truth):
    misleading = others.assign(step_time_s=others["step_time_s"] * others["num_nodes"])
    own = rows.assign(workload="c", **MACHINE)
    asked = far().assign(workload="c", **MACHINE)
    law = StepTimeLaw.fit(own, StepTimePrior.learn(misleading))
    assert law.predict(asked)["step_time_s"].item() == pytest.approx(
        truth(32, 16), rel=0.05
    )
