"""Rendezvous stores: torch stores that a node serves for the ranks of attempts."""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import suppress

from scalelab.errors import LaunchError
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import ProcessRequest, StoreTask, receive
from scalelab.launch.ranks.server_process import RankServers
from scalelab.launch.rendezvous import network_environment

_STORE_PATIENCE_S = 30.0


class RendezvousStores:
    """The stores of one node, each served by a process of its own."""

    def __init__(self, servers: RankServers, node: str) -> None:
        self._servers = servers
        self._node = node
        self._lock = threading.Lock()
        self._channels: dict[str, socket.socket] = {}

    def serve(self, attempt_id: str, address: str) -> int:
        """Serve a store for an attempt and return its port."""
        process = ProcessRequest(
            rank=0,
            task=StoreTask(address=address),
            env=network_environment("tcp://", address),
        )
        board = ProgressBoard(1)
        try:
            request = (process,)
            channel = self._servers.current().launch(request, board)
        finally:
            board.close()
        with self._lock:
            self._channels[attempt_id] = channel
        try:
            return _await_port(channel)
        except OSError as error:
            self.end(attempt_id)
            raise LaunchError(
                f"node {self._node} cannot serve a rendezvous on {address}: "
                f"{error}. Use an address of that host which the other nodes can reach."
            ) from error

    def has_died(self, attempt_id: str) -> bool:
        """Tell whether the store of an attempt has ended before it was asked to."""
        with self._lock:
            channel = self._channels.get(attempt_id)
        # Nothing more is said of a store that is served, but that it has ended.
        return channel is not None and bool(select.select([channel], [], [], 0)[0])

    def end(self, attempt_id: str) -> None:
        """End the store of an attempt, if there is one, and wait until it is gone."""
        with self._lock:
            channel = self._channels.pop(attempt_id, None)
        if channel is None:
            return
        with channel, suppress(OSError):
            channel.shutdown(socket.SHUT_WR)
            while receive(channel)[0] is not None:
                pass

    def close(self) -> None:
        """End all stores."""
        for attempt_id in list(self._channels):
            self.end(attempt_id)


def _await_port(channel: socket.socket) -> int:
    channel.settimeout(_STORE_PATIENCE_S)
    while True:
        message, descriptors = receive(channel)
        for descriptor in descriptors:
            os.close(descriptor)
        match message:
            case {"kind": "store", "port": int(port)}:
                return port
            case {"kind": "failed", "failure": failure}:
                raise OSError(failure["summary"])
            case None:
                raise OSError("the rank server has ended")
