"""Multi-node attempts: start all parts together and merge their results into one."""

import asyncio
import concurrent.futures
import json
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from distributed import Client, Future
from distributed.client import ClosedClientError
from distributed.scheduler import KilledWorker, NoValidWorkerError

from scalelab.cluster.node_plugin import (
    cancel_attempt,
    close_rendezvous,
    open_rendezvous,
    prune_attempt,
    run_attempt,
)
from scalelab.errors import LaunchError, SpecError, StoreError
from scalelab.experiment.program import CommandProgram, saving_s
from scalelab.inputs.outcome import Outcome
from scalelab.launch.command.attempt import CommandAttempt
from scalelab.launch.stall import WakingTime
from scalelab.launch.verdict import merge
from scalelab.records.attempt import AttemptResult, AttemptSpec

END_GRACE_S = 30.0
"""Seconds that a node may take to end its ranks after a cancellation, and for a
workload's checkpoint."""

LATE_S = 60.0
"""Seconds after the timeout of an attempt at which the driver ends it, whose nodes
should have done so."""

LOOK_EVERY_S = 10.0
"""Longest time between two looks at what is due, so that a pause is noticed."""

BATCH = 16
"""Most attempts that are sent in one message; the first ones wait for the others."""

LOST = (
    KilledWorker,
    NoValidWorkerError,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
)
"""Exceptions of tasks whose worker, or the way to it, was lost."""

RunAttempt = Callable[[str, int, str | None], str]
_Task = tuple[str, int, tuple[Any, ...]]
RENDEZVOUS = -1
"""The part of node 0 that opens the rendezvous; that of node n is ``-1 - n``."""


