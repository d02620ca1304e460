import asyncio
import time
from typing import Any

import distributed.batched
import pytest
from distributed.batched import BatchedSend

from scalelab.cluster.node_plugin import keep_batches_steady

PATIENCE_S = 60.0


class Comm:
    """The far end of a connection."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    async def write(self, payload: list[Any], **_: object) -> int:
        self.received += payload
        return 1

    def closed(self) -> bool:
        return False

    async def close(self) -> None:
        pass


class Clock:
    """A time of day that can be set."""

    offset_s = 0.0

    def __init__(self) -> None:
        self._real = distributed.batched.time

    def __call__(self) -> float:
        return float(self._real()) + self.offset_s


@pytest.mark.parametrize("jump_s", [0.0, -3600.0, 3600.0])
def test_a_jump_of_the_clock_holds_no_message(
    jump_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(BatchedSend, "next_deadline", raising=False)
    clock = Clock()
    monkeypatch.setattr(distributed.batched, "time", clock)
    monkeypatch.setattr(time, "time", clock)
    keep_batches_steady()
    comm = Comm()

    async def converse() -> None:
        sender = BatchedSend(interval="100ms")
        sender.start(comm)
        for message in range(3):
            sender.send(message)
            await asyncio.sleep(0.02)
            clock.offset_s = jump_s
        while len(comm.received) < 3:
            await asyncio.sleep(0.01)
        await sender.close()

    asyncio.run(asyncio.wait_for(converse(), PATIENCE_S))
    assert comm.received == [0, 1, 2]


def test_a_batch_that_is_due_is_not_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(BatchedSend, "next_deadline", raising=False)
    keep_batches_steady()
    sender = BatchedSend(interval="1ms")
    sender.next_deadline = distributed.batched.time() + 0.001
    time.sleep(0.01)
    before = distributed.batched.time()
    time.sleep(0.001)  # what a busy machine may do between two readings
    assert sender.next_deadline < before
