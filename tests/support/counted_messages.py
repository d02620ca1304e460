"""Kills a process of a node at a counted message of the node's agent.

:func:`arm` runs in the process of the agent, whose messages to and from its rank server
are counted from then on; :func:`run_rank` is a rank of a gang that meets, and leaves
word when it starts and when it ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from stand_in import completed, group

from scalelab.launch import rendezvous, supervision
from scalelab.launch.protocol import RankIdentity
from scalelab.launch.ranks import server_process
from scalelab.records.attempt import AttemptResult, AttemptSpec

MODULES = (supervision, server_process, rendezvous)
VICTIMS = ("agent", "server", "child-0", "child-1", "grandchild-0")


@dataclass(frozen=True)
class Point:
    """Before or after message ``at``, from 1, of the agent, and who is killed then."""

    at: int
    side: str
    victim: str


@dataclass
class Counter:
    """The messages since the agent was armed, and who was there to be killed."""

    number: int = 0
    point: Point | None = None
    found: list[Point] = field(default_factory=list)

    def reached(self, at: int, side: str) -> None:
        if self.point is None:
            found = (Point(at, side, victim) for victim in VICTIMS)
            self.found += [each for each in found if pid_of(each.victim) is not None]
        elif (self.point.at, self.point.side) == (at, side):
            pid = pid_of(self.point.victim)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)


COUNTER = Counter()


def arm(point: Point | None) -> None:
    """Count from 0, and kill at this point; None: note at which one could."""
    for module in MODULES:
        for name in ("send", "receive"):
            function = getattr(module, name, None)
            if function is not None and not hasattr(function, "counted"):
                setattr(module, name, _counted(function))
    COUNTER.number, COUNTER.point, COUNTER.found = 0, point, []


def found() -> list[Point]:
    """Return the points of an attempt that ran without harm, each once."""
    return list(dict.fromkeys(COUNTER.found))


def is_idle() -> bool:
    """Tell whether the node's rank server has no process, or will be started anew."""
    return pid_of("child-0") is None


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        COUNTER.reached(COUNTER.number + 1, "before")
        value = function(
            *args
        )  # a message that has not come yet raises, and counts not
        COUNTER.number += 1
        COUNTER.reached(COUNTER.number, "after")
        return value

    call.counted = True
    return call


def pid_of(victim: str) -> int | None:
    if victim == "agent":
        return os.getpid()
    generation = [pid for pid in _children(os.getpid()) if _is_server(pid)][-1:]
    kind, _, index = victim.partition("-")
    for _ in range(("server", "child", "grandchild").index(kind)):
        generation = [child for pid in generation for child in _children(pid)]
    at = int(index or 0)
    return generation[at] if at < len(generation) else None


def _is_server(pid: int) -> bool:
    with suppress(psutil.Error):
        return "scalelab.launch.ranks.server" in psutil.Process(pid).cmdline()
    return False


def _children(pid: int) -> list[int]:
    with suppress(psutil.Error):
        return sorted(child.pid for child in psutil.Process(pid).children())
    return []


def run_rank(
    spec: AttemptSpec,
    identity: RankIdentity,
    rendezvous: str,
    progress: Callable[[int], None],
) -> AttemptResult | None:
    leave_word(spec, f"pid-{os.getpid()}")
    with group(identity, rendezvous):
        progress(1)
    leave_word(spec, f"ended-{identity.rank}")
    return completed(identity)


def leave_word(spec: AttemptSpec, name: str) -> None:
    (Path(spec.directory) / name).touch()
