"""Hear of nodes that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from distributed import SchedulerPlugin

from scalelab.cluster.node_plugin import describe_node
from scalelab.cluster.nodes import Node

if TYPE_CHECKING:
    from distributed import Client, Scheduler

TOPIC = "scalelab-nodes"


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node answered a round trip."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """The worker at this address is gone."""

    address: str


class _NodeEvents(SchedulerPlugin):
    """Tell clients about workers."""

    name = TOPIC
    idempotent = True

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        scheduler.log_event(TOPIC, {"joined": worker})

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        scheduler.log_event(TOPIC, {"left": worker})


class NodeWatch:
    """Deliver :class:`NodeJoined` and :class:`NodeLeft` while it is entered.

    Parameters
    ----------
    client
        Client of the cluster to watch.
    deliver
        Called from the client's thread.
    """

    def __init__(
        self, client: Client, deliver: Callable[[NodeJoined | NodeLeft], None]
    ) -> None:
        self._client = client
        self._deliver = deliver
        self._round_trips: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        """Start to listen."""
        self._client.register_plugin(_NodeEvents())
        self._client.subscribe_topic(TOPIC, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        self._client.unsubscribe_topic(TOPIC)

    def _hear(self, event: tuple[float, dict[str, str]]) -> None:
        """Take an event; waiting here would hold up every message to the client."""
        _, message = event
        if "left" in message:
            self._deliver(NodeLeft(message["left"]))
        else:
            task = asyncio.ensure_future(self._meet(message["joined"]))
            self._round_trips.add(task)
            task.add_done_callback(self._round_trips.discard)

    async def _meet(self, address: str) -> None:
        for node in await _describe(self._client, [address]):
            self._deliver(NodeJoined(node))


def ask_nodes(client: Client, addresses: list[str]) -> list[Node]:
    """Make a round trip to each worker and return the nodes that answered."""
    nodes: list[Node] = client.sync(_describe, client, addresses)
    return nodes


async def _describe(client: Client, addresses: list[str]) -> list[Node]:
    futures = [
        client.submit(
            describe_node, workers=[address], allow_other_workers=False, pure=False
        )
        for address in addresses
    ]
    answers = await asyncio.gather(*futures, return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, Node)]