@dataclass(frozen=True, slots=True)
class PartEnded:
    """A task of an attempt returned a value or raised."""

    attempt_id: str
    node_rank: int
    value: str | BaseException


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended."""

    spec: AttemptSpec
    result: AttemptResult
    overrules: bool
    held_s: float
    unresponsive: tuple[str, ...] = ()


@dataclass(slots=True)
class _Gang:
    """An attempt under way; ``results`` are by node rank."""

    attempt_id: str
    spec: AttemptSpec
    spec_json: str
    addresses: tuple[str, ...]
    started_s: float
    waits_for: set[int] = field(default_factory=set)
    results: dict[int, AttemptResult] = field(default_factory=dict)
    opened: dict[int, str] = field(default_factory=dict)
    cancelled: str | None = None
    ending_since_s: float | None = None
    is_late: bool = False

    @property
    def due(self) -> tuple[float, float] | None:
        """When it was begun, or its end, and for how long that may take; None: ever."""
        if self.ending_since_s is not None:
            # Parts may have been asked to save already, as a walltime nears.
            return self.ending_since_s, END_GRACE_S + saving_s(self.spec.program)
        timeout_s = self.spec.trial.measurement.timeout_s
        return None if timeout_s is None else (self.started_s, timeout_s + LATE_S)


class Gangs:
    """Runs attempts on their nodes and returns how each of them ended.

    All methods belong to the driver's thread; what Dask has to say arrives as
    :class:`PartEnded` through ``deliver`` and comes back in :meth:`take`. Messages
    about attempts that are not under way any more are ignored: that fences off late
    results.
    """

    def __init__(
        self,
        client: Client,
        deliver: Callable[[PartEnded], None],
        task: RunAttempt = run_attempt,
    ) -> None:
        assert client.loop is not None, "a client that was started has its loop"
        self._client = client
        self._loop = client.loop
        self._deliver = deliver
        self._task = task
        # A cluster may have seen the attempts of another run under the same names. One
        # group for all tasks: what Dask does per task grows with the number of groups.
        self._key_group = f"attempt-{uuid.uuid4().hex}"
        self._running: dict[str, _Gang] = {}
        self._time = WakingTime(LOOK_EVERY_S)
        self._unsent: dict[tuple[str, Callable[..., str]], list[_Task]] = {}
        self._notices: set[Future[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def launch(
        self, spec: AttemptSpec, spec_json: str, addresses: tuple[str, ...]
    ) -> str:
        """Begin an attempt and return its id; :meth:`send` sends what was begun."""
        gang = _Gang(spec.attempt_id, spec, spec_json, addresses, time.monotonic())
        self._running[gang.attempt_id] = gang
        if len(addresses) == 1:
            self._add_parts(gang)
        elif not _runs_command(gang):
            # Node 0 says where to meet.
            self._add(gang, RENDEZVOUS, open_rendezvous, gang.attempt_id, True, 0)
        else:
            # Each node tells its address and free ports.
            for rank in range(len(addresses)):
                part = CommandAttempt(spec, rank)
                asked = gang.attempt_id, part.serves_store, part.num_ports
                self._add(gang, RENDEZVOUS - rank, open_rendezvous, *asked)

        if sum(map(len, self._unsent.values())) >= BATCH:
            self.send()

        return gang.attempt_id

    def take(self, message: PartEnded) -> Verdict | None:
        """Take in what a node reported; return the verdict if it was the last."""
        gang = self._running.get(message.attempt_id)
        if gang is None or message.node_rank not in gang.waits_for:
            return None

        gang.waits_for.discard(message.node_rank)
        if isinstance(message.value, StoreError):
            raise message.value

        node_rank = _node_of(message.node_rank)
        if message.node_rank < 0 and isinstance(message.value, str):
            gang.opened[node_rank] = message.value
            if gang.cancelled is None and not gang.waits_for:
                self._add_parts(gang)
                self.send()
        else:
            self._record(gang, node_rank, _result_of_task(message.value))

        return None if gang.waits_for else self._end(gang)

    def node_left(self, address: str) -> list[Verdict]:
        """End the attempts that ran on a node that was lost."""
        verdicts = []
        for gang in list(self._running.values()):
            lost = {
                rank
                for rank in gang.waits_for
                if gang.addresses[_node_of(rank)] == address
            }
            for rank in lost:
                gang.waits_for.discard(rank)
                share = gang.spec.placement.shares[_node_of(rank)]
                reason = f"Node {share.node} vanished while it ran the attempt."
                lost_node = AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason)
                self._record(gang, _node_of(rank), lost_node)
            if lost and not gang.waits_for:
                verdicts.append(self._end(gang))
        return verdicts

    def cancel_all(self, reason: str) -> None:
        """End every attempt, which may save what it has; verdicts arrive as usual."""
        for gang in self._running.values():
            self._cancel(gang, reason, saves=True)

    def prune(self, attempt_id: str, reason: str) -> None:
        """Let an attempt end because its source says so; its verdict arrives as usual.

        Ranks of a workload hear of it from the first node; of a command each node asks
        its own processes to end.
        """
        if gang := self._running.get(attempt_id):
            asked = gang.addresses if _runs_command(gang) else gang.addresses[:1]
            for address in asked:
                self._notify(address, prune_attempt, gang.spec_json, reason)

    @property
    def next_deadline_s(self) -> float | None:
        """When to call :meth:`give_up` next, on the monotonic clock."""
        due = [gang.due for gang in self._running.values()]
        left = [
            self._time.left_s(*deadline) for deadline in due if deadline is not None
        ]
        return time.monotonic() + min(LOOK_EVERY_S, *left) if left else None

    def give_up(self) -> list[Verdict]:
        """End attempts that last too long, and give up those that do not end.

        Returns the verdicts on the latter.
        """
        self._time.look()
        verdicts = []
        for gang in list(self._running.values()):
            if gang.due is None or self._time.left_s(*gang.due) > 0:
                continue
            if gang.ending_since_s is None:
                gang.is_late = True
                timeout_s = gang.spec.trial.measurement.timeout_s
                reason = f"did not end within timeout_s={timeout_s:g} s, nor soon after"
                self._cancel(gang, reason)
            else:
                silent = sorted({_node_of(rank) for rank in gang.waits_for})
                for rank in silent:
                    node = gang.spec.placement.shares[rank].node
                    gang.results[rank] = AttemptResult(
                        outcome=Outcome.NODE_FAIL,
                        reason=f"Node {node} did not end its ranks within "
                        f"{END_GRACE_S:g} s.",
                    )
                verdicts.append(
                    self._end(gang, tuple(gang.addresses[rank] for rank in silent))
                )

        return verdicts

    def _record(self, gang: _Gang, node_rank: int, result: AttemptResult) -> None:
        gang.results[node_rank] = result
        # Only node 0 knows when a command has measured enough.
        is_last_word = node_rank == 0 and _runs_command(gang)
        if gang.waits_for and (is_last_word or not result.outcome.is_measurement):
            self._cancel(
                gang, f"Node {node_rank} of the attempt ended: {result.reason}"
            )

    def _end(self, gang: _Gang, unresponsive: tuple[str, ...] = ()) -> Verdict:
        del self._running[gang.attempt_id]
        for rank in sorted(gang.opened):
            self._notify(gang.addresses[rank], close_rendezvous, gang.attempt_id)

        # Nothing ran on the first node where the attempt ended before it began.
        unbegun = AttemptResult(outcome=Outcome.CANCELLED, reason=gang.cancelled or "")
        first = gang.results.setdefault(0, unbegun)

        result = merge(
            [gang.results[rank] for rank in sorted(gang.results)],
            first_decides=_runs_command(gang),
        )
        if gang.is_late and result.outcome is Outcome.CANCELLED:
            result = replace(result, outcome=Outcome.TIMED_OUT)

        return Verdict(
            spec=gang.spec,
            result=result,
            # A loss noticed after rank 0 passed the last barrier took nothing away.
            overrules=first.outcome is not result.outcome
            and not (first.outcome.is_measurement and result.outcome.is_retried),
            held_s=time.monotonic() - gang.started_s,
            unresponsive=unresponsive,
        )

    def _cancel(self, gang: _Gang, reason: str, *, saves: bool = False) -> None:
        """End an attempt; where a part of it has ended, the others can save nothing."""
        if gang.cancelled is None:
            gang.cancelled = reason
            gang.ending_since_s = time.monotonic()
            for rank in gang.waits_for:
                address = gang.addresses[_node_of(rank)]
                self._notify(address, cancel_attempt, gang.attempt_id, reason, saves)

    def _add_parts(self, gang: _Gang) -> None:
        meeting = " ".join(gang.opened[rank] for rank in sorted(gang.opened)) or None
        for rank in range(len(gang.addresses)):
            self._add(gang, rank, self._task, gang.spec_json, rank, meeting)

    def _add(
        self, gang: _Gang, node_rank: int, function: Callable[..., str], *args: Any
    ) -> None:
        gang.waits_for.add(node_rank)
        address = gang.addresses[_node_of(node_rank)]
        tasks = self._unsent.setdefault((address, function), [])
        tasks.append((gang.attempt_id, node_rank, args))

    def send(self) -> None:
        """Send the attempts that were begun, in one message per node.

        What Dask does per message is the larger part of what dispatch costs.
        """
        for (address, function), tasks in self._unsent.items():
            futures = self._client.map(
                function,
                *zip(*(args for _, _, args in tasks), strict=True),
                key=[(self._key_group, name, rank) for name, rank, _ in tasks],
                workers=[address],
                allow_other_workers=False,
                pure=False,
                retries=0,
            )
            for (name, rank, _), future in zip(tasks, futures, strict=True):
                self._loop.add_callback(self._collect, name, rank, future)

        self._unsent.clear()

    async def _collect(
        self, attempt_id: str, node_rank: int, future: Future[str]
    ) -> None:
        try:
            value: str | BaseException = await future
        except (Exception, asyncio.CancelledError) as error:
            value = error
        self._deliver(PartEnded(attempt_id, node_rank, value))

    def _notify(self, address: str, function: Callable[..., None], *args: Any) -> None:
        try:
            future = self._client.submit(
                function, *args, workers=[address], pure=False, priority=1
            )
        except ClosedClientError:
            return  # nodes whose scheduler is gone end what they run by themselves
        self._notices.add(future)
        future.add_done_callback(self._notices.discard)


def _node_of(part: int) -> int:
    return part if part >= 0 else RENDEZVOUS - part


def _runs_command(gang: _Gang) -> bool:
    return isinstance(gang.spec.program, CommandProgram)


def _result_of_task(value: str | BaseException) -> AttemptResult:
    if isinstance(value, str):
        return AttemptResult.from_json(json.loads(value))
    if isinstance(value, LOST):
        return AttemptResult(
            outcome=Outcome.NODE_FAIL,
            reason=(
                "The worker of the node was lost, or the connection to it, while it "
                "ran the attempt."
            ),
        )

    outcome = Outcome.NODE_FAIL if isinstance(value, LaunchError) else Outcome.FAILED
    return AttemptResult(
        outcome=outcome,
        reason=f"The node could not run the attempt: {value!r}",
        traceback="".join(traceback.format_exception(value)),
        input_error=str(value) if isinstance(value, SpecError) else None,
    )
