import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from time import thread_time

import pytest

from scalelab.cluster.nodes import Node
from scalelab.experiment.trial import FIRST_CANARY, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.records.attempt import Placement
from scalelab.scheduling import trial_queue
from scalelab.scheduling.placement import Placer
from scalelab.scheduling.trial_queue import Request


def node(
    name: str,
    devices: int | tuple[str, ...],
    *,
    host: str = "",
    num_cores: int | None = None,
) -> Node:
    ids = tuple(map(str, range(devices))) if isinstance(devices, int) else devices
    return Node(
        name=name,
        address=f"tls://{name}:1",
        host=host or name,
        device_ids=ids,
        device_name="a device",
        num_cores=num_cores or len(ids),
        memory_bytes=1,
    )


def request(
    number: int,
    *devices: int,
    duration_s: float = 1.0,
    repeat: int = 0,
    workload: str = "emulated",
) -> Request:
    trial = Trial(
        kind=TrialKind.THROUGHPUT,
        workload=workload,
        allocation=Allocation(devices_per_node=devices),
        local_batch_size=1,
        repeat=repeat,
        options={"number": number},
    )
    return Request(number=number, trial=trial, duration_s=duration_s)


def numbers(placed: list[tuple[Request, Placement]]) -> list[int]:
    return [request.number for request, _ in placed]


def placer(*devices: int) -> Placer:
    return Placer([node(f"n{index}", count) for index, count in enumerate(devices)])


def test_a_trial_gets_all_it_needs_or_nothing() -> None:
    place = placer(2, 2)
    place.queue.add(request(0, 2, 1))
    place.queue.add(request(1, 2))
    (started, where), *rest = place.place(0.0)
    assert started.number == 0
    assert not rest
    assert [len(share.device_ids) for share in where.shares] == [2, 1]
    assert len({share.node for share in where.shares}) == 2
    assert len(place.queue) == 1
    place.release(0)
    assert numbers(place.place(1.0)) == [1]


def test_repeats_are_interleaved_and_the_largest_goes_first() -> None:
    place = placer(2)
    for number, (size, repeat) in enumerate(
        [(1, 0), (2, 0), (1, 1), (2, 1), (2, 0), (1, 0)]
    ):
        place.queue.add(request(number, size, repeat=repeat))
    order = []
    while place.queue:
        for number in numbers(place.place(0.0)):
            order.append(number)
            place.release(number)
    assert order == [1, 4, 0, 5, 3, 2]


def test_a_canary_goes_before_all_that_wait() -> None:
    place = placer(2)
    for number, (size, repeat) in enumerate([(2, 0), (1, 1), (1, FIRST_CANARY + 20)]):
        place.queue.add(request(number, size, repeat=repeat))
    assert numbers(place.place(0.0)) == [2, 1]


def test_equals_keep_the_order_of_the_source_whatever_their_estimates() -> None:
    place = placer(1)
    for number in range(8):
        place.queue.add(request(number, 1, duration_s=1.0 + 7.0 * (number % 2)))
    order = []
    while place.queue:
        order += (started := numbers(place.place(0.0)))
        place.release(started[0])
    assert order == list(range(8))


def test_a_short_trial_is_backfilled_and_a_long_one_is_not() -> None:
    place = placer(2)
    place.queue.add(request(0, 1, duration_s=10.0))
    place.place(0.0)
    place.queue.add(request(1, 2, duration_s=5.0))
    place.queue.add(request(2, 1, duration_s=11.0))
    place.queue.add(request(3, 1, duration_s=9.0))
    assert numbers(place.place(0.5)) == [3]
    place.release(3)
    place.release(0)
    assert numbers(place.place(10.0)) == [1]


def test_a_long_trial_may_use_what_the_first_in_line_leaves_over() -> None:
    place = placer(2, 1)
    place.queue.add(request(0, 1, duration_s=10.0))
    place.queue.add(request(1, 1, duration_s=10.0))
    assert numbers(place.place(0.0)) == [0, 1]
    place.release(0)
    place.queue.add(request(2, 2, duration_s=5.0))
    place.queue.add(request(3, 1, duration_s=100.0))
    (started, where), *rest = place.place(1.0)
    assert started.number == 3
    assert where.shares[0].node == "n1"
    assert not rest
    place.release(1)
    assert numbers(place.place(10.0)) == [2]


def test_overdue_trials_do_not_let_others_past_the_first_in_line() -> None:
    place = placer(2)
    place.queue.add(request(0, 1, duration_s=1.0))
    place.place(0.0)
    place.queue.add(request(1, 2))
    place.queue.add(request(2, 1, duration_s=0.01))
    assert place.place(100.0) == []


