"""The rank server: the process of a node that forks the ranks of attempts.

It has imported torch and the workload's modules, so a rank forked from it starts about
fifty times faster than a new interpreter. It never initialises CUDA. The server has one
thread and has run no parallel operation when it forks: a parent that ever ran
a two-thread torch operation makes its children hang.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import sysconfig
import traceback
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from scalelab.launch.process_tree import (
    adopt_orphans,
    children,
    die_with_parent,
    reap,
    signal_group,
)
from scalelab.launch.protocol import (
    ProcessRequest,
    RankTask,
    from_memory,
    receive,
    send,
)
from scalelab.launch.ranks import forked


@dataclass(slots=True)
class _Attempt:
    channel: socket.socket
    pids: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int
    rank: int
    descriptor: int
    attempt: _Attempt


class RankServer:
    """Forks the processes that one agent asks for, and reports how they end.

    Parameters
    ----------
    control
        The socket on which the agent sends requests. The server ends when the agent has
        closed it and no process is left.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control: socket.socket | None = control
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_control)

    def serve(self) -> None:
        """Serve until the control socket is closed and no process is left."""
        while self._control is not None or self._children:
            for key, _ in self._selector.select():
                # An earlier event of the batch may have unregistered this descriptor.
                if key.fd in self._selector.get_map():
                    key.data()

    def _on_control(self) -> None:
        assert self._control is not None
        message, descriptors = receive(self._control)
        if message is None:
            self._selector.unregister(self._control)
            self._control.close()
            self._control = None
            return
        channel, request, board = descriptors
        attempt = _Attempt(socket.socket(fileno=channel))
        try:
            self._launch(attempt, request, board)
        except Exception:
            _tell(attempt, {"kind": "refused", "reason": traceback.format_exc()})
        finally:
            os.close(request)
            os.close(board)
        self._selector.register(
            attempt.channel, selectors.EVENT_READ, partial(self._on_channel, attempt)
        )
        if not attempt.pids:
            self._forget(attempt)

    def _launch(self, attempt: _Attempt, request: int, board: int) -> None:
        processes = from_memory(request)
        for index, process in enumerate(processes):
            parent_pid = os.getpid()
            fresh, is_rank = None, isinstance(process.task, RankTask)
            if is_rank and (reason := must_not_fork()) is not None:
                fresh = forked.FreshInterpreter(request, index, reason)
            pid = os.fork()
            if pid == 0:
                try:
                    self._leave(attempt, process, board, parent_pid, fresh)
                finally:
                    os._exit(1)
            # Parent and child both set it: whichever runs first, the group exists.
            with suppress(OSError):
                os.setpgid(pid, pid)
            self._adopt(attempt, pid, process.rank)

    def _leave(
        self,
        attempt: _Attempt,
        process: ProcessRequest,
        board: int,
        parent_pid: int,
        fresh: forked.FreshInterpreter | None,
    ) -> None:
        """Run a task in the forked child, which gives up all that was the server's."""
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        forked.become(
            process, attempt.channel, board, parent_pid=parent_pid, fresh=fresh
        )

    def _adopt(self, attempt: _Attempt, pid: int, rank: int) -> None:
        child = _Child(pid, rank, os.pidfd_open(pid), attempt)
        self._children[pid] = child
        attempt.pids.add(pid)
        self._selector.register(
            child.descriptor, selectors.EVENT_READ, partial(self._on_exit, child)
        )
        message = {"kind": "started", "rank": rank, "pid": pid}
        _tell(attempt, message, [child.descriptor])

    def _on_exit(self, child: _Child) -> None:
        # The group's number cannot be reused before its dead leader is reaped.
        signal_group(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
        reap(-child.pid)
        self._selector.unregister(child.descriptor)
        os.close(child.descriptor)
        del self._children[child.pid]
        child.attempt.pids.remove(child.pid)
        if not self._children:
            end_orphans()
        _tell(
            child.attempt,
            {
                "kind": "exited",
                "rank": child.rank,
                "status": os.waitstatus_to_exitcode(status),
            },
        )
        if not child.attempt.pids:
            self._forget(child.attempt)

    def _on_channel(self, attempt: _Attempt) -> None:
        # Agents send nothing on it: it is readable only because it was closed.
        self._selector.unregister(attempt.channel)
        for pid in attempt.pids:
            signal_group(pid, signal.SIGKILL)

    def _forget(self, attempt: _Attempt) -> None:
        with suppress(KeyError):
            self._selector.unregister(attempt.channel)
        attempt.channel.close()


def _tell(
    attempt: _Attempt, message: dict[str, Any], descriptors: Sequence[int] = ()
) -> None:
    # The agent may have closed its end.
    with suppress(BrokenPipeError, ConnectionResetError):
        send(attempt.channel, message, descriptors)


def end_orphans() -> None:
    """Kill orphans of ranks that had left the process groups of their ranks."""
    for pid in children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        reap(pid)


def must_not_fork() -> str | None:
    """Return why a rank cannot be a fork of this process; None where it can."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "a preloaded module has initialised CUDA"
    if len(os.listdir("/proc/self/task")) > 1:
        return "a preloaded module has started a thread"
    return None


def preload(modules: Sequence[str]) -> None:
    """Import modules that every forked rank then has.

    An error is only printed here. The rank that needs the module raises it again, and
    there it is recorded with the trial.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:
            traceback.print_exc()


def watched_files() -> dict[str, int]:
    """Return the source files of imported modules that may change during a sweep.

    Left out are those of Python's library and of installed packages.
    """
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    # Environments that build on each other have several folders of packages.
    installed += [each for each in sys.path if each.endswith("-packages")]
    roots = tuple(os.path.realpath(directory) + os.sep for directory in installed)
    files: dict[str, int] = {}
    for module in list(sys.modules.values()):
        # A module may be blocked by None, or replaced by some other object.
        known = vars(module) if isinstance(module, ModuleType) else {}
        path = known.get("__file__")
        if isinstance(path, str) and not os.path.realpath(path).startswith(roots):
            with suppress(OSError):
                files[path] = Path(path).stat().st_mtime_ns
    return files


def main(arguments: list[str] | None = None) -> None:
    """Run a rank server, with the descriptors that its agent has passed on."""
    parser = ArgumentParser(prog="python -m scalelab.launch.ranks.server")
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--entry")
    parser.add_argument("--preload", nargs="*", default=[])
    given = parser.parse_args(arguments)
    die_with_parent(given.parent)
    # A batch system sends SIGTERM to every process of a job; the agent decides.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    adopt_orphans()
    if given.entry is not None:
        importlib.import_module("scalelab.launch.ranks.rank_process")
        importlib.import_module(given.entry)
    preload(given.preload)
    control = socket.socket(fileno=given.control)
    files = os.memfd_create("scalelab-files", os.MFD_CLOEXEC)
    os.write(files, json.dumps(watched_files()).encode())
    send(control, {"kind": "ready"}, [files])
    os.close(files)
    gc.collect()
    gc.freeze()
    RankServer(control).serve()


if __name__ == "__main__":
    main()
