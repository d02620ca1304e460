"""Nodes that stand still without leaving."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from scalelab.cluster.local import LocalNodes
from scalelab.cluster.watch import (
    LISTEN_EVERY_S,
    NodeEvent,
    NodeJoined,
    NodeLeft,
    NodeSilent,
    NodeWatch,
    Silences,
)


class Looks:
    """Looks at heartbeats, on a clock that stands where it was set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr("scalelab.launch.stall.time", clock)
        self.now_s = 9.0
        self.silences = Silences()

    def at(self, *seconds: float, **beats: object) -> dict[str, float]:
        """Return the silence after several looks that saw the same heartbeats."""
        found: dict[str, float] = {}
        for self.now_s in seconds:
            found = self.silences.update(beats)
        return found


def test_silence_counts_from_the_last_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch)
    assert looks.at(10, 11, 12, a=1, b=1) == {"a": 2, "b": 2}
    assert looks.at(13, a=2, b=1) == {"a": 0, "b": 3}
    # A node that left and came back begins anew.
    assert looks.at(14, a=2) == {"a": 1}
    assert looks.at(15, a=2, b=1) == {"a": 2, "b": 0}


def test_a_driver_that_stands_still_blames_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch)
    assert looks.at(10, 11, a=1) == {"a": 1}
    # The look that should have come after a second counts as that second.
    assert looks.at(1000, 1001, a=1) == {"a": 3}
    assert LISTEN_EVERY_S == 1


@pytest.fixture
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, 1) as nodes:
        yield nodes


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_said_given_up_and_started_anew(
    nodes: LocalNodes,
) -> None:
    heard: SimpleQueue[NodeEvent] = SimpleQueue()
    pids = nodes.client.run(os.getpid)
    (address, pid), *_ = pids.items()
    with NodeWatch(nodes.client, heard.put, lost_after_s=8):
        os.kill(pid, signal.SIGSTOP)
        silent = heard.get(timeout=60)
        assert isinstance(silent, NodeSilent)
        assert silent.address == address
        assert silent.silent_s < 8
        assert heard.get(timeout=60) == NodeLeft(address)
        joined = heard.get(timeout=60)
    assert isinstance(joined, NodeJoined)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert heard.empty(), "the other node was never silent"


@pytest.mark.slow
def test_a_node_that_leaves_is_heard_of_whatever_became_of_the_client(
    nodes: LocalNodes,
) -> None:
    heard: SimpleQueue[NodeEvent] = SimpleQueue()
    (address, pid), *_ = nodes.client.run(os.getpid).items()
    with NodeWatch(nodes.client, heard.put):
        connection: Any = nodes.client.scheduler_comm
        nodes.loop.call_soon_threadsafe(connection.comm.abort)
        os.kill(pid, signal.SIGKILL)
        assert heard.get(timeout=60) == NodeLeft(address)


@pytest.mark.repetition
@pytest.mark.slow
def test_a_worker_that_is_stopped_for_a_while_is_not_lost(nodes: LocalNodes) -> None:
    heard: SimpleQueue[NodeEvent] = SimpleQueue()
    pids = nodes.client.run(os.getpid)
    pid = next(iter(pids.values()))
    with NodeWatch(nodes.client, heard.put, lost_after_s=40):
        os.kill(pid, signal.SIGSTOP)
        silent = heard.get(timeout=60)
        os.kill(pid, signal.SIGCONT)
        assert isinstance(silent, NodeSilent)
        assert nodes.client.run(os.getpid) == pids
    assert heard.empty()