def test_small_trials_do_not_starve_behind_a_stream_of_large_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_queue, "PATIENCE", 5)
    place = placer(2)
    place.queue.add(request(0, 1))
    for number in range(1, 20):
        place.queue.add(request(number, 2))
        place.queue.add(request(number + 100, 2))
        started = numbers(place.place(float(number)))
        for running in started:
            place.release(running)
        if 0 in started:
            break
    assert number <= 7


def test_what_is_known_from_the_beginning_overtakes_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_queue, "PATIENCE", 5)
    place = placer(2)
    place.queue.add(request(0, 1))
    for number in range(1, 20):
        place.queue.add(request(number, 2))
    order = []
    while place.queue:
        for number in numbers(place.place(float(len(order)))):
            order.append(number)
            place.release(number)
    assert order == [*range(1, 20), 0]


def test_a_retried_trial_goes_before_its_equals() -> None:
    place = placer(1)
    for number in range(3):
        place.queue.add(request(number, 1))
    assert numbers(place.place(0.0)) == [0]
    place.release(0)
    place.queue.add(request(0, 1))
    assert numbers(place.place(0.0)) == [0]


def test_nodes_come_and_go_while_trials_run() -> None:
    place = placer(2, 2)
    place.queue.add(request(0, 2, 2))
    place.place(0.0)
    place.remove_node("n1")
    place.queue.add(request(1, 2, 2))
    place.queue.add(request(2, 1))
    place.release(0)
    assert numbers(place.place(1.0)) == [2], "the large trial waits for its node"
    place.add_node(node("n1", 2))
    place.release(2)
    assert numbers(place.place(2.0)) == [1]


def test_devices_of_a_lost_node_are_not_handed_out_twice_when_it_returns() -> None:
    place = placer(2)
    place.queue.add(request(0, 2))
    place.place(0.0)
    place.remove_node("n0")
    place.add_node(node("n0", 2))
    place.queue.add(request(1, 2))
    assert numbers(place.place(1.0)) == [1]
    place.release(0)
    place.queue.add(request(2, 1))
    assert place.place(2.0) == []
    assert place.free_devices == {"n0": 0}


def test_an_impossible_trial_is_named_with_what_there_is() -> None:
    place = placer(2, 2, 1)
    assert place.why_never(Allocation(devices_per_node=(2, 2, 1))) is None
    assert place.why_never(Allocation(devices_per_node=(2, 2, 2))) == (
        "The trial needs 3 nodes x 2 devices; the cluster has 2 nodes x 2 + 1 node x 1 "
        "devices. Ask for fewer devices, or run on a larger cluster."
    )
    place.remove_node("n0")
    assert place.why_never(Allocation(devices_per_node=(2, 2, 1))) is None
    waiting = Placer(expected_devices=(4, 4))
    assert waiting.why_never(Allocation(devices_per_node=(4, 2))) is None
    assert "1 node x 5 devices" in str(
        waiting.why_never(Allocation(devices_per_node=(5,)))
    )
    assert "the cluster has no nodes" in str(
        Placer().why_never(Allocation(devices_per_node=(1,)))
    )


def test_slots_that_share_a_core_are_handed_out_apart_first() -> None:
    place = Placer([node("n0", ("0", "1", "0", "1"))])
    place.queue.add(request(0, 2))
    place.queue.add(request(1, 2))
    placed = place.place(0.0)
    assert [where.shares[0].device_ids for _, where in placed] == [("0", "1")] * 2


def run_all(place: Placer, requests: list[Request]) -> list[set[int]]:
    """Run requests, the longest running first to end; return who ran together."""
    for each in requests:
        place.queue.add(each)
    together, running = [], []
    while len(place.queue) or running:
        running += [started.number for started, _ in place.place(0.0)]
        together.append(set(running))
        place.release(running.pop(0))
    return together


FOUR_ON_TWO = ("0", "1", "0", "1")


def test_trials_run_side_by_side_only_as_far_as_there_are_cores() -> None:
    devices = (1, 2, 1, 4, 1, 1, 3)
    requests = [
        request(number, count, workload="digits_mlp")
        for number, count in enumerate(devices)
    ]
    place = Placer([node("n0", FOUR_ON_TWO, num_cores=2)])
    together = run_all(place, requests)
    assert set.union(*together) == set(range(len(devices)))
    assert max(map(len, together)) == 2
    for numbers in together:
        busy = sum(devices[number] for number in numbers)
        assert busy <= 2 or len(numbers) == 1
    assert place.free_devices == {"n0": 4}


