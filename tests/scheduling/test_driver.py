import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributed.batched
import psutil
import pytest
from waiting import wait_until

from scalelab.errors import ClusterError, StoreError
from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.plan.budget import Account, Budget, Spent
from scalelab.plan.source import TrialSource
from scalelab.records.attempt import AttemptResult, AttemptSpec, write_result
from scalelab.records.control.events import (
    NodeLost,
    NodeUp,
    Resumed,
    Stopping,
    TrialEnded,
    TrialStarted,
    Waiting,
)
from scalelab.scheduling import gangs
from scalelab.scheduling.driver import Inbox, Stop

pytestmark = pytest.mark.filterwarnings("error")

MakeTrial = Callable[..., Trial]


def measured(**measurements: Any) -> str:
    result = AttemptResult(outcome=Outcome.COMPLETED, measurements=measurements)
    return json.dumps(result.to_json())


def complete_at_once(spec_json: str, node_rank: int, rendezvous: str | None) -> str:
    """Stand in for a node; records as a node does."""
    spec = AttemptSpec.from_json(json.loads(spec_json))
    result = AttemptResult(outcome=Outcome.COMPLETED)
    if node_rank == 0:
        write_result(spec.files, result)
    return json.dumps(result.to_json())


@pytest.mark.timeout(60)
def test_a_wait_without_a_message_ends_so_that_a_lost_signal_is_heard() -> None:
    inbox = Inbox()
    assert list(inbox.take([None])) == []
    inbox.put(Stop(at_once=True))
    assert list(inbox.take([None])) == [Stop(at_once=True)]


