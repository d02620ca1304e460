from dataclasses import replace
from itertools import pairwise

import pytest

from scalelab.errors import SpecError
from scalelab.training.workloads.declared_machine import (
    DeclaredMachine,
    compute_time,
    declared_step_time,
    exchange_time,
    ring_time,
)

MACHINE = DeclaredMachine(
    sample_time_s=0.01,
    fixed_time_s=0.1,
    gradient_bytes=1000,
    intra_latency_s=0.001,
    intra_bandwidth_bytes_per_s=1e5,
    inter_latency_s=0.01,
    inter_bandwidth_bytes_per_s=1e4,
)


def step_time(
    machine: DeclaredMachine, devices_per_node: list[int], **changes: int
) -> float:
    fields = {"local_batch_size": 10, "devices_per_node": devices_per_node}
    return declared_step_time(machine, **(fields | changes))


def test_one_device_only_computes() -> None:
    assert step_time(MACHINE, [1]) == pytest.approx(0.2)
    assert step_time(MACHINE, [1], gradient_accumulation_steps=3) == pytest.approx(0.6)


def test_two_tiers_by_hand() -> None:
    # 4 devices on a node: 6 messages of 250 bytes; 2 nodes: 2 messages of 500 bytes.
    within = 6 * (0.001 + 250 / 1e5)
    between = 2 * (0.01 + 500 / 1e4)
    assert exchange_time(MACHINE, [4, 4]) == pytest.approx(within + between)
    assert step_time(MACHINE, [4, 4]) == pytest.approx(0.2 + within + between)


def test_exchange_happens_once_per_step_whatever_the_accumulation() -> None:
    one = step_time(MACHINE, [4], gradient_accumulation_steps=1)
    three = step_time(MACHINE, [4], gradient_accumulation_steps=3)
    assert three - one == pytest.approx(2 * compute_time(MACHINE, local_batch_size=10))


def test_overlap_hides_no_more_than_the_last_pass() -> None:
    exchange = exchange_time(MACHINE, [4])
    half = step_time(replace(MACHINE, overlap=0.5), [4])
    assert half == pytest.approx(0.2 + exchange / 2)
    assert step_time(replace(MACHINE, overlap=1.0), [4]) == pytest.approx(0.2)
    slow_link = replace(MACHINE, overlap=1.0, inter_bandwidth_bytes_per_s=1e3)
    exchange = exchange_time(slow_link, [1, 1])
    assert exchange > 0.2
    assert step_time(slow_link, [1, 1]) == pytest.approx(exchange)


def test_imbalance_slows_gangs_only() -> None:
    uneven = replace(MACHINE, imbalance=0.1, gradient_bytes=0, intra_latency_s=0)
    assert step_time(uneven, [1]) == pytest.approx(0.2)
    assert step_time(uneven, [2]) == pytest.approx(0.22)


def test_ring_needs_no_time_alone_and_twice_the_bytes_in_the_limit() -> None:
    link = {"latency_s": 0.0, "bandwidth_bytes_per_s": 10.0}
    assert ring_time(1, 100, **link) == 0.0
    assert ring_time(1000, 100, **link) == pytest.approx(20.0, rel=2e-3)


def test_throughput_shows_diminishing_returns() -> None:
    def throughput(nodes: int) -> float:
        return nodes * 4 * 10 / step_time(MACHINE, [4] * nodes)

    rates = [throughput(nodes) for nodes in range(1, 12)]
    gains = [b / a for a, b in pairwise(rates)]
    per_device = [rate / nodes for nodes, rate in enumerate(rates, start=1)]
    assert per_device == sorted(per_device, reverse=True)
    assert gains[-1] < gains[1]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sample_time_s", -1.0, r"sample_time_s=-1.0 must be at least 0\."),
        ("intra_bandwidth_bytes_per_s", 0, r"intra_bandwidth_bytes_per_s=0 must be ab"),
        ("overlap", 1.5, r"overlap=1.5 must be at most 1\."),
        ("noise", float("nan"), r"noise=nan must be at least 0\."),
    ],
)
def test_impossible_machine_is_refused(field: str, value: float, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        DeclaredMachine(**{field: value})
