"""The node agent: starts and supervises the processes of attempts on one node."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from scalelab.errors import DiskFullError, LaunchError, SpecError, StoreError
from scalelab.experiment.program import CommandProgram
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import make_folder
from scalelab.launch.command.attempt import CommandAttempt
from scalelab.launch.command.results import refused
from scalelab.launch.command.watch import watch_of
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import ProcessRequest
from scalelab.launch.ranks.requests import rank_requests
from scalelab.launch.ranks.server_process import RankServers
from scalelab.launch.rendezvous import (
    LOOPBACK,
    HeldPorts,
    Meeting,
    RendezvousStores,
    file_rendezvous,
    tcp_rendezvous,
)
from scalelab.launch.scratch import make_scratch
from scalelab.launch.supervision import Supervisor, Watch
from scalelab.launch.timing import Limits, Timing
from scalelab.launch.verdict import has_lost_connection, with_evidence
from scalelab.records.attempt import (
    NO_SPACE,
    AttemptResult,
    AttemptSpec,
    write_result,
)

_MAX_AWAITED = 1000  # attempts that were cancelled before they are launched here
# Attempts may take so long to save what they have when their node is closed. Batch
# systems kill what is left of a job after half a minute.
CLOSE_WITHIN_S = 25.0


class Cancellation:
    """A request from another thread to end an attempt, even before it has started."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.reason: str | None = None
        self.outcome = Outcome.CANCELLED
        self.saves = False
        self.is_over = threading.Event()
        self._lock = threading.Lock()
        self._is_open = True

    def request(
        self,
        reason: str,
        outcome: Outcome = Outcome.CANCELLED,
        *,
        saves: bool = False,
    ) -> None:
        """Request the end of the attempt; the first request counts."""
        with self._lock:
            if self.reason is None and self._is_open:
                self.reason, self.outcome, self.saves = reason, outcome, saves
                os.eventfd_write(self.descriptor, 1)

    def close(self) -> None:
        """Close the descriptor; later requests are ignored."""
        with self._lock:
            self._is_open = False
            os.close(self.descriptor)
        self.is_over.set()


