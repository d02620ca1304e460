"""What staleness and slow workers do, seen in virtual time with real gradients."""

from typing import Any

import pytest
import torch
from virtual_servers import (
    Course,
    VirtualEvaluation,
    VirtualJob,
    VirtualWorkers,
    asynchronous,
    local_sgd,
)

from scalelab.errors import SpecError
from scalelab.inputs.target import MetricMode, Target
from scalelab.training.servers.rules import Adag, Downpour, DynSgd, Elastic, Rule
from scalelab.training.workloads.digits_mlp import DigitsMlp

WINDOW = 4
VAL_ACC = Target(metric="val_acc", mode=MetricMode.MAX, value=0.9)


class PlainDigits(DigitsMlp):
    """Digits by SGD without momentum, for which the theory is."""

    def build_optimizer(self, model: Any, learning_rate: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=learning_rate)


def job(rate: float = 0.1, **changes: Any) -> VirtualJob:
    fields: dict[str, Any] = {
        "local_batch_size": 16,
        "max_samples": 12_800,
        "evaluate_every_samples": 640,
    }
    workload = PlainDigits(hidden_sizes=[32])
    return VirtualJob(workload=workload, learning_rate=rate, **(fields | changes))


def alike(num_workers: int, message_s: float = 0.1) -> VirtualWorkers:
    return VirtualWorkers(step_times_s=(1.0,) * num_workers, message_s=message_s)


def with_a_straggler(factor: float) -> VirtualWorkers:
    return VirtualWorkers(step_times_s=(1.0, 1.0, 1.0, factor), message_s=0.1)


def last(course: Course, metric: str) -> float:
    return course.evaluations[-1].metrics[metric]


def first_reaching(course: Course, target: Target) -> VirtualEvaluation | None:
    for each in course.evaluations:
        if target.is_reached_by(each.metrics[target.metric]):
            return each
    return None


def time_to_target(course: Course) -> float:
    reached = first_reaching(course, VAL_ACC)
    assert reached is not None
    return reached.t


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.parametrize("rule", [Adag(WINDOW), DynSgd(), Elastic(0.9 / 8)])
def test_other_rules_stand_a_rate_at_which_downpour_diverges(rule: Rule) -> None:
    assert last(asynchronous(job(), alike(8), rule, window=WINDOW), "val_acc") > 0.75


@pytest.mark.slow
@pytest.mark.repetition
def test_downpour_diverges_with_more_workers() -> None:
    # Its effective rate is workers x window x rate: 1.6 for four, 3.2 for eight.
    four = asynchronous(job(), alike(4), Downpour(), window=WINDOW)
    eight = asynchronous(job(), alike(8), Downpour(), window=WINDOW)
    assert last(four, "val_loss") < 0.7
    assert last(eight, "val_loss") > 2.0  # guessing: ln 10 = 2.3


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [2, 4])
def test_mean_staleness_is_one_less_than_the_workers(num_workers: int) -> None:
    short = job(max_samples=16 * WINDOW * num_workers * 20)
    course = asynchronous(short, alike(num_workers), DynSgd(), window=WINDOW)
    # A worker's first message is less stale: it counts no others before it.
    assert course.staleness.num_messages == 20 * num_workers
    lost = num_workers * (num_workers - 1) / 2
    expected = (num_workers - 1) - lost / course.staleness.num_messages
    assert course.staleness.mean == pytest.approx(expected)
    assert course.staleness.maximum == num_workers - 1


@pytest.mark.slow
def test_only_the_maximum_of_the_staleness_shows_a_straggler() -> None:
    short = job(max_samples=16 * 80 * 3)
    even = asynchronous(short, alike(4), DynSgd(), window=1).staleness
    uneven = asynchronous(short, with_a_straggler(5), DynSgd(), window=1).staleness
    assert uneven.mean == pytest.approx(even.mean, abs=0.2)
    assert even.maximum == 3
    # Messages take 0.2 s: others send 5.2 / 1.2 times while the straggler computes.
    assert 12 <= uneven.maximum <= 15


