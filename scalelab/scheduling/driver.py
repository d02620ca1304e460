"""The driver: runs the trials of a source on nodes and records how they end.

While they run, it asks the source which of them are to end early.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from distributed.client import ClosedClientError

from scalelab.cluster.batch.queue import QueueEvent
from scalelab.cluster.dask_nodes import DaskNodes
from scalelab.cluster.node_plugin import run_attempt
from scalelab.cluster.watch import (
    NodeEvent,
    NodeJoined,
    NodeLeft,
    NodeSilent,
    NodeWatch,
)
from scalelab.errors import ClusterError, StoreError
from scalelab.experiment.fingerprint import words_of_run
from scalelab.experiment.program import Program, saving_s
from scalelab.experiment.trial import Trial
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.outcome import Outcome
from scalelab.plan.budget import Account
from scalelab.plan.source import Decision, Observation, TrialSource
from scalelab.records.attempt import (
    AttemptResult,
    AttemptSpec,
    KnownWorkload,
    Placement,
)
from scalelab.records.columns import COLUMNS_BY_NAME
from scalelab.records.control.events import (
    OnEvent,
    Progress,
    Resumed,
    Stopping,
    TrialEnded,
    TrialStarted,
)
from scalelab.records.open_run import OpenRun
from scalelab.records.streams import FollowedStream
from scalelab.scheduling.gangs import Gangs, PartEnded, RunAttempt, Verdict
from scalelab.scheduling.pool import Pool
from scalelab.scheduling.provision.provisioner import provision_of
from scalelab.scheduling.summary import SweepSummary
from scalelab.scheduling.trial_queue import Request
from scalelab.site.profile import LOST_AFTER_S

LOOK_EVERY_S = 1.0
_EVALUATION = "evaluation"
_POSITION = ("event", "step")
_NO_METRICS = {"samples", "t", *COLUMNS_BY_NAME}
"""What reports hold besides the metrics of the program."""


class Pruning:
    """Tells a source what running trials report and learns which of them are to end.

    It reads the streams that rank 0 of each attempt writes, at most about once a
    second, and nothing at all for a source that does not want to know.
    """

    def __init__(self, source: TrialSource) -> None:
        self._source = source
        self._followed: dict[str, tuple[Trial, FollowedStream]] = {}
        self._next_look_s = 0.0

    def follow(self, spec: AttemptSpec) -> None:
        """Read from now on what an attempt reports, if the source wants to know."""
        if self._source.wants_progress:
            stream = FollowedStream(spec.files.stream, below=spec.files.run)
            self._followed[spec.attempt_id] = spec.trial, stream

    def forget(self, attempt_id: str) -> None:
        """Read no more of an attempt: it has ended."""
        self._followed.pop(attempt_id, None)

    @property
    def deadline_s(self) -> float | None:
        """When :meth:`look` has something to do, on the monotonic clock."""
        return self._next_look_s if self._followed else None

    def look(self) -> Iterator[tuple[str, str]]:
        """Yield the attempts that are to end, each with the reason."""
        if not self._followed or time.monotonic() < self._next_look_s:
            return
        for attempt_id, (trial, stream) in list(self._followed.items()):
            if reason := self._reason_to_end(trial, stream.rows()):
                self.forget(attempt_id)
                yield attempt_id, reason
        self._next_look_s = time.monotonic() + LOOK_EVERY_S

    def _reason_to_end(
        self, trial: Trial, rows: Iterable[Mapping[str, Any]]
    ) -> str | None:
        for step, metrics in worth_telling(rows):
            if self._source.tell_progress(trial, step, metrics) == Decision.END:
                shown = ", ".join(
                    f"{name}={value:.4g}"
                    for name, value in metrics.items()
                    if name not in _NO_METRICS
                )
                seen = f" with {shown}" if shown else ""
                return (
                    f"Ended early by source={self._source.name} at step {step}{seen}."
                )
        return None


def worth_telling(
    rows: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Choose the reports that a source is told: step, and numbers by name.

    Every evaluation is told. Of training steps that follow each other and report the
    same names, only the last one is: there may be thousands of them a second.

    >>> steps = [{"event": "step", "step": n, "loss": 1 / n} for n in (1, 2, 4)]
    >>> list(worth_telling([*steps, {"event": "evaluation", "step": 4, "acc": 0.5}]))
    [(4, {'loss': 0.25}), (4, {'acc': 0.5})]
    """
    held: tuple[int, Mapping[str, float]] | None = None
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int):
            continue

        numbers = {
            name: value
            for name, value in row.items()
            if name not in _POSITION
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
        }

        report = step, numbers

        is_evaluation = row.get("event") == _EVALUATION
        if held is not None and (is_evaluation or held[1].keys() != report[1].keys()):
            yield held

        held = None if is_evaluation else report
        if is_evaluation:
            yield report

    if held is not None:
        yield held


