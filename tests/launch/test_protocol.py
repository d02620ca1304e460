from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from scalelab.launch.protocol import (
    CommandTask,
    ProcessRequest,
    RankTask,
    StoreTask,
    from_memory,
    receive,
    send,
    to_memory,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket, socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        yield near, far


@pytest.mark.parametrize(
    "task",
    [
        RankTask(entry="a:b", spec={"x": [1]}, identity={}, rendezvous="", row=1),
        CommandTask(argv=("echo", "hello")),
        StoreTask(address="::1"),
    ],
)
def test_request_travels_through_memory(
    task: CommandTask | RankTask | StoreTask,
) -> None:
    process = ProcessRequest(
        rank=3, task=task, cores=(1,), env={"A": "b"}, log="l", search_path=("p",)
    )
    descriptor = to_memory([process])
    assert from_memory(descriptor) == (process,)
    assert from_memory(descriptor) == (process,)
    os.close(descriptor)


@pytest.mark.parametrize("length", [10, 65_000, 1_000_000])
def test_message_of_any_size_arrives_whole(
    pair: tuple[socket, socket], length: int
) -> None:
    near, far = pair
    send(near, {"text": "x" * length})
    message, descriptors = receive(far)
    assert message == {"text": "x" * length}
    assert descriptors == []


def test_a_request_that_is_cut_short_is_an_error() -> None:
    task = CommandTask(argv=("echo", "x" * 10_000))
    processes = [ProcessRequest(rank=0, task=task)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            to_memory(processes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_descriptor_travels_and_is_not_inherited(pair: tuple[socket, socket]) -> None:
    near, far = pair
    with open(os.devnull) as file:
        send(near, {}, [file.fileno()])
        _, (descriptor,) = receive(far)
        assert os.path.sameopenfile(descriptor, file.fileno())
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def test_closed_end_gives_none(pair: tuple[socket, socket]) -> None:
    near, far = pair
    near.close()
    assert receive(far) == (None, [])
