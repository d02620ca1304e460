"""When steps of workers that wait for nobody ended, from what their server has seen."""

import heapq
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gang import HERE, attempt, on, run_in_gang, throughput_trial

from scalelab.experiment.trial import Measurement
from scalelab.training.rank import run_rank
from scalelab.training.servers import process
from scalelab.training.servers.step_times import ServedLog, StepTimes

FACTOR = 5
PASS_S = 0.3
BEGAN = 1000


def ends(cycles: list[int], num_grants: int) -> list[tuple[int, int]]:
    """Return worker and moment of each step, of workers that take any in turn."""
    running = [(BEGAN + cycle, worker) for worker, cycle in enumerate(cycles)]
    heapq.heapify(running)
    num_granted, ended = len(cycles), []
    while running:
        at, worker = heapq.heappop(running)
        ended.append((worker, at))
        if num_granted < num_grants:
            heapq.heappush(running, (at + cycles[worker], worker))
            num_granted += 1
    return ended


@pytest.mark.parametrize("cycles", [[10, 10], [10, 50], [10, 10, 10, 30], [7, 11, 90]])
@pytest.mark.parametrize("num_looks", [0, 1, 2])
def test_the_end_of_a_series_is_no_step_time(cycles: list[int], num_looks: int) -> None:
    num_workers, num_steps = len(cycles), 40
    ended = ends(cycles, num_steps * num_workers)
    times, found = StepTimes(num_workers), []
    for look in range(num_looks):
        part, ended = ended[: 13 * (look + 1)], ended[13 * (look + 1) :]
        found += times.of(ServedLog(BEGAN, False, tuple(part)))
    found += times.of(ServedLog(BEGAN, True, tuple(ended)))
    found += times.of_the_rest()
    # As if nobody ever stopped: the same steps of a series that goes on.
    longer = ends(cycles, 4 * num_steps * num_workers)
    moments = [at for _, at in longer][num_workers - 1 :: num_workers][:num_steps]
    assert np.cumsum(found) * 1e9 + BEGAN == pytest.approx(moments)
    rate = sum(1 / cycle for cycle in cycles)
    assert moments[-1] - BEGAN == pytest.approx(
        num_steps * num_workers / rate, rel=0.07
    )


def test_a_worker_held_by_a_staleness_bound_has_not_gone_on_before() -> None:
    times = StepTimes(3)
    first = ServedLog(BEGAN, False, ((2, 1010), (2, 1020), (0, 1100)))
    rest = ServedLog(BEGAN, True, ((0, 1200), (0, 1250), (1, 1300)))
    found = times.of(first) + times.of(rest) + times.of_the_rest()
    assert found == pytest.approx([100e-9, 100e-9])


class RecordingServer(process.Server):
    """A server that writes down whom it has granted steps, and whose messages came."""

    grants: list[int] = []  # noqa: RUF012
    messages: list[int] = []  # noqa: RUF012

    def _answer_claim(self, worker: int) -> None:
        if not self._is_over:
            self.grants.append(worker)
        super()._answer_claim(worker)

    def _exchange(self, worker: int, version: int, *others: int) -> None:
        self.messages.append(worker)
        super()._exchange(worker, version, *others)


def run_recorded(who: Any, rendezvous: Any, spec: Any) -> Any:
    def progress(step: int) -> None:
        pass

    if who.rank < who.world_size:
        result = run_rank(spec, who, rendezvous, progress)
        return result and json.loads(json.dumps(result.measurements))
    process.Server = RecordingServer  # type: ignore[misc]
    process.run_server(spec, who, rendezvous, progress)
    return RecordingServer.grants, RecordingServer.messages


@pytest.mark.repetition
@pytest.mark.slow
def test_no_worker_waits_for_a_slow_one_and_staleness_is_that_of_the_messages(
    tmp_path: Path,
) -> None:
    trial = on(
        throughput_trial("own_workloads:SleepyPasses"),
        2,
        parallelism="parameter_server",
        options={"rule": "dynsgd", "slow_rank_factor": FACTOR},
        measurement=Measurement(warmup_steps=2, steps=12, relative_precision=1e-9),
    )
    spec = attempt(tmp_path, trial, code_directory=HERE, pass_s=PASS_S)
    measured, _, (grants, messages) = run_in_gang(
        2, run_recorded, spec, directory=tmp_path, num_servers=1
    )
    assert len(grants) == len(messages) == 28
    # The first step of the slow one is as fast as any.
    for begin in range(4, len(grants) - 12):
        fast, slow = (grants[begin : begin + 12].count(worker) for worker in (0, 1))
        assert fast >= (FACTOR - 2) * slow
    assert measured["exposed_sync_s"] < 0.25 * measured["step_time_s"]

    staleness, last = [], {0: 0, 1: 0}
    for index, worker in enumerate(messages):
        staleness.append(index - last[worker])
        last[worker] = index + 1
    assert measured["staleness_mean"] == pytest.approx(np.mean(staleness))
    assert measured["staleness_max"] == max(staleness) >= FACTOR - 2