MAX_WAITING = 20_000
"""Most trials taken from the source ahead, so that memory stays bounded."""

WAIT_AT_MOST_S = 1.0
"""Seconds after which a Ctrl-C that did not end a wait is heard."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to end the sweep: after the running trials, or at once."""

    at_once: bool


Message = PartEnded | NodeEvent | QueueEvent | Stop


class Inbox(SimpleQueue[Message]):
    """Messages from any thread, taken out by the driver's."""

    def take(self, deadlines: Iterable[float | None]) -> Iterator[Message]:
        """Wait for one message, or the first deadline, and yield all there are.

        Deadlines are on the monotonic clock; None: there is none. The wait is at most
        ``WAIT_AT_MOST_S``: a signal that comes just before Python begins to wait does
        not end the wait, and its handler runs only afterwards.
        """
        now_s = time.monotonic()
        known = (
            deadline_s
            for deadline_s in (*deadlines, now_s + WAIT_AT_MOST_S)
            if deadline_s is not None
        )
        with suppress(Empty):
            yield self.get(timeout=max(0.0, min(known) - now_s))
            while True:
                yield self.get_nowait()


class Driver:
    """Runs the trials of a source on the nodes of a cluster.

    Only this class writes the shared state of the run, which its caller has opened.

    The seconds that ``estimate_duration`` returns are for reservations only. A trial
    whose node was lost, preempted or cancelled gets ``max_retries`` further attempts;
    those that left a checkpoint do not count. Where the run wants failed trials again
    each gets one more. No trial starts that the ``account`` does not allow, and what
    runs when its budget ends is cancelled: earlier sweeps of the run have had a share.
    """

    def __init__(
        self,
        source: TrialSource,
        cluster: DaskNodes,
        run: OpenRun,
        programs: Mapping[str | None, Program],
        *,
        estimate_duration: Callable[[Trial, Allocation], float],
        on_event: OnEvent = lambda event: None,
        max_retries: int = 2,
        account: Account | None = None,
        node_timeout_s: float = 120.0,
        lost_after_s: float = LOST_AFTER_S,
        task: RunAttempt = run_attempt,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._run = run
        self._store = run.store
        self._programs = programs
        self._estimate_duration = estimate_duration
        self._on_event = on_event
        self._account = account or Account()
        self._inbox = Inbox()
        self._gangs = Gangs(cluster.client, self._inbox.put, task)
        self._pool = Pool(cluster.expected_devices, on_event, node_timeout_s)
        self._provision = provision_of(
            cluster, self._pool, self._leave, on_event, self._inbox.put
        )
        self._pruning = Pruning(source)
        self._max_retries = max_retries
        self._num_retries: Counter[tuple[int, bool]] = Counter()
        self._requests: dict[str, Request] = {}
        self._lost_after_s = lost_after_s
        self._finished: set[str] = set()
        self._summary = SweepSummary()
        self._num_asked = 0

    def drain(self) -> None:
        """Let running trials finish, start no more; from any thread or handler."""
        self._inbox.put(Stop(at_once=False))

    def kill(self) -> None:
        """End running trials at once; callable from any thread or signal handler."""
        self._inbox.put(Stop(at_once=True))

    def run(self) -> SweepSummary:
        """Run until the source has no more trials, or the sweep is stopped."""
        try:
            with NodeWatch(self._cluster.client, self._inbox.put, self._lost_after_s):
                self._resume()
                for node in self._cluster.nodes():
                    self._pool.join(node)
                self._loop()
        except BaseException as error:
            self._abandon()
            if isinstance(error, ClosedClientError):
                raise ClusterError(
                    "The connection to the scheduler of the nodes is closed. Check the "
                    "network and run the same command again: the sweep goes on."
                ) from error
            raise

        self._summary.unfinished += (request.trial for request in self._pool.waiting())
        return self._summary

    @property
    def progress(self) -> Progress:
        """Counts of the sweep at this moment."""
        return Progress(
            num_done=self._summary.num_finished,
            num_failed=self._summary.num_failed,
            num_running=len(self._gangs),
            num_waiting=self._pool.num_waiting,
            used_gpu_s=self._run.used_gpu_s + self._summary.used_gpu_s,
            num_devices=self._pool.num_devices,
            num_out_of_memory=self._summary.outcomes[Outcome.OUT_OF_MEMORY],
        )

    def _resume(self) -> None:
        for observation in self._run.finished:
            self._finished.add(observation["trial_id"])
            self._summary.count_earlier(observation)
            self._source.tell(observation)
        if self._finished:
            self._on_event(Resumed(num_finished=len(self._finished)))

    def _loop(self) -> None:
        while True:
            self._ask()
            self._place()
            if not self._gangs and (
                self._summary.stopped or not self._pool.num_waiting
            ):
                return

            deadlines = (
                self._gangs.next_deadline_s,
                self._pool.deadline_s(lambda: not self._gangs),
                self._provision.deadline_s,
                self._pruning.deadline_s,
                self._account.deadline_s,
            )
            for message in self._inbox.take(deadlines):
                self._handle(message)

            for attempt_id, reason in self._pruning.look():
                self._gangs.prune(attempt_id, reason)

            for verdict in self._gangs.give_up():
                self._end(verdict)

            if self._account.is_over and self._summary.stopped is None:
                self._stop(self._why_spent)
                self._gangs.cancel_all(f"The sweep ends: {self._why_spent}.")

            self._provision.tick(is_stopped=self._summary.stopped is not None)

    def _handle(self, message: Message) -> None:
        match message:
            case PartEnded() | NodeLeft() if self._provision.defer(message):
                pass  # it comes again
            case PartEnded():
                if verdict := self._gangs.take(message):
                    self._end(verdict)
            case NodeJoined(node):
                self._pool.join(node)
                self._provision.meet_nodes()
            case NodeLeft(address):
                self._leave(address)
            case NodeSilent(address, silent_s):
                self._pool.report_silence(address, silent_s, self._lost_after_s)
            case Stop(at_once):
                self._stop("the sweep was stopped")
                if at_once:
                    self._gangs.cancel_all("The sweep was stopped.")
            case _:
                self._provision.take(message)

    def _leave(self, address: str) -> None:
        self._pool.leave(address)
        for verdict in self._gangs.node_left(address):
            self._end(verdict)

    def _stop(self, reason: str) -> None:
        if self._summary.stopped is None:
            self._summary.stopped = reason
            self._on_event(Stopping(reason=reason, num_running=len(self._gangs)))

    def _ask(self) -> None:
        while self._summary.stopped is None and self._pool.num_waiting < MAX_WAITING:
            trial = self._source.ask()
            if trial is None:
                return
            if self._finished and trial.trial_id in self._finished:
                continue

            placer = self._pool.placers[trial.node_group]
            if reason := placer.why_never(trial.allocation):
                result = AttemptResult(outcome=Outcome.REFUSED, reason=reason)
                observation = self._run.refused.get(trial.trial_id)
                if observation is None:
                    spec = self._spec(trial, Placement(shares=()))
                    self._store.begin(spec)
                    observation = self._store.finish(spec, result)
                self._report(trial, observation, result, runs_again=False)
                continue

            self._num_asked += 1
            duration_s = self._estimate_duration(trial, trial.allocation)
            # Its node asks it to save so long before the node's time is up.
            duration_s += saving_s(self._programs[trial.program])
            placer.queue.add(Request(self._num_asked, trial, duration_s))

    def _place(self) -> None:
        if self._summary.stopped is not None:
            return

        try:
            claims = self._account.claim
            for request, placement in self._pool.place(time.monotonic(), claims):
                self._launch(request, placement)
        finally:
            self._gangs.send()

        if not self._gangs:
            waiting = self._pool.next_trials()
            if waiting and not any(map(self._account.allows, waiting)):
                self._stop(self._why_spent)

    @property
    def _why_spent(self) -> str:
        words = words_of_run(self._store.fingerprint, self._store.rows())
        return self._account.why_spent(words.hour)

    def _launch(self, request: Request, placement: Placement) -> None:
        spec = self._spec(request.trial, placement)
        nodes = self._pool.addresses(placement)
        attempt_id = self._gangs.launch(spec, self._store.begin(spec), nodes)
        self._requests[attempt_id] = request
        self._pruning.follow(spec)
        self._on_event(
            TrialStarted(
                trial_id=spec.trial.trial_id,
                attempt=spec.number,
                title=str(spec.trial),
                directory=spec.directory,
                progress=self.progress,
            )
        )

    def _spec(self, trial: Trial, placement: Placement) -> AttemptSpec:
        trial_id = trial.trial_id
        number = self._store.next_attempt_number(trial_id)
        device_type = self._cluster.device_types[trial.node_group]

        return AttemptSpec(
            run=self._store.name,
            trial=trial,
            program=self._programs[trial.program],
            number=number,
            directory=str(self._store.attempt_directory(trial_id, number)),
            placement=placement,
            device_type=device_type,
            threads_per_rank=self._pool.threads_per_rank(placement, device_type),
            validity=self._pool.validity(trial, placement),
            stop_after_s=self._pool.time_left_s(placement),
            queue_wait_s=self._provision.queue_wait_s(placement),
            exclusive_node=self._provision.is_exclusive(trial.node_group),
            known=KnownWorkload.named(trial.workload),
        )

    def _end(self, verdict: Verdict) -> None:
        request = self._requests.pop(verdict.spec.attempt_id)
        self._pruning.forget(verdict.spec.attempt_id)
        held_gpu_s = verdict.held_s * request.trial.world_size

        result = self._provision.explain(verdict)
        if "allocated_gpu_s" not in result.measurements:
            measured = {**result.measurements, "allocated_gpu_s": held_gpu_s}
            result = replace(result, measurements=measured)

        observation = self._store.finish(
            verdict.spec, result, replace=verdict.overrules
        )
        # What is recorded is what the budget of a later sweep will count.
        used_gpu_s = observation["allocated_gpu_s"] or held_gpu_s
        self._summary.used_gpu_s += used_gpu_s
        self._account.settle(request.trial, used_gpu_s / request.trial.world_size)
        self._pool.placers[request.trial.node_group].release(request.number)
        outcome = Outcome(observation["outcome"])

        got_on = outcome.is_retried and verdict.spec.files.checkpoint.is_dir()
        if got_on or not outcome.is_retried:
            self._provision.record_success(request.trial.node_group)

        for address in verdict.unresponsive:
            self._leave(address)

        runs_again = self._runs_again(request, outcome, got_on=got_on)
        self._report(request.trial, observation, result, runs_again=runs_again)

    def _runs_again(self, request: Request, outcome: Outcome, *, got_on: bool) -> bool:
        if outcome.is_retried and self._summary.stopped is not None:
            self._summary.unfinished.append(request.trial)
            return True

        allowed = self._max_retries if outcome.is_retried else 0
        if outcome is Outcome.FAILED and self._summary.stopped is None:
            failed = self._store.outcomes(request.trial.trial_id)[outcome]
            allowed = int(self._run.retry_failed and failed == 1)

        key = request.number, outcome.is_retried
        # An attempt that left a checkpoint got somewhere.
        self._num_retries[key] += not got_on
        if self._num_retries[key] > allowed:
            return False

        self._pool.placers[request.trial.node_group].queue.add(request)
        return True

    def _report(
        self,
        trial: Trial,
        observation: Observation,
        result: AttemptResult,
        *,
        runs_again: bool,
    ) -> None:
        attempt = trial.trial_id, observation["attempt"]
        directory = self._store.attempt_directory(*attempt)

        log = None if result.log is None else str(directory / result.log)
        if not runs_again:
            self._finished.add(trial.trial_id)
            self._summary.count(trial, observation, log)
            self._source.tell(observation)

        step_s = observation.get("step_time_s")
        self._on_event(
            TrialEnded(
                trial_id=trial.trial_id,
                attempt=observation["attempt"],
                title=str(trial),
                program=trial.program,
                outcome=Outcome(observation["outcome"]),
                reason=observation["reason"] or "",
                input_error=result.input_error,
                log=log,
                runs_again=runs_again,
                progress=self.progress,
                samples_per_s=step_s and trial.global_batch_size / step_s,
            )
        )

    def _abandon(self) -> None:
        self._gangs.cancel_all("The sweep ended with an error.")
        while (deadline_s := self._gangs.next_deadline_s) is not None:
            verdicts: list[Verdict | None] = []
            for message in self._inbox.take([deadline_s]):
                with suppress(StoreError):
                    if isinstance(message, PartEnded):
                        verdicts.append(self._gangs.take(message))
                    elif isinstance(message, NodeLeft):
                        verdicts += self._gangs.node_left(message.address)
            for verdict in filter(None, [*verdicts, *self._gangs.give_up()]):
                with suppress(StoreError):
                    self._store.finish(verdict.spec, verdict.result)
