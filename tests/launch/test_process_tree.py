from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from waiting import wait_until
from watching import is_running

from scalelab.launch.gang_agent import NodeAgent
from scalelab.launch.process_tree import reap, signal_group
from scalelab.launch.stall import is_stopped

PRELUDE = """
import os, sys, time
from scalelab.launch.process_tree import *
"""


def python(code: str, **given: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code],
        stdout=subprocess.PIPE,
        text=True,
        **given,
    )


def test_child_of_a_dead_parent_ends_at_once() -> None:
    with python("die_with_parent(1 if os.getppid() != 1 else 2)") as process:
        assert process.wait() == -signal.SIGKILL


def test_child_dies_with_its_parent() -> None:
    code = """
parent = os.getpid()
if os.fork() == 0:
    die_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""
    with python(code) as process:
        child = int(process.stdout.readline())
        process.kill()
    wait_until(lambda: not is_running(child), "the child has died")


def test_every_later_fork_dies_with_its_parent() -> None:
    code = """
bind_future_forks()
for _ in range(2):
    if os.fork():
        time.sleep(600)
print(os.getpid(), os.getppid(), flush=True)
time.sleep(600)
"""
    with python(code) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    wait_until(lambda: not any(map(is_running, pids)), "both generations have died")


def test_fork_of_another_thread_outlives_the_thread(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    result = agent.run(make_spec("fork_in_thread", ranks=1), 0, None)
    assert result.measurements["num_parameters"] == 7


def test_group_is_signalled_and_reaped() -> None:
    code = "print(flush=True); time.sleep(600)"
    process = python(code, process_group=0)
    process.stdout.readline()
    signal_group(process.pid, signal.SIGKILL)
    reap(-process.pid)
    assert not os.path.exists(f"/proc/{process.pid}")
    process.returncode = -signal.SIGKILL
    process.stdout.close()
    signal_group(process.pid, signal.SIGKILL)


def test_reaping_gives_up_on_a_process_that_lives() -> None:
    with python("print(flush=True); time.sleep(600)") as process:
        process.stdout.readline()
        reap(process.pid, patience_s=0.05)
        assert process.poll() is None
        process.kill()


def test_stopped_process_is_told_from_a_running_and_a_dead_one() -> None:
    with python("print(flush=True); time.sleep(600)") as process:
        process.stdout.readline()
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid), "the process has stopped")
        process.kill()
    assert not is_stopped(process.pid)
