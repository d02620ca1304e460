import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from distributed.client import ClosedClientError, FutureCancelledError
from distributed.scheduler import KilledWorker
from provision_scenes import Clock

from scalelab.cluster.node_plugin import (
    cancel_attempt,
    close_rendezvous,
    open_rendezvous,
    run_attempt,
)
from scalelab.errors import LaunchError, StoreError
from scalelab.experiment.program import (
    CommandProgram,
    MetricsSource,
    Program,
    WorkloadProgram,
)
from scalelab.experiment.trial import Measurement, Trial
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult, AttemptSpec, NodeShare, Placement
from scalelab.scheduling import gangs as module
from scalelab.scheduling.gangs import RENDEZVOUS, Gangs, PartEnded, Verdict

WORKLOAD = WorkloadProgram(name="scripted")
COMMAND = CommandProgram(
    command="python train.py",
    launcher="torchrun",
    env={},
    metrics=MetricsSource(jsonl="metrics.jsonl"),
    code_directory="nowhere",
)


class FakeFuture:
    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)


class FakeClient:
    """Takes tasks and runs none of them: the test says how they end."""

    def __init__(self) -> None:
        self.loop = self
        self.calls: list[tuple[Any, str, tuple[Any, ...]]] = []

    def add_callback(self, *_: object) -> None:
        pass

    def submit(self, function: Any, *args: Any, workers: list[str], **_: Any) -> Any:
        self.calls.append((function, workers[0], args))
        return FakeFuture()

    def map(self, function: Any, *args: Any, workers: list[str], **_: Any) -> list[Any]:
        return [
            self.submit(function, *each, workers=workers)
            for each in zip(*args, strict=True)
        ]

    def called(self, function: Any) -> list[str]:
        return [address for called, address, _ in self.calls if called is function]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def gangs(client: FakeClient) -> Gangs:
    return Gangs(client, lambda message: None)  # type: ignore[arg-type]


@pytest.fixture
def launch(
    gangs: Gangs, make_trial: Callable[..., Trial]
) -> Callable[..., tuple[str, ...]]:
    def launch(
        num_nodes: int, program: Program = WORKLOAD, timeout_s: float | None = None
    ) -> tuple[str, ...]:
        addresses = tuple(f"tls://n{index}:1" for index in range(num_nodes))
        spec = AttemptSpec(
            run="run",
            trial=replace(
                make_trial(0, *[1] * num_nodes),
                measurement=Measurement(timeout_s=timeout_s),
            ),
            program=program,
            number=1,
            directory="nowhere",
            placement=Placement(
                shares=tuple(
                    NodeShare(node=f"n{index}", device_ids=("0",))
                    for index in range(num_nodes)
                )
            ),
            device_type="cpu",
        )
        attempt_id = gangs.launch(spec, json.dumps(spec.to_json()), addresses)
        gangs.send()
        return attempt_id, *addresses

    return launch


def said(outcome: Outcome, reason: str = "", **fields: Any) -> str:
    return json.dumps(AttemptResult(outcome=outcome, reason=reason, **fields).to_json())


COMPLETED = said(Outcome.COMPLETED)


def test_parts_start_once_the_rendezvous_is_open(
    gangs: Gangs, client: FakeClient, launch: Any
) -> None:
    attempt_id, *addresses = launch(2)
    assert client.called(open_rendezvous) == addresses[:1]
    assert client.called(run_attempt) == []
    gangs.take(PartEnded(attempt_id, RENDEZVOUS, "tcp://n0:29500"))
    parts = [args[1:] for called, _, args in client.calls if called is run_attempt]
    assert parts == [(0, "tcp://n0:29500"), (1, "tcp://n0:29500")]
    assert gangs.take(PartEnded(attempt_id, 1, COMPLETED)) is None
    verdict = gangs.take(PartEnded(attempt_id, 0, COMPLETED))
    assert isinstance(verdict, Verdict)
    assert verdict.result.outcome is Outcome.COMPLETED
    assert not verdict.overrules
    assert client.called(close_rendezvous) == addresses[:1]
    assert len(gangs) == 0


