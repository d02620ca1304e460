"""The driver: runs the trials of a source on nodes and records how they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from scalelab.cluster.dask_nodes import DaskNodes
from scalelab.cluster.node_plugin import run_attempt
from scalelab.cluster.watch import NodeJoined, NodeLeft, NodeSilent, NodeWatch
from scalelab.errors import StoreError
from scalelab.experiment.program import Program, saving_s
from scalelab.experiment.trial import Trial
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.outcome import Outcome
from scalelab.plan.source import Observation, TrialSource
from scalelab.records.attempt import AttemptResult, AttemptSpec, Placement
from scalelab.scheduling.budget import Budget
from scalelab.scheduling.events import (
    OnEvent,
    Progress,
    Resumed,
    Stopping,
    TrialEnded,
    TrialStarted,
    Waiting,
)
from scalelab.scheduling.gangs import Gangs, PartEnded, RunAttempt, Verdict
from scalelab.scheduling.inbox import Inbox, Message, Stop
from scalelab.scheduling.pool import Pool
from scalelab.scheduling.provision.provisioner import provision_of
from scalelab.scheduling.pruning import Pruning
from scalelab.scheduling.retries import Retries
from scalelab.scheduling.summary import SweepSummary, SweepTally, Unfinished
from scalelab.scheduling.trial_queue import Request
from scalelab.site.profile import LOST_AFTER_S

if TYPE_CHECKING:
    from scalelab.records.store import RunStore

MAX_WAITING = 20_000
"""Most trials taken from the source ahead, so that memory stays bounded."""


class Driver:
    """Runs the trials of a source on the nodes of a cluster.

    The caller holds the run's lease. Only this class writes the run's shared state.

    Parameters
    ----------
    source
        Proposes trials and is told every one that ends; asked about those that run.
    estimate_duration
        Seconds a trial will hold its devices, roughly: for reservations only.
    max_retries, retry_failed
        Which trials get further attempts, see :class:`~.retries.Retries`; where failed
        ones do, so do those that earlier sweeps of the run could not measure.
    budget_gpu_s
        No trial starts once the run has used this many device-seconds, those of earlier
        sweeps included.
    """

    def __init__(
        self,
        source: TrialSource,
        cluster: DaskNodes,
        store: RunStore,
        programs: Mapping[str | None, Program],
        *,
        estimate_duration: Callable[[Trial, Allocation], float],
        on_event: OnEvent = lambda event: None,
        max_retries: int = 2,
        retry_failed: bool = False,
        budget_gpu_s: float | None = None,
        node_timeout_s: float = 120.0,
        lost_after_s: float = LOST_AFTER_S,
        task: RunAttempt = run_attempt,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._store = store
        self._programs = programs
        self._estimate_duration = estimate_duration
        self._on_event = on_event
        self._retry_failed = retry_failed
        self._budget = Budget(budget_gpu_s)
        self._inbox = Inbox()
        self._gangs = Gangs(cluster.client, self._inbox.put, task)
        self._pool = Pool(cluster.expected_devices, on_event, node_timeout_s)
        self._provision = provision_of(
            cluster, self._pool, self._leave, on_event, self._inbox.put
        )
        self._pruning = Pruning(source)
        self._retries = Retries(
            store, max_retries=max_retries, retry_failed=retry_failed
        )
        self._requests: dict[str, Request] = {}
        self._lost_after_s = lost_after_s
        self._finished: set[str] = set()
        self._refused_earlier: dict[str, Observation] = {}
        self._tally = SweepTally()
        self._num_asked = 0
        self._stopped: str | None = None

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
        except BaseException:
            self._abandon()
            raise
        for request in self._pool.placer.waiting():
            reason = f"not started: {self._stopped}"
            self._tally.unfinished.append(Unfinished(request.trial, reason))
        return self._tally.summary(self._stopped)

    @property
    def progress(self) -> Progress:
        """Counts of the sweep at this moment."""
        return Progress(
            num_done=self._tally.num_done,
            num_failed=self._tally.num_failed,
            num_running=len(self._gangs),
            num_waiting=self._pool.placer.num_waiting,
            used_gpu_s=self._budget.used_gpu_s(self._tally),
            num_devices=self._pool.num_devices,
            num_out_of_memory=self._tally.outcomes[Outcome.OUT_OF_MEMORY],
        )

    def _resume(self) -> None:
        """Tell the source what earlier sweeps of the run finished."""
        for observation in self._store.recover(retry_failed=self._retry_failed):
            refused = observation["outcome"] == Outcome.REFUSED
            if refused and not observation["device_ids"]:
                # It did not fit the cluster of that sweep; it may fit this one.
                self._refused_earlier[observation["trial_id"]] = observation
                continue
            self._finished.add(observation["trial_id"])
            self._tally.count_earlier(observation)
            self._source.tell(observation)
        self._budget.count_earlier(self._store)
        if self._finished:
            self._on_event(Resumed(num_finished=len(self._finished)))

    def _loop(self) -> None:
        while True:
            self._ask()
            self._place()
            if not self._gangs and (self._stopped or not self._pool.placer.num_waiting):
                return
            deadlines = (
                self._gangs.next_deadline_s,
                self._pool.deadline_s(lambda: not self._gangs),
                self._provision.deadline_s,
                self._pruning.deadline_s,
            )
            for message in self._inbox.take(deadlines):
                self._handle(message)
            for attempt_id, reason in self._pruning.look():
                self._gangs.prune(attempt_id, reason)
            for verdict in self._gangs.give_up():
                self._end(verdict)
            self._provision.tick(is_stopped=self._stopped is not None)

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
                self._on_event(Waiting(reason=self._of_silence(address, silent_s)))
            case Stop(at_once):
                self._stop("the sweep was stopped")
                if at_once:
                    self._gangs.cancel_all("The sweep was stopped.")
            case _:
                self._provision.take(message)

    def _of_silence(self, address: str, silent_s: float) -> str:
        names = {node.address: node.name for node in self._pool.nodes}
        return (
            f"Node {names.get(address, address)} has not answered for "
            f"{silent_s:.0f} s. It counts as lost after {self._lost_after_s:g} s."
        )

    def _leave(self, address: str) -> None:
        self._pool.leave(address)
        for verdict in self._gangs.node_left(address):
            self._end(verdict)

    def _stop(self, reason: str) -> None:
        if self._stopped is None:
            self._stopped = reason
            self._on_event(Stopping(reason=reason, num_running=len(self._gangs)))

    def _ask(self) -> None:
        """Enqueue every trial that the source proposes now."""
        placer = self._pool.placer
        while self._stopped is None and placer.num_waiting < MAX_WAITING:
            trial = self._source.ask()
            if trial is None:
                return
            if self._finished and trial.trial_id in self._finished:
                continue
            if reason := placer.why_never(trial):
                self._refuse(trial, reason)
                continue
            self._num_asked += 1
            duration_s = self._estimate_duration(trial, trial.allocation)
            # Its node asks it to save so long before the node's time is up.
            duration_s += saving_s(self._programs[trial.program])
            placer.enqueue(Request(self._num_asked, trial, duration_s))

    def _refuse(self, trial: Trial, reason: str) -> None:
        """Record that no nodes of this cluster can run a trial."""
        result = AttemptResult(outcome=Outcome.REFUSED, reason=reason)
        observation = self._refused_earlier.get(trial.trial_id)
        if observation is None:
            spec = self._spec(trial, Placement(shares=()))
            self._store.begin(spec)
            observation = self._store.finish(spec, result)
        self._finish(trial, observation, result)

    def _place(self) -> None:
        if self._stopped is None and (reason := self._budget.spent(self._tally)):
            self._stop(reason)
        if self._stopped is not None:
            return
        try:
            for request, placement in self._pool.placer.place(time.monotonic()):
                self._launch(request, placement)
        finally:
            self._gangs.send()

    def _launch(self, request: Request, placement: Placement) -> None:
        spec = self._spec(request.trial, placement)
        nodes = self._pool.addresses(placement)
        attempt_id = self._gangs.launch(spec, self._store.begin(spec), nodes)
        self._requests[attempt_id] = request
        self._pruning.follow(spec)
        self._on_event(TrialStarted(spec=spec, progress=self.progress))

    def _spec(self, trial: Trial, placement: Placement) -> AttemptSpec:
        trial_id = trial.trial_id
        number = self._store.next_attempt_number(trial_id)
        device_type = self._cluster.device_type
        return AttemptSpec(
            run=self._store.name,
            trial=trial,
            program=self._programs[trial.program],
            number=number,
            directory=str(self._store.attempt_directory(trial_id, number)),
            placement=placement,
            device_type=device_type,
            threads_per_rank=self._pool.threads_per_rank(placement, device_type),
            stall_floor_s=trial.measurement.stall_timeout_s,
            validity=self._pool.validity(trial, placement),
            stop_after_s=self._pool.time_left_s(placement),
            queue_wait_s=self._provision.queue_wait_s(placement),
            exclusive_node=self._provision.is_exclusive(trial.node_group),
        )

    def _end(self, verdict: Verdict) -> None:
        """Record how an attempt ended, then retry its trial or finish it."""
        request = self._requests.pop(verdict.attempt_id)
        self._pruning.forget(verdict.attempt_id)
        held_gpu_s = verdict.held_s * request.trial.world_size
        result = self._provision.explain(verdict)
        if "allocated_gpu_s" not in result.measurements:
            measured = {**result.measurements, "allocated_gpu_s": held_gpu_s}
            result = replace(result, measurements=measured)
        observation = self._store.finish(
            verdict.spec, result, replace=verdict.overrules
        )
        # What is recorded is what the budget of a later sweep will count.
        self._tally.used_gpu_s += observation["allocated_gpu_s"] or held_gpu_s
        self._pool.placer.release(request.number)
        outcome = Outcome(observation["outcome"])
        got_on = outcome.is_retried and verdict.spec.files.checkpoint.is_dir()
        if got_on or not outcome.is_retried:
            self._provision.record_success(request.trial.node_group)
        for address in verdict.unresponsive:
            self._leave(address)
        if self._runs_again(request, outcome, got_on=got_on):
            self._report(request.trial, observation, result, runs_again=True)
        else:
            self._finish(request.trial, observation, result)

    def _runs_again(self, request: Request, outcome: Outcome, *, got_on: bool) -> bool:
        """Enqueue a trial again if it gets a further attempt; tell whether it does."""
        if outcome.is_retried and self._stopped is not None:
            reason = f"{outcome}: {self._stopped}"
            self._tally.unfinished.append(Unfinished(request.trial, reason))
            return True
        runs_again = self._retries.allow(
            request, outcome, got_on=got_on, is_stopped=self._stopped is not None
        )
        if runs_again:
            self._pool.placer.enqueue(request)
        return runs_again

    def _finish(
        self, trial: Trial, observation: Observation, result: AttemptResult
    ) -> None:
        """Count a trial that has ended for good and tell the source."""
        self._finished.add(observation["trial_id"])
        self._tally.count(trial, observation, self._log(observation, result))
        self._source.tell(observation)
        self._report(trial, observation, result, runs_again=False)

    def _log(self, observation: Observation, result: AttemptResult) -> str | None:
        """Return the path of the log of the first rank that failed."""
        if result.log is None:
            return None
        trial_id, number = observation["trial_id"], observation["attempt"]
        return str(self._store.attempt_directory(trial_id, number) / result.log)

    def _report(
        self,
        trial: Trial,
        observation: Observation,
        result: AttemptResult,
        *,
        runs_again: bool,
    ) -> None:
        event = TrialEnded(
            trial=trial,
            observation=observation,
            runs_again=runs_again,
            traceback=result.traceback,
            log=self._log(observation, result),
            progress=self.progress,
        )
        self._on_event(event)

    def _abandon(self) -> None:
        """End running attempts after an error and record how they ended if possible."""
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
