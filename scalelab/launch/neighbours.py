"""What the processes of an attempt get of the cores, and what other programs take."""

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from scalelab.launch.process_tree import text_of

COLUMNS = (
    *("cpu_share", "other_cpu_share", "cpu_pressure_start", "cpu_pressure_end"),
    *("load_average", "cores_at_hand", "gpu_throttled"),
)
_PROC = Path("/proc")
_FIRST_LOOK_S = 1.0
# Threads that could run for less than this share of the time wait for no core.
_HARDLY = 0.05
# Fields of a core in /proc/stat in which it is busy: user, nice, system, irq, softirq,
# and steal, in which a hypervisor gave it to others.
_BUSY = (0, 1, 2, 5, 6, 7)
# NVML's reasons of lower clocks: slowdown, and of it by heat, in software and in
# hardware, and by a power brake.
_SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80


class Neighbours:
    """Watches the cores that the processes of an attempt get, and that others take.

    The processes that ``root`` has started are the sweep's own. By default ``root`` is
    the parent of this process: the driver of a local sweep, or the process that
    restarts the worker of a batch job. ``gpus`` are the attempt's, as indices or UUIDs.
    """

    def __init__(self, gpus: Collection[str] = (), *, root: int | None = None) -> None:
        self._gpus, self._root = gpus, root or os.getppid()
        self._is_throttled: bool | None = None
        self._began_s = time.monotonic()
        self._next_look_s = self._began_s + _FIRST_LOOK_S
        self._others_s = self._taken_s()
        self._pressure = cpu_pressure()
        self._got: dict[int, tuple[int, int]] = {}

    def look(self, pids: Iterable[int], *, is_last: bool = False) -> None:
        """Read what processes, and those that they have started, got until now.

        It reads after 1, 2, 4, ... seconds, and the last time; else it does nothing.
        """
        now_s = time.monotonic()
        if now_s < self._next_look_s and not is_last:
            return
        self._next_look_s = now_s + max(_FIRST_LOOK_S, now_s - self._began_s)
        self._got |= {pid: scheduled(pid) for pid in pids}
        if self._gpus and (is_throttled := are_throttled(self._gpus)) is not None:
            self._is_throttled = self._is_throttled or is_throttled

    def columns(self) -> dict[str, Any]:
        """Return what was seen, by column; unknown columns are left out."""
        run, delay = map(sum, zip((0, 0), *self._got.values(), strict=True))
        num_cores = len(os.sched_getaffinity(0))
        passed_s = time.monotonic() - self._began_s
        has_run = run + delay > _HARDLY * passed_s * 1e9
        others = (self._taken_s() - self._others_s) / (num_cores * passed_s)
        seen = {
            "cpu_share": run / (run + delay) if has_run else None,
            "other_cpu_share": min(1.0, max(0.0, others)),
            "cpu_pressure_start": self._pressure,
            "cpu_pressure_end": cpu_pressure(),
            "load_average": os.getloadavg()[0],
            "cores_at_hand": num_cores,
            "gpu_throttled": self._is_throttled,
        }
        return {name: value for name, value in seen.items() if value is not None}

    def _taken_s(self) -> float:
        """Return the seconds that the cores at hand have worked for other programs."""
        own_s, cores = 0.0, os.sched_getaffinity(0)
        for pid in tree(self._root):
            with suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                own_s += sum((*times[:2], times.children_user, times.children_system))

        lines = re.findall(r"^cpu(\d+) (.+)$", text_of(_PROC / "stat"), re.MULTILINE)
        busy = [fields.split() for core, fields in lines if int(core) in cores]
        ticks = sum(int(fields[at]) for fields in busy for at in _BUSY)
        return ticks / os.sysconf("SC_CLK_TCK") - own_s


def scheduled(pid: int) -> tuple[int, int]:
    """Return the nanoseconds that a process's threads ran, and waited for a core.

    The processes that it has started count with it. Waiting for anything else, such as
    input, a peer or a lock, is in neither. They are the fields 1 and 2 of Linux's
    ``/proc/PID/schedstat``; 0 where it has none.
    """
    stats = [
        text_of(task / "schedstat").split()
        for process in tree(pid)
        for task in _tasks(process)
    ]
    run, delay = (sum(int(fields[at]) for fields in stats if fields) for at in (0, 1))
    return run, delay


def tree(pid: int) -> Iterator[int]:
    """Yield a process, those that it has started, and so on."""
    yield pid
    for task in _tasks(pid):
        for child in text_of(task / "children").split():
            yield from tree(int(child))


def _tasks(pid: int) -> list[Path]:
    """Return the directories of a process's threads; it may have ended."""
    tasks = _PROC / str(pid) / "task"
    with suppress(OSError):
        return [tasks / name for name in os.listdir(tasks)]
    return []


def are_throttled(gpus: Iterable[str]) -> bool | None:
    """Tell whether a GPU has lower clocks for heat, or its power supply asked for it.

    A limit of power that is reached is none of these. None where NVML does not say.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
            if gpu.isdigit()
            else pynvml.nvmlDeviceGetHandleByUUID(gpu.encode())
            for gpu in gpus
        ]
        reasons = map(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handles)
        return any(reason & _SLOWDOWNS for reason in reasons)
    except pynvml.NVMLError:
        return None


def cpu_pressure() -> float | None:
    """Return the share of the last 10 s in which a task waited for a core.

    It is that of ``/proc/pressure/cpu`` of Linux; None where there is no such file.
    """
    text = text_of(_PROC / "pressure" / "cpu")
    found = re.search(r"^some avg10=([\d.]+)", text, re.MULTILINE)
    return float(found[1]) / 100 if found else None
