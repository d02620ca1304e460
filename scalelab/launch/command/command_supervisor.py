"""Keeps a command company, so that nothing it has started outlives it.

A program starts processes in sessions and groups of their own: ``torchrun`` does so
with its ranks, shells and daemons do. A signal to its group does not reach them, and
when it dies they belong to nobody. Hence a small process between the rank server and
the program, which adopts such orphans and ends them: when the program ends, and when
the server dies.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from typing import NoReturn

from scalelab.launch.process_tree import adopt_orphans, children, die_with_parent

_SERVER_DIED = signal.SIGUSR2
_HEARD = (signal.SIGCHLD, _SERVER_DIED)


def keep(argv: tuple[str, ...], parent_pid: int) -> NoReturn:
    """Run a program in this process's group, and end as it ends.

    Call it in a process that leads a group. The program stays in the group, so that
    signals to it reach the program; this process leaves, so that they do not reach it.

    Parameters
    ----------
    argv
        The program and its arguments.
    parent_pid
        The rank server's process id.

    Raises
    ------
    OSError
        In the child, if the program cannot be executed.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    adopt_orphans()
    keeper_pid = os.getpid()
    program_pid = os.fork()
    if program_pid == 0:
        _become_program(argv, keeper_pid)
    # Where the server is in another session, the group cannot be joined.
    with suppress(OSError):
        os.setpgid(0, os.getpgid(parent_pid))
    die_with_parent(parent_pid, _SERVER_DIED)
    status = _wait(program_pid)
    _end_descendants()
    _end_as(status)


def _become_program(argv: tuple[str, ...], keeper_pid: int) -> NoReturn:
    die_with_parent(keeper_pid)
    # Python ignores them, and a program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
    os.execvp(argv[0], argv)


def _wait(program_pid: int) -> int:
    """Return the exit status of the program; a signal is its negative number."""
    while signal.sigwait(_HEARD) != _SERVER_DIED:
        # One signal may stand for several children; orphans are reaped by the way.
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                if ended[0] == program_pid:
                    return os.waitstatus_to_exitcode(ended[1])
    return -signal.SIGKILL


def _end_descendants() -> None:
    """Kill all children until the last of those they leave behind has ended."""
    while pids := children():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _end_as(status: int) -> NoReturn:
    """End with a status, or by the signal it stands for."""
    if status < 0:
        # The program has left its core already, if it leaves any.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL cannot be, and need not be, reset
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
        os.kill(os.getpid(), -status)
    os._exit(status)
