import dataclasses
import time

import pytest

from scalelab.cluster.nodes import Node
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.records.attempt import NodeShare, Placement
from scalelab.records.control.events import Event, NodeLost, NodeUp
from scalelab.scheduling.pool import Pool


def node(name: str, host: str, *device_ids: str, num_cores: int = 8) -> Node:
    return Node(
        name=name,
        address=f"tls://{name}:1",
        host=host,
        device_ids=device_ids,
        device_name="a device",
        num_cores=num_cores,
        memory_bytes=1,
    )


def placed(**shares: tuple[str, ...]) -> Placement:
    return Placement(
        shares=tuple(
            NodeShare(node=name, device_ids=ids) for name, ids in shares.items()
        )
    )


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def pool(events: list[Event]) -> Pool:
    return Pool({None: (2, 2)}, events.append, timeout_s=1.0)


def test_a_node_is_used_once_however_often_it_is_announced(
    pool: Pool, events: list[Event]
) -> None:
    for _ in range(2):
        pool.join(node("a", "h", "0", "1"))
    assert pool.num_devices == 2
    for _ in range(2):
        pool.leave("tls://a:1")
    assert pool.num_devices == 0
    assert [type(event) for event in events] == [NodeUp, NodeLost]


def test_a_node_that_comes_back_before_it_was_missed_replaces_itself(
    pool: Pool, events: list[Event]
) -> None:
    old = node("a", "h", "0", "1")
    new = dataclasses.replace(old, address="tls://a:2")
    pool.join(old)
    pool.join(new)
    pool.leave(old.address)
    assert pool.addresses(placed(a=("0",))) == (new.address,)
    assert pool.num_devices == 2
    assert [type(event) for event in events] == [NodeUp, NodeLost, NodeUp]


def test_a_rank_has_one_thread_per_core_or_its_gpus_share(pool: Pool) -> None:
    pool.join(node("a", "h", "0", "1", num_cores=8))
    pool.join(node("b", "i", "0", "1", num_cores=6))
    both = placed(a=("0",), b=("0",))
    assert pool.threads_per_rank(both, "cpu") == 1
    assert pool.threads_per_rank(both, "cuda") == 3
    assert pool.threads_per_rank(placed(a=("0", "1")), "cuda") == 4


def test_an_attempt_ends_before_the_first_of_its_nodes_does(pool: Pool) -> None:
    pool.join(node("a", "h", "0"))
    pool.join(node("b", "i", "0"))
    alone, both = placed(b=("0",)), placed(a=("0",), b=("0",))
    assert pool.time_left_s(both) is None
    now_s = time.monotonic()
    pool.placers[None].limit("a", now_s + 100.0, 3600.0)
    assert pool.time_left_s(alone) is None
    # Of a job of a minute, a tenth is kept for the last checkpoint.
    pool.placers[None].limit("b", now_s + 60.0, 60.0)
    left_s = [pool.time_left_s(alone), pool.time_left_s(both)]
    pool.leave("tls://b:1")
    left_s.append(pool.time_left_s(placed(a=("0",))))
    passed_s = time.monotonic() - now_s
    for each_s, at_first_s in zip(left_s, (54.0, 54.0, 85.0), strict=True):
        assert each_s is not None
        assert at_first_s - passed_s <= each_s <= at_first_s
    pool.placers[None].limit("a", now_s - 1.0, 3600.0)
    assert pool.time_left_s(placed(a=("0",))) == 0.0


def trial(workload: str) -> Trial:
    return Trial(
        kind=TrialKind.THROUGHPUT,
        workload=workload,
        allocation=Allocation(devices_per_node=(1,)),
        local_batch_size=1,
    )


REAL, EMULATED = trial("digits_mlp"), trial("emulated")


def test_ranks_that_share_a_core_or_a_host_are_marked_unless_times_are_declared(
    pool: Pool,
) -> None:
    pool.join(node("a", "h", "0", "1"))
    pool.join(node("b", "h", "1", "2"))
    pool.join(node("c", "i", "1", "2"))
    assert pool.validity(REAL, placed(a=("1",))) == ()
    assert pool.validity(REAL, placed(a=("1",), b=("1",))) == (
        "oversubscribed_cores",
        "loopback_nodes",
    )
    assert pool.validity(REAL, placed(a=("0",), b=("2",))) == ("loopback_nodes",)
    assert pool.validity(REAL, placed(a=("0",), c=("2",))) == ()
    assert pool.validity(EMULATED, placed(a=("0", "1"), b=("1",))) == ("uneven_ranks",)


def test_more_ranks_than_cores_are_marked_and_not_the_node(pool: Pool) -> None:
    pool.join(node("a", "h", "0", "1", num_cores=1))
    pool.join(node("b", "i", "0", "1", "0", "1", num_cores=2))
    for fit in (placed(a=("0",)), placed(a=("0",), b=("0",)), placed(b=("0", "1"))):
        assert pool.validity(REAL, fit) == ()
    for unfit in (placed(a=("0", "1")), placed(b=("0", "1", "0"))):
        assert "oversubscribed_cores" in pool.validity(REAL, unfit)
        assert pool.validity(EMULATED, unfit) == ()


def test_waiting_is_over_once_something_runs(pool: Pool) -> None:
    assert pool.deadline_s(lambda: False) is None
