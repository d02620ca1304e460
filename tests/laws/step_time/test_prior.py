from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from declared_machines import declared_step_time, random_machine, sweep_rows

from scalelab.inputs.outcome import Support
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.step_time.shapes import (
    FIXED_SHARE,
    NODE_JUMP,
    NUM_PARAMETERS,
    PARAMETERS,
    Shape,
)

MACHINE = {"device_type": "cuda", "device_name": "here"}


def far(per_node: int = 4) -> pd.DataFrame:
    return pd.DataFrame(
        {"world_size": [32], "num_nodes": [32 // per_node], "local_batch_size": [16]}
    )


@pytest.fixture(scope="module")
def others(machine: dict[str, float]) -> pd.DataFrame:
    """Two workloads of one machine, whose second node costs much."""
    rng = np.random.default_rng(3)
    frames = []
    for name, factor in (("a", 0.7), ("b", 1.6)):
        other = {**machine, "per_sample": machine["per_sample"] * factor}
        frames.append(sweep_rows(other, rng).assign(workload=name, **MACHINE))
    return pd.concat(frames)


def test_the_shipped_priors_are_proper() -> None:
    priors = StepTimePrior.shipped().priors
    assert set(priors) == set(Shape)
    for prior in priors.values():
        assert prior.mean.shape == (NUM_PARAMETERS,)
        assert np.linalg.eigvalsh(prior.covariance).min() > 0
        assert prior.mean[0] == 0


def test_the_same_machine_is_believed_more_than_the_same_workload_elsewhere(
    others: pd.DataFrame,
) -> None:
    prior = StepTimePrior.learn(others)
    growth = PARAMETERS.index("growth_nodes")
    spread = {
        name: prior.about(key, 16.0)[Shape.ONE_RING].covariance[growth, growth]
        for name, key in (
            ("here", tuple({"workload": "c", **MACHINE}.items())),
            ("elsewhere", (("workload", "a"), ("device_name", "there"))),
            ("unrelated", (("workload", "c"), ("device_name", "there"))),
        )
    }
    assert spread["here"] < 0.7 * spread["elsewhere"]
    assert spread["elsewhere"] <= spread["unrelated"] * 1.001


def test_what_the_machine_shows_is_told_and_elsewhere_is_not(
    others: pd.DataFrame,
) -> None:
    prior = StepTimePrior.learn(others)
    here = tuple({"workload": "c", **MACHINE}.items())
    assert "inter_node_transfer" in prior.determined_for(here)
    assert prior.determined_for((("workload", "a"),)) == frozenset()
    for other in (
        {"parallelism": "parameter_server"},
        {"node_group": "slow"},
        {"emulated": True},
    ):
        assert prior.determined_for((*here, *other.items())) == frozenset(), other


@pytest.mark.slow
def test_other_workloads_of_the_machine_sharpen_what_one_node_cannot_tell(
    others: pd.DataFrame, rows: pd.DataFrame, truth: Callable[..., Any]
) -> None:
    own = rows.assign(workload="c", **MACHINE)
    own = own[own["num_nodes"] == 1]
    asked = far().assign(workload="c", **MACHINE)
    alone = StepTimeLaw.fit(own).predict(asked)
    told = StepTimeLaw.fit(own, StepTimePrior.learn(others)).predict(asked)
    expected = truth(32, 16)
    error = {
        name: abs(np.log(answer["step_time_s"].item() / expected))
        for name, answer in (("alone", alone), ("told", told))
    }
    assert error["told"] < 0.7 * error["alone"]
    assert alone["support"].item() == Support.NOT_MEASURED
    assert told["support"].item() == Support.EXTRAPOLATED
    assert told["step_time_lo_s"].item() < expected < told["step_time_hi_s"].item()


def test_the_own_rows_override_a_wrong_prior(
    others: pd.DataFrame, rows: pd.DataFrame, truth: Callable[..., Any]
) -> None:
    misleading = others.assign(step_time_s=others["step_time_s"] * others["num_nodes"])
    own = rows.assign(workload="c", **MACHINE)
    asked = far().assign(workload="c", **MACHINE)
    law = StepTimeLaw.fit(own, StepTimePrior.learn(misleading))
    assert law.predict(asked)["step_time_s"].item() == pytest.approx(
        truth(32, 16), rel=0.05
    )


@pytest.mark.repetition
@pytest.mark.slow
def test_curves_of_one_fit_teach_those_that_reach_less_far(
    others: pd.DataFrame, rows: pd.DataFrame
) -> None:
    own = rows.assign(workload="c", **MACHINE)
    own = own[own["num_nodes"] == 1]
    asked = far().assign(workload="c", **MACHINE)
    apart = StepTimeLaw.fit(own, StepTimePrior.learn(others)).predict(asked)
    together = StepTimeLaw.fit(pd.concat([own, others]))
    pd.testing.assert_frame_equal(together.predict(asked), apart)

    alone = StepTimeLaw.fit(others)
    for name in ("a", "b"):  # these reach further than c, and equally far
        asked = far().assign(workload=name, **MACHINE)
        known = others[others["workload"] == name]
        for law in (alone, together):
            pd.testing.assert_frame_equal(
                law.predict(asked), StepTimeLaw.fit(known).predict(asked)
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    "learned",
    [3, *(pytest.param(each, marks=pytest.mark.repetition) for each in (1, 40))],
)
def test_a_long_history_is_cut_to_the_largest_curves(
    learned: int, rows: pd.DataFrame
) -> None:
    some = [
        rows.head(6 + number % 3).assign(workload=f"w{number}", **MACHINE)
        for number in range(learned)
    ]
    prior = StepTimePrior.learn(pd.concat(some))
    sizes = [sum(r.key[0][1] == f"w{i}" for r in prior.relatives) for i in range(40)]
    assert len(prior.relatives) == min(learned, 24)
    if learned == 40:
        assert sum(sizes[2::3]) == 13  # of the 13 with eight rows, none is cut


@pytest.mark.repetition
@pytest.mark.slow
def test_the_same_workload_elsewhere_tells_how_a_batch_costs() -> None:
    """Here arithmetic takes over only beyond the batches that were measured."""
    batches, errors, widths = (4, 8, 16, 64, 256), [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        here, there = random_machine(rng), random_machine(rng)
        here["per_sample"] = here["fixed"] / float(np.exp(rng.uniform(2, 6)))
        there |= {"fixed": 3 * here["fixed"], "per_sample": 2.5 * here["per_sample"]}
        elsewhere = sweep_rows(there, rng, sizes=(1, 2, 4), batches=batches)
        own = sweep_rows(here, rng, sizes=(1, 2, 4), batches=batches[:3])
        prior = StepTimePrior.learn(elsewhere.assign(workload="w", device_name="there"))
        own = own.assign(workload="w", device_name="here")
        asked = own.head(2).assign(
            world_size=1, num_nodes=1, local_batch_size=[64, 256]
        )
        truth = [declared_step_time(here, 1, batch) for batch in (64, 256)]
        answers = [
            StepTimeLaw.fit(own, known).predict(asked) for known in (None, prior)
        ]
        errors.append(
            [np.abs(np.log(a["step_time_s"] / truth)).mean() for a in answers]
        )
        ends = [np.log(a["step_time_hi_s"] / a["step_time_lo_s"]) for a in answers]
        widths.append([end.mean() for end in ends])
    alone, told = np.mean(errors, axis=0)
    assert told < 0.8 * alone
    alone, told = np.mean(widths, axis=0)
    assert told < 0.95 * alone


def test_a_workload_is_the_same_only_in_everything_but_the_machine(
    others: pd.DataFrame,
) -> None:
    prior = StepTimePrior.learn(others.assign(precision="fp32"))
    spread = {
        precision: prior.about(
            (("workload", "a"), ("device_name", "there"), ("precision", precision)), 16
        )[Shape.TIERS].covariance[FIXED_SHARE, FIXED_SHARE]
        for precision in ("fp32", "bf16")
    }
    assert spread["fp32"] < 0.9 * spread["bf16"]
    shipped = StepTimePrior.shipped().priors[Shape.TIERS].covariance
    assert spread["bf16"] == shipped[FIXED_SHARE, FIXED_SHARE]


@pytest.mark.slow
@pytest.mark.parametrize(
    "factor",
    [10.0, *(pytest.param(each, marks=pytest.mark.repetition) for each in (0.1, 1.0))],
)
def test_a_relative_says_no_more_than_it_knows_of_another_exchange(
    factor: float,
) -> None:
    """The own workload exchanges ten times more, or less, than the other one."""
    inside = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        theirs = {**random_machine(rng), "gpus_per_node": 4, "overlap": 0.0}
        names = ("intra_transfer", "inter_transfer")
        mine = {**theirs, **{name: theirs[name] * factor for name in names}}
        others = sweep_rows(theirs, rng).assign(workload="a", **MACHINE)
        own = sweep_rows(mine, rng, sizes=(1, 2, 4)).assign(workload="c", **MACHINE)
        prior = StepTimePrior.learn(others.assign(gradient_bytes=1e9))
        law = StepTimeLaw.fit(own.assign(gradient_bytes=1e9 * factor), prior)
        answer = law.predict(far().assign(workload="c", **MACHINE))
        assert answer["support"].item() == Support.EXTRAPOLATED
        lo, hi = answer["step_time_lo_s"].item(), answer["step_time_hi_s"].item()
        inside.append(lo < declared_step_time(mine, 32, 16) < hi)
    assert np.mean(inside) >= 0.75


@pytest.mark.slow
def test_the_exchange_of_a_relative_scales_with_the_bytes() -> None:
    """One device each tells nothing of an exchange; the other workload does."""
    rng = np.random.default_rng(4)
    theirs = {**random_machine(rng), "gpus_per_node": 4, "overlap": 0.0}
    theirs |= {"intra_transfer": theirs["fixed"], "imbalance": 0.0}
    others = sweep_rows(theirs, rng).assign(workload="a", gradient_bytes=1e8, **MACHINE)
    prior = StepTimePrior.learn(others)
    own = sweep_rows(theirs, rng, sizes=(1,)).assign(workload="c", **MACHINE)
    asked = far().assign(world_size=4, num_nodes=1, workload="c", **MACHINE)
    times = [
        StepTimeLaw.fit(own.assign(gradient_bytes=size), prior)
        .predict(asked)["step_time_s"]
        .item()
        for size in (1e7, 1e8, 1e9)
    ]
    assert times[0] < times[1] < times[2]
    assert times[2] > 1.2 * times[1]


@pytest.mark.slow
def test_relatives_never_settle_what_the_second_node_costs_here(
    others: pd.DataFrame,
) -> None:
    """Workloads of one machine differ in it, however many were measured."""
    many = pd.concat(
        [others.assign(workload=others["workload"] + str(i)) for i in range(5)]
    )
    key = tuple({"workload": "c", **MACHINE}.items())
    for prior in StepTimePrior.learn(many).about(key, 16.0).values():
        assert 0.34**2 < prior.covariance[NODE_JUMP, NODE_JUMP] < 0.6**2