@pytest.mark.slow
def test_a_whole_sweep_runs_in_order_and_is_recorded(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    trials = [
        make_trial(number, size, repeat=repeat)
        for repeat in range(2)
        for number, size in enumerate([1, 2, 1, 2])
    ]
    source = make_source(trials)
    summary = sweep.driver(source).run()
    assert summary.outcomes == {Outcome.COMPLETED: 8}
    assert not summary.unfinished
    assert not summary.failures
    assert 0 < summary.used_gpu_s
    assert Counter(row["trial_id"] for row in source.told) == Counter(
        each.trial_id for each in trials
    )
    asked = {each.trial_id: each for each in trials}
    started = [asked[event.trial_id] for event in sweep.events_of(TrialStarted)]
    assert [trial.repeat for trial in started] == [0] * 4 + [1] * 4
    assert [trial.world_size for trial in started[:4]] == [2, 2, 1, 1]
    assert sweep.events[-1].progress.num_running == 0
    used = [each.progress.used_gpu_s for each in sweep.events_of(TrialEnded)]
    assert used == sorted(used), "device time never runs backwards"
    assert used[-1] == summary.used_gpu_s
    frame = sweep.store.observations()
    assert list(frame["outcome"]) == ["completed"] * 8
    assert (frame["allocated_gpu_s"] > 0).all()


@pytest.mark.slow
def test_attempts_on_shared_hardware_are_marked(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    declared = [make_trial(0, 1, 1), make_trial(1, 2, 1)]
    source = make_source([replace(each, workload="digits_mlp") for each in declared])
    sweep.driver(source, task=complete_at_once).run()
    even, uneven = sorted(source.told, key=lambda row: row["world_size"])
    assert {"loopback_nodes"} <= set(even["validity"])
    assert {"loopback_nodes", "uneven_ranks"} <= set(uneven["validity"])


def test_a_second_sweep_runs_no_finished_trial_again(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    first, second = make_trial(0), make_trial(1, does="raise")
    sweep.driver(make_source([first, second])).run()
    before = sweep.trial_directories()
    source = make_source([first, second, make_trial(2)])
    summary = sweep.driver(source).run()
    assert summary.num_resumed == 2
    assert summary.outcomes == {Outcome.COMPLETED: 2, Outcome.FAILED: 1}
    assert sorted(source.outcomes) == ["completed", "completed", "failed"]
    assert [event.num_finished for event in sweep.events_of(Resumed)] == [2]
    assert len(sweep.trial_directories()) == len(before) + 1


def test_measurements_and_failures_are_not_retried(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    first = make_trial(0, does="raise")
    source = make_source(
        [
            first,
            make_trial(1, does="run out of memory"),
            make_trial(2, does="kill the rank"),
        ]
    )
    summary = sweep.driver(source).run()
    assert summary.outcomes == {Outcome.FAILED: 2, Outcome.OUT_OF_MEMORY: 1}
    assert len(sweep.trial_directories()) == 3
    failed = {failure.trial.seed: failure for failure in summary.failures}
    assert failed.keys() == {0, 2}
    assert "told to fail" in failed[0].reason
    assert "SIGKILL" in failed[2].reason
    assert Path(str(failed[0].log)).is_file()
    ended = {event.trial_id: event for event in sweep.events_of(TrialEnded)}
    assert "told to fail" in ended[first.trial_id].reason
    assert ended[first.trial_id].input_error is None
    assert ended[first.trial_id].outcome is Outcome.FAILED


def test_a_failed_trial_runs_once_more_if_asked(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    source = make_source(
        [make_trial(0, does="raise"), make_trial(1, does="raise once")]
    )
    summary = sweep.driver(source, retry_failed=True).run()
    assert summary.outcomes == {Outcome.FAILED: 1, Outcome.COMPLETED: 1}
    assert len(sweep.trial_directories()) == 4
    assert len(source.told) == 2
    assert summary.num_failed == 1


def test_what_failed_in_an_earlier_sweep_runs_again_if_asked(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    trials = [
        make_trial(0, does="raise"),
        make_trial(1, does="raise once"),
        make_trial(2),
    ]
    sweep.driver(make_source(trials)).run()
    unasked = sweep.driver(make_source(trials)).run()
    assert (unasked.num_failed, unasked.num_resumed) == (2, 3)
    assert len(sweep.trial_directories()) == 3
    source = make_source(trials)
    summary = sweep.driver(source, retry_failed=True).run()
    assert summary.outcomes == {Outcome.FAILED: 1, Outcome.COMPLETED: 2}
    assert (summary.num_failed, summary.num_resumed) == (1, 1)
    assert len(sweep.trial_directories()) == 5, "once each"


def test_an_impossible_trial_is_refused_with_the_reason(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    trials = [make_trial(0, 3), make_trial(1, 1)]
    for _ in range(2):
        source = make_source(trials)
        summary = sweep.driver(source).run()
        assert summary.outcomes == {Outcome.REFUSED: 1, Outcome.COMPLETED: 1}
        (failure,) = summary.failures
        assert failure.reason == (
            "The trial needs 1 node x 3 devices; the cluster has 2 nodes x 2 devices. "
            "Ask for fewer devices, or run on a larger cluster."
        )
        assert len(source.told) == 2
    assert len(sweep.trial_directories()) == 2, "a refusal is recorded once"


def test_a_lost_worker_costs_an_attempt_and_no_trial(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    trials = [make_trial(0, 1, does="kill the worker once")]
    trials += [make_trial(number, 1) for number in range(1, 4)]
    source = make_source(trials)
    summary = sweep.driver(source).run()
    assert summary.outcomes == {Outcome.COMPLETED: 4}
    assert not summary.unfinished
    assert Counter(row["trial_id"] for row in source.told) == Counter(
        each.trial_id for each in trials
    )
    assert sweep.events_of(NodeLost)
    lost = [event for event in sweep.events_of(TrialEnded) if event.runs_again]
    assert {event.outcome for event in lost} == {Outcome.NODE_FAIL}
    frame = sweep.store.observations()
    assert (frame["allocated_gpu_s"] > 0).all()


@pytest.mark.slow
def test_a_trial_that_kills_its_worker_every_time_is_given_up(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    source = make_source([make_trial(0, does="kill the worker")])
    summary = sweep.driver(source, max_retries=1).run()
    assert summary.outcomes == {Outcome.NODE_FAIL: 1}
    assert source.outcomes == ["node_fail"]
    assert len(sweep.trial_directories()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "outcome", "attempts"),
    [
        ("get on four times", Outcome.COMPLETED, 5),
        ("get nowhere", Outcome.PREEMPTED, 3),
    ],
)
def test_attempts_that_left_a_checkpoint_do_not_count(
    sweep: Any,
    make_source: Any,
    make_trial: MakeTrial,
    does: str,
    outcome: Outcome,
    attempts: int,
) -> None:
    source = make_source([make_trial(0, does=does)])
    summary = sweep.driver(source, max_retries=2).run()
    assert summary.outcomes == {outcome: 1}
    assert len(sweep.trial_directories()) == attempts


@pytest.mark.slow
def test_a_trial_on_two_nodes_waits_for_the_one_it_lost(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    source = make_source([make_trial(0, 2, 2, does="kill the worker once")])
    summary = sweep.driver(source).run()
    assert summary.outcomes == {Outcome.COMPLETED: 1}
    assert sweep.events_of(NodeLost)
    assert len(sweep.events_of(NodeUp)) == 3
    outcomes = sorted(sweep.store.observations()["outcome"])
    assert outcomes == ["completed", "node_fail"]


def never_mind(spec_json: str, node_rank: int, rendezvous: str | None) -> str:
    """Stand in for a node that cannot be told to end its ranks."""
    (Path(json.loads(spec_json)["directory"]) / "pid-0").touch()
    time.sleep(3.0)
    return measured()


@pytest.mark.slow
def test_a_node_that_does_not_end_its_ranks_is_no_longer_used(
    sweep: Any, make_source: Any, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gangs, "END_GRACE_S", 0.1)
    driver = sweep.driver(make_source([make_trial(0)]), task=never_mind)
    threading.Thread(
        target=lambda: await_ranks(sweep, 1) and driver.kill(), daemon=True
    ).start()
    summary = driver.run()
    assert len(summary.unfinished) == 1
    (ended,) = sweep.events_of(TrialEnded)
    assert ended.outcome is Outcome.NODE_FAIL
    assert len(sweep.events_of(NodeLost)) == 1


@pytest.mark.slow
def test_a_failure_on_one_node_ends_the_attempt_on_the_others(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    source = make_source([make_trial(0, 1, 1, does="raise on the last rank")])
    summary = sweep.driver(source).run()
    (failure,) = summary.failures
    assert failure.outcome is Outcome.FAILED
    assert "rank 1" in failure.reason
    assert "told to fail on the last rank" in failure.reason
    (row,) = sweep.store.observations().to_dict("records")
    assert row["outcome"] == "failed"
    assert "told to fail on the last rank" in row["reason"]


def ranks_of(sweep: Any) -> list[int]:
    paths = sweep.store.directory.glob("trials/*/*/pid-*")
    return [int(path.name.removeprefix("pid-")) for path in paths]


def await_ranks(sweep: Any, number: int) -> list[int]:
    wait_until(lambda: len(ranks_of(sweep)) >= number, f"{number} ranks run")
    return ranks_of(sweep)


@pytest.mark.slow
def test_drain_finishes_what_runs_and_starts_nothing(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    running = [make_trial(n, 2, does="wait", seconds=0.5) for n in range(2)]
    source = make_source([*running, make_trial(2), make_trial(3)])
    driver = sweep.driver(source)
    threading.Thread(
        target=lambda: await_ranks(sweep, 4) and driver.drain(), daemon=True
    ).start()
    summary = driver.run()
    assert summary.outcomes == {Outcome.COMPLETED: 2}
    assert summary.stopped == "the sweep was stopped"
    assert [trial.seed for trial in summary.unfinished] == [2, 3]
    (stopping,) = sweep.events_of(Stopping)
    assert stopping.num_running == 2
    again = sweep.driver(make_source([*running, make_trial(2), make_trial(3)])).run()
    assert again.num_resumed == 2
    assert again.outcomes == {Outcome.COMPLETED: 4}


def test_kill_leaves_no_rank_and_the_trials_run_again_later(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    waiting = make_trial(0, 1, 1, does="wait", seconds=60)
    source = make_source([waiting, make_trial(1, 2)])
    driver = sweep.driver(source)
    previous = signal.signal(signal.SIGUSR1, lambda *_: driver.kill())
    try:
        threading.Thread(
            target=lambda: (
                await_ranks(sweep, 2) and os.kill(os.getpid(), signal.SIGUSR1)
            ),
            daemon=True,
        ).start()
        summary = driver.run()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert source.told == []
    assert summary.outcomes == {}
    assert {trial.seed for trial in summary.unfinished} == {0, 1}
    (ended,) = sweep.events_of(TrialEnded)
    assert (ended.trial_id, ended.outcome) == (waiting.trial_id, Outcome.CANCELLED)
    pids = ranks_of(sweep)
    assert len(pids) == 2
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the ranks are gone")
    (outcome,) = sweep.store.observations()["outcome"]
    assert outcome == "cancelled"


def budget_of(gpu_s: float, used: float = 0.0, expected_s: float = 0.3) -> Account:
    return Account(
        Budget(amount=gpu_s, spent=Spent.DEVICE_TIME),
        used=used,
        expected_s=lambda trial: expected_s,
        ending_s=1.0,
    )


def test_a_trial_starts_only_if_it_fits_into_what_is_left(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    trials = [make_trial(n, 2, 2, does="wait", seconds=3.0) for n in range(6)]
    account = budget_of(60.0, expected_s=3.0)
    summary = sweep.driver(make_source(trials), account=account).run()
    assert 0 < summary.num_finished < 6
    assert summary.num_finished + len(summary.unfinished) == 6
    assert str(summary.stopped).startswith(
        "the budget of 0.0166667 emulated GPU-h is spent ("
    )
    assert summary.used_gpu_s == pytest.approx(account.used)
    assert 0 < summary.used_gpu_s <= 60.0

    recorded_gpu_s = sweep.store.observations()["allocated_gpu_s"].sum()
    spent = budget_of(recorded_gpu_s, used=recorded_gpu_s)
    assert sweep.driver(make_source(trials), account=spent).run().used_gpu_s == 0

    more = budget_of(120.0, used=recorded_gpu_s, expected_s=3.0)
    again = sweep.driver(make_source(trials), account=more).run()
    assert again.num_resumed == summary.num_finished < again.num_finished


def test_what_runs_when_the_budget_ends_is_cancelled_and_runs_again(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    trials = [make_trial(0, 2, does="wait", seconds=60), make_trial(1)]
    account = budget_of(8.0, expected_s=0.1)
    source = make_source(trials)
    summary = sweep.driver(source, account=account).run()
    assert source.outcomes == ["completed"]
    assert [trial.seed for trial in summary.unfinished] == [0]
    assert 0 < summary.used_gpu_s <= 8.0
    pids = ranks_of(sweep)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the ranks are gone")
    (cancelled,) = [e for e in sweep.events_of(TrialEnded) if e.runs_again]
    assert cancelled.outcome is Outcome.CANCELLED
    assert "the budget of" in cancelled.reason


def test_a_directory_that_refuses_writes_stops_the_sweep(
    sweep: Any, make_source: Any, make_trial: MakeTrial
) -> None:
    source = make_source(
        [make_trial(0, 2, does="wait", seconds=60), *map(make_trial, range(1, 9))]
    )
    trials = sweep.store.directory / "trials"

    def refuse(event: object) -> None:
        # A file in the place of a directory stops even the superuser.
        if isinstance(event, TrialEnded) and trials.is_dir():
            trials.rename(trials.with_name("moved"))
            trials.touch()

    with pytest.raises(StoreError, match="trials"):
        sweep.driver(source, on_event=refuse).run()
    trials.unlink()
    trials.with_name("moved").rename(trials)
    pids = ranks_of(sweep)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the ranks are gone")
    again = sweep.driver(make_source([*map(make_trial, range(1, 9))])).run()
    assert again.outcomes == {Outcome.COMPLETED: 8}


def test_a_cluster_that_lacks_what_a_trial_needs_is_an_error_after_a_while(
    sweep: Any, make_source: Any, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(sweep.cluster),
        "expected_devices",
        property(lambda self: {None: (2, 2, 4)}),
    )
    source = make_source([make_trial(0, 4), make_trial(1)])
    with pytest.raises(
        ClusterError,
        match=r"1 trial waits for nodes; the first needs 4 devices on 1 node\. "
        r"2 of 3 nodes up \(.*\)\. None came within 0\.2 s\.",
    ):
        sweep.driver(source, node_timeout_s=0.2).run()
    assert source.outcomes == ["completed"], "what could run did"
    assert len(sweep.events_of(Waiting)) == 1


@pytest.mark.slow
def test_a_jump_of_the_clock_changes_nothing(
    sweep: Any, make_source: Any, make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_time = time.time
    trials = [make_trial(number, 2, 2, does="wait", seconds=1.0) for number in range(3)]

    def jump_while_trials_run() -> None:
        for index, jump_s in enumerate([86_400.0, -86_400.0, 0.0]):
            await_ranks(sweep, 4 * (index + 1))
            # Within 10 ms of a message a step back makes Dask hold the next as long.
            time.sleep(0.3)
            jumped = lambda jump_s=jump_s: real_time() + jump_s  # noqa: E731
            monkeypatch.setattr(time, "time", jumped)
            monkeypatch.setattr(distributed.batched, "time", jumped)

    threading.Thread(target=jump_while_trials_run, daemon=True).start()
    summary = sweep.driver(make_source(trials), account=budget_of(3600.0)).run()
    assert summary.outcomes == {Outcome.COMPLETED: 3}
    assert len(sweep.trial_directories()) == 3


def test_a_source_that_learns_is_asked_again_after_every_tell(
    sweep: Any, make_trial: MakeTrial
) -> None:
    class OneByOne(TrialSource):
        def __init__(self) -> None:
            self.told = 0
            self.asked = 0

        def ask(self) -> Trial | None:
            if self.asked > self.told or self.told == 4:
                return None
            self.asked += 1
            return make_trial(self.asked)

        def tell(self, observation: object) -> None:
            self.told += 1

    source = OneByOne()
    summary = sweep.driver(source, task=complete_at_once).run()
    assert source.told == 4
    assert summary.num_finished == 4