def test_gpus_with_fewer_cores_are_used_as_far_as_there_are_cores() -> None:
    place = Placer([node("n0", 4, num_cores=1), node("n1", 4, num_cores=8)])
    for number in range(6):
        place.queue.add(request(number, 1, workload="resnet_cifar"))
    nodes = [where.shares[0].node for _, where in place.place(0.0)]
    assert Counter(nodes) == {"n0": 1, "n1": 4}


def test_nodes_that_share_cores_run_one_trial_at_a_time() -> None:
    nodes = [node(name, ("0", "1"), host="h") for name in ("n0", "n1")]
    place = Placer(nodes)
    requests = [request(n, 1, workload="digits_mlp") for n in range(3)]
    requests.append(request(3, 1, 1, workload="digits_mlp"))
    assert all(len(numbers) == 1 for numbers in run_all(place, requests))
    place.remove_node("n1")
    assert max(map(len, run_all(place, requests[:3]))) == 2


def test_jobs_of_one_host_that_count_their_gpus_alike_run_side_by_side() -> None:
    nodes = [node(name, ("0", "1"), host="h") for name in ("n0", "n1")]
    place = Placer([replace(each, device_type="cuda") for each in nodes])
    requests = [request(n, 2, workload="digits_mlp") for n in range(2)]
    assert max(map(len, run_all(place, requests))) == 2


def test_who_backfills_leaves_cores_to_the_first_in_line() -> None:
    place = Placer([node("n0", FOUR_ON_TWO, num_cores=2)])
    place.queue.add(request(0, 1, workload="digits_mlp", duration_s=9.0))
    assert numbers(place.place(0.0)) == [0]
    place.queue.add(request(1, 2, workload="digits_mlp"))
    place.queue.add(request(2, 1, workload="digits_mlp", duration_s=99.0))
    assert numbers(place.place(1.0)) == []
    place.release(0)
    assert numbers(place.place(9.0)) == [1]


def test_trials_with_declared_times_take_every_slot() -> None:
    place = Placer([node("n0", FOUR_ON_TWO, num_cores=2)])
    for number in range(4):
        place.queue.add(request(number, 1))
    assert numbers(place.place(0.0)) == [0, 1, 2, 3]


def test_a_trial_wider_than_the_cores_waits_for_no_more_than_what_runs() -> None:
    place = Placer([node("n0", FOUR_ON_TWO, num_cores=2)])
    place.queue.add(request(0, 1, workload="digits_mlp", duration_s=9.0))
    assert numbers(place.place(0.0)) == [0]
    place.queue.add(request(1, 4, workload="digits_mlp"))
    place.queue.add(request(2, 1, workload="digits_mlp", duration_s=99.0))
    assert numbers(place.place(1.0)) == []
    place.release(0)
    assert numbers(place.place(9.0)) == [1]


