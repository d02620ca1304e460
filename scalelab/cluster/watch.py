"""Node events: a Dask worker has joined the cluster or has left it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

from distributed import SchedulerPlugin
from distributed.scheduler import NoValidWorkerError

from scalelab.cluster.node_plugin import describe_node
from scalelab.cluster.nodes import Node

if TYPE_CHECKING:
    from distributed import Client, Scheduler

TOPIC = "scalelab-nodes"
PAUSES_S = (0.2, 1.0, 5.0)
"""Between the round trips to a worker that does not answer."""


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node answered a round trip."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """The worker at this address is gone."""

    address: str


class _NodeEvents(SchedulerPlugin):
    """Scheduler plugin that reports workers that join or leave."""

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
        """Subscribe to node events."""
        self._client.register_plugin(_NodeEvents())
        self._client.subscribe_topic(TOPIC, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        """Unsubscribe from node events."""
        self._client.unsubscribe_topic(TOPIC)

    def _hear(self, event: tuple[float, dict[str, str]]) -> None:
        """Handle an event without waiting, since that would delay every message."""
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
    answers = await asyncio.gather(*(_ask(client, each) for each in addresses))
    return [answer for answer in answers if answer is not None]


async def _ask(client: Client, address: str) -> Node | None:
    """Make a round trip to a worker; an answer that is lost is asked for again."""
    for pause_s in PAUSES_S:
        future = client.submit(
            describe_node, workers=[address], allow_other_workers=False, pure=False
        )
        try:
            return cast(Node, await future)
        except NoValidWorkerError:  # it has left
            return None
        except (Exception, asyncio.CancelledError):
            await asyncio.sleep(pause_s)
    return None