class NodeAgent:
    """Runs the parts of attempts that fall to one node, several at a time.

    Its methods may be called from any thread. ``entry`` is what a rank calls,
    ``module:function``; None: only commands run here. A ``device_name`` that is set is
    recorded for commands.
    """

    def __init__(
        self,
        node: str,
        device_type: str,
        preload: tuple[str, ...],
        *,
        entry: str | None = None,
        address: str = "127.0.0.1",
        search_path: tuple[str, ...] = (),
    ) -> None:
        self.node = node
        self.device_name: str | None = None
        self._device_type = device_type
        self._entry = entry
        self._address = address
        self._directory = make_scratch()
        module = entry and entry.partition(":")[0]
        self._servers = RankServers(preload, search_path, self._directory, module)
        self._lock = threading.Lock()
        self._running: dict[str, Cancellation] = {}
        self._cancelled: dict[str, str] = {}
        self._stores = RendezvousStores(self._servers, node)
        self._ports = HeldPorts()

    def start(self) -> None:
        """Start the rank server and wait until it can fork ranks."""
        self._servers.current()

    def close(self) -> None:
        """End every attempt, the rank server, and all processes they have started.

        Those that can save do so first. Await :meth:`run` before if its result matters.
        """
        with self._lock:
            running = list(self._running.values())
        for cancellation in running:
            cancellation.request(f"node {self.node} was closed", saves=True)

        deadline_s = time.monotonic() + CLOSE_WITHIN_S
        for cancellation in running:
            cancellation.is_over.wait(max(0.0, deadline_s - time.monotonic()))

        self._stores.close()
        self._servers.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> NodeAgent:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(
        self, spec: AttemptSpec, node_rank: int, rendezvous: str | None
    ) -> AttemptResult:
        """Run this node's ranks of an attempt and return when all have ended."""
        timing, spec = Timing(), spec.arrived()
        with self._registered(spec.attempt_id) as cancellation:
            try:
                result = self._run(spec, node_rank, rendezvous, cancellation, timing)
            except LaunchError as error:
                result = AttemptResult(outcome=Outcome.NODE_FAIL, reason=str(error))
            except SpecError as error:
                result = refused(error)
            except OSError as error:
                result = AttemptResult(
                    # A full disk is no trial's fault.
                    outcome=Outcome.NODE_FAIL
                    if error.errno in NO_SPACE
                    else Outcome.FAILED,
                    reason=f"node {self.node} cannot run this trial: {error}",
                )

        if has_lost_connection(result) and self._stores.has_died(spec.attempt_id):
            reason = f"the rendezvous store ended, and then {result.reason}"
            result = replace(result, outcome=Outcome.NODE_FAIL, reason=reason)

        result = timing.complete(spec, node_rank, result)
        if node_rank != 0:
            return result

        result = with_evidence(spec.trial, result)
        try:
            write_result(spec.files, result)
        except DiskFullError:
            raise
        except StoreError as error:
            return replace(result, outcome=Outcome.FAILED, reason=str(error))

        return result

    def cancel(
        self,
        attempt_id: str,
        reason: str,
        outcome: Outcome = Outcome.CANCELLED,
        *,
        saves: bool = False,
    ) -> None:
        """End the processes of an attempt, now or as soon as it is launched here."""
        with self._lock:
            running = self._running.get(attempt_id)
            if running is None:
                self._cancelled[attempt_id] = reason
                # The oldest have ended long ago, or never come.
                for name in list(self._cancelled)[:-_MAX_AWAITED]:
                    del self._cancelled[name]

        if running is not None:
            running.request(reason, outcome, saves=saves)
        else:
            self._ports.forget(attempt_id)

    def open_rendezvous(
        self,
        attempt_id: str,
        address: str | None = None,
        *,
        serves_store: bool = True,
        num_ports: int = 0,
    ) -> str:
        """Open what processes of an attempt need on this node to find each other."""
        if reason := self._cancelled.get(attempt_id):
            raise LaunchError(reason)
        address = address or self._address
        store = (self._stores.serve(attempt_id, address),) if serves_store else ()
        try:
            ports = self._ports.find(attempt_id, address, num_ports)
        except OSError:
            self._stores.end(attempt_id)
            raise

        return tcp_rendezvous(address, *store, *ports)

    def close_rendezvous(self, attempt_id: str) -> None:
        """Give back the ports of an attempt, and wait until its store is gone."""
        self._ports.forget(attempt_id)
        self._stores.end(attempt_id)

    @contextmanager
    def _registered(self, attempt_id: str) -> Iterator[Cancellation]:
        cancellation = Cancellation()
        with self._lock:
            if attempt_id in self._running:
                cancellation.close()
                raise LaunchError(
                    f"attempt {attempt_id} is already running on node {self.node}. "
                    "Launch it again under the next number."
                )
            self._running[attempt_id] = cancellation
            if attempt_id in self._cancelled:
                cancellation.request(self._cancelled.pop(attempt_id))

        try:
            yield cancellation
        finally:
            with self._lock:
                del self._running[attempt_id]
            cancellation.close()

    def _run(
        self,
        spec: AttemptSpec,
        node_rank: int,
        rendezvous: str | None,
        cancellation: Cancellation,
        timing: Timing,
    ) -> AttemptResult:
        make_folder(Path(spec.directory), below=spec.files.run)
        if spec.device_type != self._device_type:
            return AttemptResult(
                outcome=Outcome.REFUSED,
                reason=(
                    f"device_type={spec.device_type}, but node {self.node} offers "
                    f"{self._device_type}. Set device_type in the site profile."
                ),
            )

        server = self._servers.current()
        if cancellation.reason is not None:
            return AttemptResult(outcome=Outcome.CANCELLED, reason=cancellation.reason)

        with ExitStack() as stack:
            processes, watch_with = self._prepared(spec, node_rank, rendezvous, stack)
            board = ProgressBoard(len(processes))
            stack.callback(board.close)
            watch = watch_with(board)
            stack.callback(watch.close)
            supervisor = Supervisor(
                channel=server.launch(processes, board),
                server=server.descriptor,
                explain_death=server.explain_death,
                ranks=[process.rank for process in processes],
                board=board,
                limits=Limits.of(spec, node_rank),
                log=spec.files.log,
                device_type=spec.device_type,
                watch=watch,
                gpus=spec.placement.shares[node_rank].device_ids
                if spec.device_type == "cuda"
                else (),
            )

            heed = partial(_end_cancelled, cancellation, supervisor, watch)
            supervisor.listen(cancellation.descriptor, heed)

            store = self._stores.descriptor(spec.attempt_id)
            if store is not None:
                supervisor.listen(
                    store, partial(_end_without, store, supervisor, watch)
                )

            result = watch.explained(supervisor.supervise())
            timing.ready_s = watch.ready_s

        is_command = isinstance(spec.program, CommandProgram)
        if is_command and self.device_name and result.outcome.is_measurement:
            columns = {**result.measurements, "device_name": self.device_name}
            return replace(result, measurements=columns)

        return result

    def _prepared(
        self,
        spec: AttemptSpec,
        node_rank: int,
        rendezvous: str | None,
        stack: ExitStack,
    ) -> tuple[tuple[ProcessRequest, ...], Callable[[ProgressBoard], Watch]]:
        """Return what to start and what watches it, once they have a place to meet.

        An attempt on one node opens that here; ``stack`` closes it.
        """
        if not isinstance(spec.program, CommandProgram):
            assert self._entry is not None, "a node of commands runs no workload"
            store = self._directory / f"store-{spec.attempt_id}"
            stack.callback(store.unlink, missing_ok=True)
            ranks = rank_requests(
                spec,
                node_rank,
                entry=self._entry,
                rendezvous=rendezvous or file_rendezvous(store),
                address=self._address,
            )
            return ranks, Watch

        command, address = CommandAttempt(spec, node_rank), self._address
        if rendezvous is None:
            address = LOOPBACK
            stack.callback(self.close_rendezvous, spec.attempt_id)
            rendezvous = self.open_rendezvous(
                spec.attempt_id,
                address,
                serves_store=command.serves_store,
                num_ports=command.num_ports,
            )

        meeting = Meeting.parse(rendezvous)
        if not command.launcher.holds_ports:
            self._ports.release(spec.attempt_id)

        # Any node may be the first to write there.
        streams = spec.files.probe / str(command.node_rank)
        for folder in (command.output_directory, streams):
            make_folder(folder, below=spec.files.run)

        return command.requests(meeting, address), partial(watch_of, command, meeting)


def _end_without(store: int, supervisor: Supervisor, watch: Watch) -> None:
    # Ranks that have not met would wait for minutes; the others may not need it again.
    supervisor.ignore(store)
    if watch.ready_s is None:
        reason = "the rendezvous store ended before the first step"
        supervisor.end(AttemptResult(outcome=Outcome.NODE_FAIL, reason=reason))


def _end_cancelled(
    cancellation: Cancellation, supervisor: Supervisor, watch: Watch
) -> None:
    reason = cancellation.reason or ""
    if cancellation.outcome is Outcome.PRUNED and (pruned := watch.pruned(reason)):
        supervisor.end(pruned, saves=True)
    else:
        supervisor.cancel(reason, saves=cancellation.saves)