class Simulation:
    """Random arrivals, ends, losses and returns; checks what must always hold."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.nodes = {
            f"n{index}": node(f"n{index}", self.draw.randint(1, 4))
            for index in range(4)
        }
        self.up = set(self.nodes)
        self.place = Placer(self.nodes.values())
        self.now_s = 0.0
        self.number = 0
        self.running: dict[int, tuple[float, list[tuple[str, str, int]]]] = {}
        self.incarnation = Counter[str]()
        self.waiting: dict[int, Request] = {}

    def arrive(self) -> None:
        sizes = [self.draw.randint(1, 4) for _ in range(self.draw.randint(1, 3))]
        new = request(
            self.number,
            *sizes,
            duration_s=self.draw.choice([0.1, 1.0, 5.0]),
            repeat=self.draw.randint(0, 1),
        )
        self.number += 1
        if self.place.why_never(new.trial.allocation) is None:
            self.waiting[new.number] = new
            self.place.queue.add(new)

    def lose_or_return(self) -> None:
        name = self.draw.choice(list(self.nodes))
        if name in self.up:
            self.place.remove_node(name)
            self.up.remove(name)
        else:
            self.incarnation[name] += 1
            self.place.add_node(self.nodes[name])
            self.up.add(name)

    def end_one(self) -> None:
        if self.running:
            number = min(self.running, key=lambda item: self.running[item][0])
            self.now_s = max(self.now_s, self.running.pop(number)[0])
            self.place.release(number)

    def start(self) -> None:
        started = self.place.place(self.now_s)
        for item, where in started:
            needed = item.trial.allocation.devices_per_node
            assert tuple(len(share.device_ids) for share in where.shares) == needed
            assert len({share.node for share in where.shares}) == len(needed)
            assert {share.node for share in where.shares} <= self.up
            held = [
                (share.node, device, self.incarnation[share.node])
                for share in where.shares
                for device in share.device_ids
            ]
            self.running[item.number] = (self.now_s + item.duration_s, held)
            del self.waiting[item.number]
        self.check()

    def check(self) -> None:
        held = Counter(slot for _, slots in self.running.values() for slot in slots)
        assert not held or max(held.values()) == 1, "a device is held twice"
        for name in self.up:
            now = self.incarnation[name]
            used = sum(slot[0] == name and slot[2] == now for slot in held)
            assert (
                self.place.free_devices[name] == len(self.nodes[name].device_ids) - used
            )
        assert [item.number for item in self.place.queue.requests()] == sorted(
            self.waiting
        )
        assert len(self.place.queue) == len(self.waiting)
        assert self.place.queue.allocations() == Counter(
            item.trial.allocation for item in self.waiting.values()
        )


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_no_device_is_held_twice_and_every_trial_starts(
    seed: int,
) -> None:
    run = Simulation(seed)
    for _ in range(120):
        run.draw.choice([run.arrive, run.arrive, run.end_one, run.lose_or_return])()
        run.start()
    for name in set(run.nodes) - run.up:
        run.incarnation[name] += 1
        run.place.add_node(run.nodes[name])
        run.up.add(name)
    run.start()
    while run.running:
        run.end_one()
        run.start()
    assert not run.waiting


@pytest.mark.parametrize("seed", range(40))
def test_backfill_never_delays_the_first_in_line(seed: int) -> None:
    """With exact estimates the first in line starts when it would have without."""
    draw = random.Random(seed)

    def start_of_first(with_backfill: bool) -> float:
        place = placer(4, 4, 2)
        ends: dict[int, float] = {}
        for number, duration_s in enumerate(durations):
            place.queue.add(request(number, 1, duration_s=duration_s))
        for started, _ in place.place(0.0):
            ends[started.number] = started.duration_s
        place.queue.add(request(100, 4, 3, duration_s=1.0))
        if with_backfill:
            for number, (size, duration_s) in enumerate(later):
                place.queue.add(request(200 + number, size, duration_s=duration_s))
        now_s = 0.0
        while True:
            for started, _ in place.place(now_s):
                if started.number == 100:
                    return now_s
                ends[started.number] = now_s + started.duration_s
            number = min(ends, key=lambda item: ends[item])
            now_s = ends.pop(number)
            place.release(number)

    durations = [draw.uniform(1, 10) for _ in range(draw.randint(4, 9))]
    later = [(draw.randint(1, 3), draw.uniform(0.5, 12)) for _ in range(6)]
    assert start_of_first(True) <= start_of_first(False)


def tick_times(num_waiting: int) -> list[float]:
    """Seconds per end-and-start of a busy cluster of 1,024 nodes x 4."""
    draw = random.Random(0)
    place = Placer([node(f"n{index}", 4) for index in range(1024)])
    for number in range(num_waiting):
        nodes = draw.choice([1, 1, 1, 2, 8])
        sizes = [draw.choice([1, 2, 4])] * nodes
        place.queue.add(
            request(number, *sizes, duration_s=draw.uniform(1, 100), repeat=number % 3)
        )
    running = {item.number: item.duration_s for item, _ in place.place(0.0)}
    times = []
    now_s = 0.0
    for _ in range(300):
        number = min(running, key=lambda item: running[item])
        now_s = running.pop(number)
        before = thread_time()
        place.release(number)
        started = place.place(now_s)
        times.append(thread_time() - before)
        running.update((item.number, now_s + item.duration_s) for item, _ in started)
    return times


@pytest.mark.slow
def test_a_tick_does_not_scan_the_queue() -> None:
    few, many = (sorted(tick_times(num)) for num in (4_000, 16_000))
    assert many[len(many) // 2] < 5 * few[len(few) // 2]


def test_starts_follow_the_priority_within_one_tick() -> None:
    place = placer(8)
    draw = random.Random(3)
    for number in range(12):
        place.queue.add(request(number, draw.randint(1, 2)))
    keys = [(-item.trial.world_size, item.number) for item, _ in place.place(0.0)]
    assert all(before < after for before, after in pairwise(keys))
