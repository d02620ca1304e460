"""Parent and child processes: parent-death signals, process groups, orphans."""

import ctypes
import os
import re
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CGROUPS = Path("/sys/fs/cgroup")
_stop_has_come = False
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to kill this process when the thread that created it ends.

    Where the parent has ended before the request, this process sends the signal to
    itself.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (a subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def bind_future_forks() -> None:
    """Make every process forked from now on, at any depth, die with its parent.

    Without it DataLoader workers outlive a killed rank by seconds to minutes. The
    kernel sends the signal when the forking *thread* ends. So processes forked by other
    threads than the main one, which may end long before the process, are left out.
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
    """Send a signal to a process group, if it still exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader_pid, number)


def reap(pid: int, patience_s: float = 1.0) -> None:
    """Wait for a killed child, or with ``-pid`` for all children of its group.

    Return when none of them is left, adopted ones included, at the latest after
    ``patience_s`` seconds: a process that is stuck in the kernel does not end.
    """
    deadline = time.monotonic() + patience_s
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(0.001)


def has_loaded(pid: int, prefix: str) -> bool:
    """Tell whether a process, or one that it has started, has loaded a library."""
    pids = (pid, *descendants(pid))
    return any(
        f"/{prefix}" in text_of(Path(f"/proc/{process}/maps")) for process in pids
    )


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and what those have started."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables that a process found when it was started.

    What it has set since is not seen. Empty where it has ended or is another user's.
    """
    entries = text_of(Path(f"/proc/{pid}/environ")).split("\0")
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if name}


def children(pid: int | None = None) -> list[int]:
    """Return the process ids of a single-threaded process's children."""
    pid = os.getpid() if pid is None else pid
    return [
        int(child)
        for child in text_of(Path(f"/proc/{pid}/task/{pid}/children")).split()
    ]


def oom_kill_count(cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> int:
    """Return how many processes the kernel has killed because memory ran out.

    This is the count of this process's control group, version 2 or 1, or that of the
    whole host where the group shows none, as in some containers; 0 where there is no
    count at all. Only the difference of two counts has a meaning.
    """
    files = []
    for line in text_of(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files.append(cgroups / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(cgroups / "memory" / path.lstrip("/") / "memory.oom_control")

    for file in (*files, proc / "vmstat"):
        if found := re.search(r"^oom_kill (\d+)$", text_of(file), re.MULTILINE):
            return int(found[1])

    return 0


def text_of(file: Path) -> str:
    """Return what a file says; empty where it, or its process, is gone or another's."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def heed_stop_signal() -> None:
    """Note the signal from now on instead of dying of it; for the main thread.

    Processes that are forked later die of it as usual.
    """
    signal.signal(signal.SIGTERM, _note)
    default = partial(signal.signal, signal.SIGTERM, signal.SIG_DFL)
    os.register_at_fork(after_in_child=default)


def stop_signal_has_come() -> bool:
    """Tell whether this process was asked to end early."""
    return _stop_has_come


def _note(number: int, frame: FrameType | None) -> None:
    global _stop_has_come
    _stop_has_come = True