def test_a_bound_makes_workers_wait_for_the_straggler() -> None:
    short, slow = job(max_samples=16 * 80), with_a_straggler(5)
    free = asynchronous(short, slow, DynSgd(), window=1)
    bound = asynchronous(short, slow, DynSgd(), window=1, staleness_bound=1)
    assert bound.staleness.maximum < free.staleness.maximum
    # In time T the straggler takes T / 5.2 steps and nobody more than 1 or 2 ahead.
    assert bound.evaluations[-1].t == pytest.approx(80 / 4 * 5.2, rel=0.1)
    assert free.evaluations[-1].t < 0.4 * bound.evaluations[-1].t


@pytest.mark.repetition
@pytest.mark.slow
def test_asynchronous_workers_overtake_synchronous_ones_at_a_straggler() -> None:
    # Rates at which one step of all workers moves about as far.
    def times(factor: float) -> tuple[float, float, float]:
        workers = with_a_straggler(factor)
        return (
            time_to_target(local_sgd(job(0.4, max_samples=4000), workers)),
            time_to_target(local_sgd(job(0.4, max_samples=4000), workers, period=4)),
            time_to_target(
                asynchronous(job(0.2, max_samples=7000), workers, DynSgd(), window=4)
            ),
        )

    synchronous, local, stale = times(1)
    assert stale > 1.2 * max(synchronous, local)
    later_synchronous, later_local, later_stale = times(5)
    # A step of 1 s and messages of 0.2 s become 5.2 s; four steps and those, 20.2 s.
    assert later_synchronous == pytest.approx(synchronous * 5.2 / 1.2)
    assert later_local == pytest.approx(local * 20.2 / 4.2)
    assert later_stale < 2 * stale
    assert later_stale < 0.7 * min(later_synchronous, later_local)


@pytest.mark.repetition
@pytest.mark.slow
def test_with_a_slow_worker_only_asynchronous_rules_get_there_in_time() -> None:
    target = Target(metric="val_acc", mode=MetricMode.MAX, value=0.93)
    slow = with_a_straggler(5)
    rules: list[tuple[Rule, float]] = [
        (Adag(WINDOW), 0.4),
        (DynSgd(), 0.3),
        (Elastic(0.9 / 4), 0.4),
    ]
    reached = [
        first_reaching(
            asynchronous(job(rate, max_samples=7000), slow, rule, window=WINDOW), target
        )
        for rule, rate in rules
    ]
    assert all(reached)
    latest = max(each.t for each in reached if each)
    for period in (1, WINDOW):
        waiting = local_sgd(job(0.4, max_samples=4000), slow, period=period)
        # Tolerance: even in 1.5 times the time of the slowest of the rules.
        in_time = [each for each in waiting.evaluations if each.t <= 1.5 * latest]
        assert in_time
        assert max(each.metrics["val_acc"] for each in in_time) < target.value
        assert first_reaching(waiting, target) is not None  # but later it does


@pytest.mark.slow
def test_a_course_is_the_same_bit_for_bit() -> None:
    workload = DigitsMlp(hidden_sizes=[16], dropout=0.3)
    short = VirtualJob(
        workload=workload,
        local_batch_size=16,
        learning_rate=0.02,
        max_samples=2000,
        evaluate_every_samples=500,
    )
    uneven = VirtualWorkers(step_times_s=(1.0, 1.0, 1.7))
    courses = [asynchronous(short, uneven, Adag(2), window=2) for _ in range(2)]
    assert courses[0] == courses[1]
    assert [each.samples for each in courses[0].evaluations] == [512, 1024, 1504, 2016]


def test_a_workload_without_held_out_data_is_refused() -> None:
    class Blind(PlainDigits):
        def held_out_data(self) -> Any:
            return None

    with pytest.raises(SpecError, match=r"^Blind has no held-out data, so that"):
        VirtualJob(
            workload=Blind(),
            local_batch_size=16,
            learning_rate=0.1,
            max_samples=100,
            evaluate_every_samples=50,
        )