def test_processes_of_a_command_start_once_each_node_has_told_its_address(
    gangs: Gangs, client: FakeClient, launch: Any
) -> None:
    attempt_id, *addresses = launch(2, COMMAND)
    assert client.called(open_rendezvous) == addresses
    asked = [args[1:] for called, _, args in client.calls if called is open_rendezvous]
    assert asked == [(True, 0), (False, 0)], "one node serves the store"
    gangs.take(PartEnded(attempt_id, RENDEZVOUS - 1, "tcp://n1:"))
    assert client.called(run_attempt) == []
    gangs.take(PartEnded(attempt_id, RENDEZVOUS, "tcp://n0:29500"))
    parts = [args[1:] for called, _, args in client.calls if called is run_attempt]
    meeting = "tcp://n0:29500 tcp://n1:"
    assert parts == [(0, meeting), (1, meeting)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_node_that_finds_no_port_ends_the_attempt_of_a_command(
    gangs: Gangs, client: FakeClient, launch: Any, order: tuple[int, int]
) -> None:
    attempt_id, *addresses = launch(2, COMMAND)
    said_by = ["tcp://n0:29500", LaunchError("no port")]
    verdict = None
    for node in order:
        assert verdict is None
        verdict = gangs.take(PartEnded(attempt_id, RENDEZVOUS - node, said_by[node]))
    assert verdict is not None
    assert verdict.result.outcome is Outcome.NODE_FAIL
    assert verdict.overrules
    assert client.called(run_attempt) == []
    assert client.called(close_rendezvous) == addresses[:1]


def test_a_late_or_repeated_result_counts_for_nothing(
    gangs: Gangs, launch: Any
) -> None:
    attempt_id, address = launch(1)
    (lost,) = gangs.node_left(address)
    assert lost.result.outcome is Outcome.NODE_FAIL
    assert lost.result.reason == "Node n0 vanished while it ran the attempt."
    assert gangs.take(PartEnded(attempt_id, 0, COMPLETED)) is None
    assert gangs.take(PartEnded("another-1", 0, COMPLETED)) is None


def test_the_other_nodes_are_cancelled_once_and_the_cause_counts(
    gangs: Gangs, client: FakeClient, launch: Any
) -> None:
    attempt_id, *addresses = launch(3)
    gangs.take(PartEnded(attempt_id, RENDEZVOUS, "tcp://n0:29500"))
    failed = said(Outcome.FAILED, "rank 2 raised ValueError: why", rank=2)
    assert gangs.take(PartEnded(attempt_id, 2, failed)) is None
    assert sorted(client.called(cancel_attempt)) == sorted(addresses[:2])
    cancelled = said(Outcome.CANCELLED, "Node 2 of the attempt ended")
    assert gangs.take(PartEnded(attempt_id, 1, cancelled)) is None
    verdict = gangs.take(PartEnded(attempt_id, 0, cancelled))
    assert verdict is not None
    assert verdict.result.outcome is Outcome.FAILED
    assert verdict.result.rank == 2
    assert verdict.overrules, "node 0 wrote down that it was cancelled"
    assert len(client.called(cancel_attempt)) == 2


def test_a_node_lost_after_the_result_takes_nothing_away(
    gangs: Gangs, launch: Any
) -> None:
    attempt_id, *addresses = launch(2)
    gangs.take(PartEnded(attempt_id, RENDEZVOUS, "tcp://n0:29500"))
    gangs.take(PartEnded(attempt_id, 0, COMPLETED))
    (verdict,) = gangs.node_left(addresses[1])
    assert not verdict.overrules


def test_an_attempt_cancelled_before_its_rendezvous_is_open_never_starts(
    gangs: Gangs, client: FakeClient, launch: Any
) -> None:
    attempt_id, *_ = launch(2)
    gangs.cancel_all("The sweep was stopped.")
    verdict = gangs.take(PartEnded(attempt_id, RENDEZVOUS, "tcp://n0:29500"))
    assert verdict is not None
    assert verdict.result.outcome is Outcome.CANCELLED
    assert verdict.result.reason == "The sweep was stopped."
    assert client.called(run_attempt) == []


def test_attempts_end_also_when_the_way_to_their_nodes_is_closed(
    gangs: Gangs, client: FakeClient, launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_id, *addresses = launch(2)
    gangs.take(PartEnded(attempt_id, RENDEZVOUS, "tcp://n0:29500"))

    def closed(*_: object, **__: object) -> None:
        raise ClosedClientError("Client is closed.")

    monkeypatch.setattr(client, "submit", closed)
    gangs.cancel_all("The sweep ended with an error.")
    verdicts = [each for at in addresses for each in gangs.node_left(at)]
    assert [each.spec.attempt_id for each in verdicts] == [attempt_id]


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (LaunchError("no port"), Outcome.NODE_FAIL, "could not run the attempt"),
        (TypeError("a bug"), Outcome.FAILED, "TypeError"),
        (asyncio.CancelledError(), Outcome.NODE_FAIL, "worker of the node was lost"),
        # What the client of the installed version raises when the scheduler is gone.
        (
            FutureCancelledError("task", "lost connection"),
            Outcome.NODE_FAIL,
            "worker of the node was lost",
        ),
        (
            KilledWorker("task", None, 0),  # type: ignore[arg-type]
            Outcome.NODE_FAIL,
            "worker of the node was lost",
        ),
    ],
)
def test_what_a_task_raises_is_an_outcome(
    gangs: Gangs, launch: Any, error: BaseException, outcome: Outcome, reason: str
) -> None:
    attempt_id, *_ = launch(2)
    verdict = gangs.take(PartEnded(attempt_id, RENDEZVOUS, error))
    assert verdict is not None
    assert verdict.result.outcome is outcome
    assert reason in verdict.result.reason


