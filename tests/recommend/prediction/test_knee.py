from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from sentences import Golden

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import sentences
from scalelab.recommend.prediction.knee import last_paying, marginal_return

SIZES = np.array([1.0, 2.0, 4.0, 8.0])


def test_marginal_return_of_ideal_and_of_useless_doublings() -> None:
    times = np.array([8.0, 4.0, 4.0, 3.0])
    found = marginal_return(times, SIZES)
    assert found[[0, 1, 2], [1, 2, 3]] == pytest.approx([1.0, 0.0, 1 / 3])
    assert found[[0, 0, 1], [2, 3, 3]] == pytest.approx([1 / 3, 5 / 21, 1 / 9])


def test_marginal_return_counts_per_device_added() -> None:
    # 3 times the devices, 2 times as fast: half of the two added paid
    assert marginal_return(np.array([6.0, 3.0]), np.array([1.0, 3.0]))[0, 1] == 0.5


def test_the_last_paying_size_is_the_first_from_which_no_larger_one_pays() -> None:
    times = np.array([[8, 4, 4, 2], [8, 4, 2, 1], [8, 7, 3, 1]], dtype=float)
    assert last_paying(times, SIZES, 0.5).tolist() == [1, 3, 3]


def test_a_poor_doubling_is_no_end_where_the_next_ones_make_up_for_it() -> None:
    # 57% of the second device's gain, then all of it: eight are 73% of eight times one
    times = np.array([[8.0, 5.1, 2.6, 1.3], [8.0, 5.1, 3.2, 1.8]])
    assert last_paying(times, SIZES, 0.7).tolist() == [3, 0]


def test_part_of_a_further_node_is_no_step_to_judge_by() -> None:
    sizes = np.array([1.0, 2.0, 4.0, 5.0, 8.0])
    # The fifth device is on a second node: it costs more than it gives.
    times = np.array([[8.0, 4.0, 2.0, 2.1, 1.1]])
    assert marginal_return(times, sizes)[0, 2, 3:] == pytest.approx(
        [(4.0 / 2.1 - 1) / 1.5, 2.0 / 1.1 - 1]
    )
    assert last_paying(times, sizes, 0.7).tolist() == [4]


@pytest.mark.parametrize(
    ("sizes", "step_s", "last"),
    [
        # five nodes are slow, and the doubling from three reaches beyond them
        ([8, 16, 24, 32, 40, 48], [0.1, 0.1, 0.101, 0.101, 0.15, 0.151], 32),
        # the second node is slow: 5 devices are not the last because 10 are slow
        ([1, 2, 4, 5, 8, 10, 16], [82, 82.2, 83, 83.2, 83.5, 105.4, 106], 8),
        ([1, 2, 4, 8, 16], [82, 82.2, 83, 83.5, 106], 8),
        # every count of devices is judged by its doubling, as if there were no others
        ([*range(1, 17)], [1 + 0.1 * size for size in range(1, 17)], 4),
        ([1, 2, 4, 8, 16], [1.1, 1.2, 1.4, 1.8, 2.6], 4),
    ],
)
def test_the_knee_is_where_the_loss_is_whichever_sizes_are_named(
    sizes: list[int], step_s: list[float], last: int
) -> None:
    size = np.array(sizes, dtype=float)
    times = (np.array(step_s) / size)[None]
    assert sizes[int(last_paying(times, size, 0.7)[0])] == last


def test_a_stricter_return_moves_the_knee_down(rng: np.random.Generator) -> None:
    times = 1 / SIZES + 0.05 * np.log2(SIZES) + 0.001 * rng.random((50, 4))
    strict, lax = (last_paying(times, SIZES, least) for least in (0.9, 0.3))
    assert (strict <= lax).all()


BATCH = 64


def job_on(step_s: Callable[[int, int, int], float]) -> Recommendation:
    """Ask for a job of one global batch, on nodes of 8 devices with known times."""
    rng = np.random.default_rng(1)
    rows = [
        {"world_size": k * m, "num_nodes": m, "local_batch_size": b}
        | {"step_time_s": step_s(k, m, b) * np.exp(0.01 * rng.standard_normal())}
        for k, m in ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4))
        for b in (1, 2, 4, 8, 16, 32, 64)
        if b * k * m <= BATCH
    ]
    return recommend(pd.DataFrame(rows), Job(samples=1_000_000), devices_on_node=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step_s", "cause"),
    [
        (
            lambda k, m, b: 0.001 + 0.01 * b + 0.1 * (m > 1),
            "inter-node all-reduce",
        ),
        (
            lambda k, m, b: 0.001 + 0.01 * b + 0.08 * (k > 1) * 2 * (k - 1) / k,
            "intra-node all-reduce",
        ),
        (
            lambda k, m, b: (0.001 + 0.01 * b) * (1 + 0.5 * (k - 1)),
            "contention between the devices of a node",
        ),
        (lambda k, m, b: 0.1 + 0.002 * b, "fixed cost per pass"),
    ],
)
def test_the_cause_named_is_the_true_one(
    step_s: Callable[[int, int, int], float], cause: str
) -> None:
    knee = job_on(step_s).knee
    assert knee is not None
    assert knee.term == cause


@pytest.mark.slow
def test_a_cause_that_the_rows_cannot_tell_from_others_is_not_stated_alone(
    golden: Golden,
) -> None:
    def step_s(local: int, size: int) -> float:
        within, nodes = min(size, 8), -(-size // 8)
        exchange = 0.01 * (within - 1) / within + 0.03 * (nodes - 1) / nodes
        return 0.012 + 0.0027 * local + exchange

    rows = [
        {"world_size": size, "num_nodes": -(-size // 8)}
        | {"local_batch_size": 1024 // size, "step_time_s": step_s(1024 // size, size)}
        for size in (1, 2, 4, 8, 16, 32, 64)
    ]
    asked = Job(samples=10_000_000)
    knee = recommend(pd.DataFrame(rows), asked, devices_on_node=8).knee
    assert knee is not None
    golden(knee.term)


def test_an_open_knee_claims_no_chance_and_no_cause_to_a_program_either() -> None:
    rows = [
        {"world_size": size, "local_batch_size": 64, "step_time_s": 0.1}
        for size in (1, 2, 4, 8)
    ]
    found = recommend(pd.DataFrame(rows), Job(samples=10**6), devices_on_node=8)
    text = (
        "Where doubling stops paying is open: somewhere above 8 GPUs (none were "
        "measured)."
    )
    assert sentences(found)["knee"] == [text]
    knee = found.to_json()["knee"]
    assert [knee[name] for name in ("lo", "hi")] == [8, None]
    assert knee["term"] is None
    assert knee["probability_in_range"] is None
