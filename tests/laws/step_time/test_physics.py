import numpy as np
import pytest

from scalelab.laws.step_time.physics import (
    NEUTRAL,
    Configurations,
    ExchangeForm,
    step_time_s,
    terms,
)


def at(
    sizes: list[int], nodes: list[int], batch: float = 4.0, accumulation: float = 1.0
) -> Configurations:
    sizes = np.array(sizes, dtype=float)
    return Configurations(
        world_size=sizes,
        num_nodes=np.array(nodes, dtype=float),
        samples=np.full(len(sizes), float(batch)),
        accumulation=np.full(len(sizes), float(accumulation)),
    )


def parameters(rng: np.random.Generator, count: int = 100) -> np.ndarray:
    values = np.tile(NEUTRAL, (count, 1))
    values[:, :6] = rng.uniform(0, 1, (count, 6)) * [1, 1, 0.01, 0.5, 0.01, 0.5]
    values[:, 6:] = rng.uniform([0, 0.5, 0], [0.9, 1.1, 0.2], (count, 3))
    return values


def test_one_device_only_computes(rng: np.random.Generator) -> None:
    values = parameters(rng)
    expected = 3 * (values[:, 0] + values[:, 1] * 4.0 ** values[:, 7])
    for form in ExchangeForm:
        measured = step_time_s(values, at([1], [1], accumulation=3), form)[:, 0]
        assert measured == pytest.approx(expected)


def test_a_hand_worked_ring() -> None:
    values = np.array([[1.0, 0.5, 0.1, 2.0, 0.3, 4.0, 0.0, 1.0, 0.0]])
    # compute 1 + 4 * 0.5 = 3; four devices of one node: 6 * 0.1 + 6 / 4 * 2 = 3.6
    for form in ExchangeForm:
        assert step_time_s(values, at([4], [1]), form).item() == pytest.approx(6.6)
    # two nodes of two: tiered 2 * 0.1 + 2 + 2 * 0.3 + 4, flat 6 * 0.3 + 6 / 4 * 4
    tiered = step_time_s(values, at([4], [2]), ExchangeForm.TIERED).item()
    assert tiered == pytest.approx(3 + 0.2 + 2 + 0.6 + 4)
    flat = step_time_s(values, at([4], [2]), ExchangeForm.FLAT).item()
    assert flat == pytest.approx(3 + 1.8 + 6)


@pytest.mark.parametrize("form", ExchangeForm)
def test_overlap_hides_at_most_one_pass_and_at_most_the_exchange(
    rng: np.random.Generator, form: ExchangeForm
) -> None:
    values = parameters(rng)
    where = at([8, 8], [1, 2], accumulation=2)
    parts = terms(values, where, form)
    exposed = parts.intra_node + parts.inter_node
    values[:, 6] = 0.0
    plain = terms(values, where, form)
    exchange = plain.intra_node + plain.inter_node
    one_pass = (plain.fixed + plain.per_sample + plain.imbalance) / 2
    assert (exposed <= exchange * (1 + 1e-9)).all()
    assert (exposed >= exchange - one_pass - 1e-9).all()


@pytest.mark.parametrize("form", ExchangeForm)
def test_time_grows_with_batch_devices_and_passes(
    rng: np.random.Generator, form: ExchangeForm
) -> None:
    values = parameters(rng)
    for small, large in (
        (at([8], [2], batch=2), at([8], [2], batch=4)),
        (at([8], [2]), at([16], [4])),
        (at([2], [1]), at([4], [1])),
        (at([8], [2]), at([8], [2], accumulation=2)),
    ):
        low, high = (step_time_s(values, where, form) for where in (small, large))
        assert (low <= high * (1 + 1e-9)).all()


def test_the_bandwidth_term_saturates_and_the_latency_term_does_not() -> None:
    transfer = np.array([[0, 0, 0, 0, 0, 1.0, 0, 1, 0]])
    latency = np.array([[0, 0, 0, 0, 1.0, 0, 0, 1, 0]])
    many = at([1024], [1024])
    assert step_time_s(transfer, many, ExchangeForm.FLAT).item() < 2
    assert step_time_s(latency, many, ExchangeForm.FLAT).item() == pytest.approx(
        2 * 1023
    )


def test_imbalance_counts_from_two_devices_on() -> None:
    values = np.array([[1.0, 0.0, 0, 0, 0, 0, 0, 1, 0.1]])
    times = step_time_s(values, at([1, 2], [1, 1]), ExchangeForm.TIERED)
    assert times.ravel() == pytest.approx([1.0, 1.1])