def test_records_that_cannot_be_written_stop_the_sweep(
    gangs: Gangs, launch: Any
) -> None:
    attempt_id, *_ = launch(1)
    with pytest.raises(StoreError, match="disk full"):
        gangs.take(PartEnded(attempt_id, 0, StoreError("disk full")))
    assert gangs.next_deadline_s is None, "nothing runs that would have to be awaited"


def test_a_node_that_does_not_end_its_ranks_is_given_up(
    gangs: Gangs, launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_GRACE_S", 0.0)
    attempt_id, *addresses = launch(2)
    gangs.take(PartEnded(attempt_id, RENDEZVOUS, "tcp://n0:29500"))
    assert gangs.next_deadline_s is None
    assert gangs.give_up() == []
    gangs.cancel_all("The sweep was stopped.")
    cancelled = said(Outcome.CANCELLED, "The sweep was stopped.")
    gangs.take(PartEnded(attempt_id, 0, cancelled))
    assert gangs.next_deadline_s is not None
    (verdict,) = gangs.give_up()
    assert verdict.unresponsive == (addresses[1],)
    assert verdict.result.outcome is Outcome.NODE_FAIL
    assert "Node n1 did not end its ranks" in verdict.result.reason


def test_the_drivers_own_pause_is_not_the_nodes(
    clock: Clock, gangs: Gangs, client: FakeClient, launch: Any
) -> None:
    _, address = launch(1, timeout_s=5)
    clock.now_s += 7200.0  # nobody looked meanwhile
    assert gangs.give_up() == []
    assert client.called(cancel_attempt) == []
    for _ in range(8):
        clock.now_s += module.LOOK_EVERY_S
        gangs.give_up()
    assert client.called(cancel_attempt) == [address]


def test_what_outlasts_its_timeout_is_ended_by_the_driver(
    gangs: Gangs, client: FakeClient, launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_id, address = launch(1, timeout_s=5)
    assert gangs.next_deadline_s is not None
    assert gangs.give_up() == []
    assert client.called(cancel_attempt) == []
    monkeypatch.setattr(module, "LATE_S", -5.0)
    assert gangs.next_deadline_s <= time.monotonic()
    assert gangs.give_up() == []
    assert client.called(cancel_attempt) == [address]
    cancelled = said(Outcome.CANCELLED, "did not end within timeout_s=5 s, nor soon")
    verdict = gangs.take(PartEnded(attempt_id, 0, cancelled))
    assert verdict is not None
    assert verdict.result.outcome is Outcome.TIMED_OUT
    assert "timeout_s=5 s" in verdict.result.reason
    assert verdict.overrules
