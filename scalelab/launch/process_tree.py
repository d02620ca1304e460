"""Who dies with whom: parent-death signals, process groups, orphans."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to kill this process when the thread that created it ends.

    SIGKILL, because ranks may catch SIGTERM. A parent that ended before the request was
    made sends no signal; then this process sends it itself.

    Parameters
    ----------
    parent_pid
        Process id of the parent, as the parent knows it.
    number
        The signal; another one for a process that has something to do first.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so they can be reaped."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def bind_future_forks() -> None:
    """Make every process forked from now on, at any depth, die with its parent.

    DataLoader workers outlive a killed rank by seconds to minutes otherwise. The signal
    follows the forking *thread*, so forks from other threads than the main one, which
    may end long before the process, are left alone.
    """
    parent = 0

    def before() -> None:
        nonlocal parent
        is_main = threading.current_thread() is threading.main_thread()
        parent = os.getpid() if is_main else 0

    def after_in_child() -> None:
        if parent:
            die_with_parent(parent)

    os.register_at_fork(before=before, after_in_child=after_in_child)


def signal_group(leader_pid: int, number: int) -> None:
    """Send a signal to a process group; one that is gone already is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader_pid, number)


def reap(pid: int, patience_s: float = 1.0) -> None:
    """Collect a killed child, or with ``-pid`` the whole group it leads.

    Returns when nothing is left of those that are, or become by adoption, children of
    this process, at the latest after ``patience_s`` seconds: a process stuck inside the
    kernel cannot be waited for.
    """
    deadline = time.monotonic() + patience_s
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(0.001)


def children() -> list[int]:
    """Return the process ids of this single-threaded process's children."""
    pid = os.getpid()
    return [
        int(child)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]
