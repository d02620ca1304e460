"""Machines whose nodes are joined by 1, 10 and 100 Gbit/s, of which one is measured."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from declared_machines import declared_step_time, random_machine, sweep_rows

from scalelab.inputs.links import Link
from scalelab.inputs.outcome import Support
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.prior import StepTimePrior

PER_NODE = 8
LATENCIES_S = {1: 5e-5, 10: 2e-5, 100: 5e-6}
ASKED = pd.DataFrame(
    {"world_size": [16, 64], "num_nodes": [2, 8], "local_batch_size": 16}
)
EXCHANGED = ((1e8, 2e10), (1e8, 1e11), (5e8, 5e9), (5e8, 1e11), (2e9, 1e11))
"""Bytes of gradients, and bytes/s within the node."""


def machines(gbit_per_s: float) -> Iterator[tuple[pd.DataFrame, np.ndarray]]:
    """Rows of one node, with the bytes exchanged, and true step times of several."""
    for seed, (gradient_bytes, within) in enumerate(EXCHANGED):
        rng = np.random.default_rng(seed)
        machine = {
            **random_machine(rng),
            "gpus_per_node": PER_NODE,
            "fixed": 0.05,
            "per_sample": 0.01,
            "intra_transfer": gradient_bytes / within,
            "inter_transfer": gradient_bytes / (0.8 * gbit_per_s * 1.25e8),
            "inter_latency": LATENCIES_S[int(gbit_per_s)],
        }
        rows = sweep_rows(machine, rng, sizes=(1, 2, 4, 8))
        truth = [declared_step_time(machine, n, 16) for n in ASKED["world_size"]]
        yield rows.assign(gradient_bytes=gradient_bytes), np.array(truth)


def answered(rows: pd.DataFrame, link: Link | None) -> pd.DataFrame:
    prior = StepTimePrior.shipped().with_links(between_nodes=link)
    answer = StepTimeLaw.fit(rows, prior).predict(ASKED)
    assert (answer["support"] == Support.NOT_MEASURED).all()
    return answer


def holds(answer: pd.DataFrame, truth: np.ndarray) -> list[bool]:
    inside = (answer["step_time_lo_s"] < truth) & (truth < answer["step_time_hi_s"])
    return inside.tolist()


def width(answer: pd.DataFrame) -> float:
    return float(np.log(answer["step_time_hi_s"] / answer["step_time_lo_s"]).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    "gbit_per_s", [10, pytest.param(100, marks=pytest.mark.repetition)]
)
def test_the_belief_over_machines_holds_what_usual_links_cost(gbit_per_s: int) -> None:
    inside = []
    for rows, truth in machines(gbit_per_s):
        inside += holds(answered(rows, None), truth)
    assert np.mean(inside) >= 0.8


def test_the_belief_is_at_most_ten_times_wide_and_needs_to_be_told_of_a_slow_link() -> (
    None
):
    rows, truth = next(machines(1))
    believed = answered(rows, None)
    assert width(believed) < np.log(10)
    told = answered(rows, Link(bandwidth_bytes_per_s=1.25e8, latency_s=1e-5))
    errors = [np.abs(np.log(each["step_time_s"] / truth)) for each in (believed, told)]
    assert errors[1].max() < 0.5 < errors[0].min()


@pytest.mark.slow
@pytest.mark.parametrize(
    "gbit_per_s",
    [1, *(pytest.param(each, marks=pytest.mark.repetition) for each in (10, 100))],
)
def test_a_stated_link_holds_the_truth(gbit_per_s: int) -> None:
    link = Link(bandwidth_bytes_per_s=gbit_per_s * 1.25e8, latency_s=1e-5)
    inside = []
    for rows, truth in machines(gbit_per_s):
        inside += holds(answered(rows, link), truth)
    assert np.mean(inside) >= 0.8


def test_a_stated_link_narrows_the_answer() -> None:
    rows, _ = next(machines(100))
    link = Link(bandwidth_bytes_per_s=1.25e10, latency_s=1e-5)
    assert width(answered(rows, link)) < 0.6 * width(answered(rows, None))


@pytest.mark.slow
def test_a_stated_link_never_overrides_measured_rows() -> None:
    rng = np.random.default_rng(1)
    rows = sweep_rows({**random_machine(rng), "gpus_per_node": 4}, rng)
    asked = ASKED.assign(num_nodes=[4, 16])
    slow = StepTimePrior.shipped().with_links(Link(bandwidth_bytes_per_s=1e6))
    pd.testing.assert_frame_equal(
        StepTimeLaw.fit(rows, slow).predict(asked), StepTimeLaw.fit(rows).predict(asked)
    )


@pytest.mark.slow
def test_a_slower_link_takes_longer() -> None:
    rows, _ = next(machines(10))
    times = [
        answered(rows, Link(bandwidth_bytes_per_s=gbit * 1.25e8))["step_time_s"]
        for gbit in (100, 10, 1)
    ]
    assert (times[0] < times[1]).all()
    assert (times[1] < times[2]).all()


def test_the_rows_of_one_node_are_predicted_as_without_a_belief() -> None:
    rows, _ = next(machines(10))
    asked = rows.drop_duplicates(["world_size", "local_batch_size"])
    plain, told = (
        StepTimeLaw.fit(
            rows, StepTimePrior.shipped().with_links(between_nodes=link)
        ).predict(asked)
        for link in (None, Link(bandwidth_bytes_per_s=1e9))
    )
    names = ["step_time_s", "step_time_lo_s", "step_time_hi_s"]
    assert told[names].to_numpy() == pytest.approx(plain[names].to_numpy(), rel=1e-3)


def test_a_fast_link_makes_no_step_faster_than_within_a_node() -> None:
    # links within the node are slow: the exchange of two devices takes three passes
    rng = np.random.default_rng(0)
    machine = {**random_machine(rng), "gpus_per_node": 2, "intra_transfer": 0.15}
    machine |= {"fixed": 0.02, "per_sample": 0.002, "inter_transfer": 0.15}
    rows = sweep_rows(machine, rng, sizes=(1, 2)).assign(gradient_bytes=1e6)
    prior = StepTimePrior.shipped().with_links(Link(bandwidth_bytes_per_s=12.5e9))
    sizes = {"world_size": [2, 4, 8], "num_nodes": [1, 2, 4], "local_batch_size": 16}
    answer = StepTimeLaw.fit(rows, prior).predict(pd.DataFrame(sizes))
    assert answer["step_time_s"].is_monotonic_increasing
