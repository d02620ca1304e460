"""What the processes of an attempt get of the cores, beside real busy programs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import pytest

from scalelab.launch.neighbours import Neighbours, are_throttled, scheduled, tree
from scalelab.plan.first_check import was_busy

SPIN = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
CORE = min(os.sched_getaffinity(0))

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs on one core, whose children they end with."""
    started = []

    def begin(code: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["taskset", "-c", str(CORE), sys.executable, "-c", code]
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_threads_that_share_a_core_run_for_a_part_of_their_time(start: Start) -> None:
    processes = [start(SPIN) for _ in range(3)]
    time.sleep(1.5)
    for process in processes:
        run, delay = scheduled(process.pid)
        assert run / (run + delay) < 0.7


def test_a_program_that_sleeps_waits_for_no_core(start: Start) -> None:
    sleeper = start("import time; time.sleep(60)")
    time.sleep(1.0)
    before = scheduled(sleeper.pid)
    time.sleep(0.5)
    run, delay = scheduled(sleeper.pid)
    assert (run - before[0], delay - before[1]) == (0, 0)


def test_children_count_with_their_parents(start: Start) -> None:
    parent = start(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {SPIN!r}])\n"
        "child.wait()"
    )
    deadline = time.monotonic() + 30
    while len([*tree(parent.pid)]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    _, child = tree(parent.pid)
    try:
        while scheduled(child)[0] < 5e8:  # half a second
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert scheduled(parent.pid)[0] > scheduled(child)[0]
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_that_has_ended_had_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert scheduled(process.pid) == (0, 0)


def test_a_process_that_hardly_runs_waits_for_no_core(start: Start) -> None:
    idle = start("import time; time.sleep(60)")
    watch = Neighbours(root=os.getpid())
    time.sleep(1.0)
    watch.look([idle.pid], is_last=True)
    ran, waited = scheduled(idle.pid)
    assert ran > 0
    # Python's own start is much of so short a time.
    watch._began_s -= 100 * (ran + waited) / 1e9
    columns = watch.columns()
    assert "cpu_share" not in columns
    assert not was_busy({**columns, "exclusive_node": None})


def test_own_programs_are_not_others_and_others_are_told(start: Start) -> None:
    outside, inside = start(SPIN), start(SPIN)
    own = Neighbours(root=os.getpid())
    others = Neighbours(root=inside.pid)
    time.sleep(1.0)
    for watch in (own, others):
        watch.look([inside.pid], is_last=True)
    of_own, of_others = own.columns(), others.columns()
    # The same cores in the same second: what is own to one is another's to the other.
    assert of_own["other_cpu_share"] < of_others["other_cpu_share"]
    assert of_others["other_cpu_share"] * of_others["cores_at_hand"] > 0.2
    assert of_others["cpu_share"] < 0.9
    assert was_busy({**of_others, "exclusive_node": None})
    assert outside.poll() is None


QUIET = {
    "cpu_share": 0.97,
    "other_cpu_share": 0.01,
    "cores_at_hand": 2,
    "exclusive_node": None,
}


@pytest.mark.parametrize(
    ("seen", "is_busy"),
    [
        ({}, False),
        ({"cpu_share": 0.5, "other_cpu_share": 0.6}, True),
        # Own threads alone are more than the cores.
        ({"cpu_share": 0.5}, False),
        # Others have cores of their own.
        ({"other_cpu_share": 0.5}, False),
        ({"cpu_share": 0.5, "other_cpu_share": 1.1 / 64, "cores_at_hand": 64}, True),
        ({"cpu_share": 0.5, "other_cpu_share": 0.3 / 64, "cores_at_hand": 64}, False),
        ({"cpu_share": None, "other_cpu_share": 0.6}, None),
        ({"cpu_share": 0.5, "other_cpu_share": 0.6, "exclusive_node": True}, False),
    ],
)
def test_a_machine_was_busy_where_others_took_what_was_waited_for(
    seen: Mapping[str, float | None], is_busy: bool | None
) -> None:
    assert was_busy({**QUIET, **seen}) is is_busy


class FakeNvml(ModuleType):
    """Stands in for NVML: nothing here has a GPU."""

    NVMLError = RuntimeError

    def __init__(self, reasons: dict[int | bytes, int]) -> None:
        super().__init__("pynvml")
        self._reasons = reasons

    def nvmlInit(self) -> None:
        if not self._reasons:
            raise RuntimeError("no driver")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> bytes:
        return uuid

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int | bytes) -> int:
        return self._reasons[handle]


@pytest.mark.parametrize(
    ("reasons", "is_throttled"),
    [
        ({0: 0, b"GPU-1": 0}, False),
        ({0: 0x1, b"GPU-1": 0x4}, False),  # idle, and at its limit of power
        ({0: 0, b"GPU-1": 0x40}, True),
        ({0: 0x80, b"GPU-1": 0}, True),
        ({}, None),
    ],
)
def test_a_gpu_is_throttled_by_heat_or_a_power_brake(
    monkeypatch: pytest.MonkeyPatch,
    reasons: dict[int | bytes, int],
    is_throttled: bool | None,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(reasons))
    assert are_throttled(["0", "GPU-1"]) is is_throttled
    watch = Neighbours(["0", "GPU-1"])
    watch.look([], is_last=True)
    assert watch.columns().get("gpu_throttled") is is_throttled
