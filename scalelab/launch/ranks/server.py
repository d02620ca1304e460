"""The rank server: the process of a node that forks the ranks of attempts.

It has imported torch and the workload's modules, so a rank forked from it starts about
fifty times faster than a new interpreter. It never initialises CUDA. The server has one
thread and has run no parallel operation when it forks: a parent that ever ran
a two-thread torch operation makes its children hang.
"""

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from scalelab.inputs.plain_files import open_to_append
from scalelab.launch import rendezvous
from scalelab.launch.command.command_supervisor import supervise_command
from scalelab.launch.process_tree import (
    adopt_orphans,
    children,
    die_with_parent,
    reap,
    signal_group,
)
from scalelab.launch.protocol import (
    CommandTask,
    ProcessRequest,
    RankTask,
    StoreTask,
    from_memory,
    receive,
    send,
)
from scalelab.launch.ranks.rank_process import report_failure, run_rank


@dataclass(frozen=True, slots=True)
class _Attempt:
    channel: socket.socket
    pids: set[int] = field(default_factory=set)

    def tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        # The agent may have closed its end.
        with suppress(BrokenPipeError, ConnectionResetError):
            send(self.channel, message, descriptors)


class _RankServer:
    """Forks the processes that one agent asks for, and reports how they end.

    It ends when the agent has closed its socket and no process is left.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control: socket.socket | None = control
        self._num_children = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_control)

    def serve(self) -> None:
        while self._control is not None or self._num_children:
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
            attempt.tell({"kind": "refused", "reason": traceback.format_exc()})
        finally:
            os.close(request)
            os.close(board)

        self._selector.register(
            attempt.channel, selectors.EVENT_READ, partial(self._on_channel, attempt)
        )
        if not attempt.pids:
            self._forget(attempt)

    def _launch(self, attempt: _Attempt, request: int, board: int) -> None:
        parent_pid = os.getpid()
        for index, process in enumerate(from_memory(request)):
            fresh, is_rank = None, isinstance(process.task, RankTask)
            if is_rank and (reason := must_not_fork()) is not None:
                fresh = (request, index, reason)

            pid = os.fork()
            if pid == 0:
                try:
                    # The child gives up all that is the server's.
                    for key in list(self._selector.get_map().values()):
                        os.close(key.fd)
                    self._selector.close()
                    _become(process, attempt.channel, board, parent_pid, fresh)
                finally:
                    os._exit(1)

            # Parent and child both set it: whichever runs first, the group exists.
            with suppress(OSError):
                os.setpgid(pid, pid)

            self._num_children += 1
            attempt.pids.add(pid)
            descriptor, rank = os.pidfd_open(pid), process.rank
            on_exit = partial(self._on_exit, attempt, pid, rank, descriptor)
            self._selector.register(descriptor, selectors.EVENT_READ, on_exit)
            attempt.tell({"kind": "started", "rank": rank, "pid": pid}, [descriptor])

    def _on_exit(self, attempt: _Attempt, pid: int, rank: int, descriptor: int) -> None:
        # The group's number cannot be reused before its dead leader is reaped.
        signal_group(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        reap(-pid)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        self._num_children -= 1
        attempt.pids.remove(pid)

        if self._num_children == 0:
            # Orphans of ranks may have left the process groups of their ranks.
            for orphan in children():
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
                reap(orphan)

        attempt.tell({"kind": "exited", "rank": rank, "status": status})
        if not attempt.pids:
            self._forget(attempt)

    def _on_channel(self, attempt: _Attempt) -> None:
        # Agents send nothing on it: it is readable only because it was closed.
        self._selector.unregister(attempt.channel)
        for pid in attempt.pids:
            signal_group(pid, signal.SIGKILL)

    def _forget(self, attempt: _Attempt) -> None:
        with suppress(KeyError):
            self._selector.unregister(attempt.channel)
        attempt.channel.close()


def must_not_fork() -> str | None:
    """Return why a rank cannot be a fork of this process; None where it can."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "a preloaded module has initialised CUDA"
    has_threads = len(os.listdir("/proc/self/task")) > 1
    return "a preloaded module has started a thread" if has_threads else None


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
    installed += [folder for folder in sys.path if folder.endswith("-packages")]
    roots = tuple(os.path.realpath(directory) + os.sep for directory in installed)

    files: dict[str, int] = {}
    for module in list(sys.modules.values()):
        # A module may be blocked by None, or replaced by some other object.
        path = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(path, str) and not os.path.realpath(path).startswith(roots):
            with suppress(OSError):
                files[path] = Path(path).stat().st_mtime_ns

    return files


def main() -> None:
    """Run a rank server: its agent's socket and process, the entry, the modules."""
    descriptor, parent, entry, *modules = sys.argv[1:]
    die_with_parent(int(parent))
    # A batch system sends SIGTERM to every process of a job; the agent decides.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    adopt_orphans()

    if entry:
        importlib.import_module(entry)

    preload(modules)
    control = socket.socket(fileno=int(descriptor))
    with os.fdopen(os.memfd_create("scalelab-files"), "w") as files:
        json.dump(watched_files(), files)
        files.flush()
        send(control, {"kind": "ready"}, [files.fileno()])

    gc.collect()
    gc.freeze()
    _RankServer(control).serve()


def _become(
    process: ProcessRequest,
    channel: socket.socket,
    board: int,
    parent_pid: int,
    fresh: tuple[int, int, str] | None,
) -> NoReturn:
    """Run the task of a newly forked process in it; this never returns.

    ``fresh`` is for a rank that cannot be a fork: what its own interpreter inherits,
    that is the descriptor of the request and its position in it, and why.
    """
    status = 1
    try:
        os.setpgid(0, 0)
        die_with_parent(parent_pid)
        _prepare(process, channel)

        match process.task:
            case CommandTask(argv=argv):
                supervise_command(argv, parent_pid)
            case RankTask() if fresh is not None:
                request, position, reason = fresh
                os.write(2, f"scalelab: not forked: {reason}\n".encode())
                inherited = (request, channel.fileno(), board)
                for descriptor in inherited:
                    os.set_inheritable(descriptor, True)
                words = [sys.executable, "-m", "scalelab.launch.ranks.rank_process"]
                words += map(str, (*inherited, position))
                os.execv(sys.executable, words)
            case RankTask() as task:
                status = run_rank(process, task, channel, board)
            case StoreTask(address=address):
                port = rendezvous.serve_store(address)
                send(channel, {"kind": "store", "port": port})
                signal.pause()
    except BaseException as error:
        report_failure(process, channel, error)
    finally:
        os._exit(status)


def _prepare(process: ProcessRequest, channel: socket.socket) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The kernel kills this process first where memory runs out, not server or agent.
    Path("/proc/self/oom_score_adj").write_text("500")
    os.environ.update(process.env)

    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    if process.log is not None:
        log = open_to_append(Path(process.log))
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)

    if process.directory is not None:
        os.chdir(process.directory)

    if process.cores:
        try:
            os.sched_setaffinity(0, process.cores)
        except OSError:
            send(channel, {"kind": "unpinned", "rank": process.rank})


if __name__ == "__main__":
    main()
