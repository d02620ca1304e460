"""Node events: a Dask worker has joined, has fallen silent or has left the cluster."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, cast

from distributed import Client, Scheduler, SchedulerPlugin
from distributed.scheduler import NoValidWorkerError

from scalelab.cluster.node_plugin import describe_node
from scalelab.cluster.nodes import Node
from scalelab.launch.stall import WakingTime

_NAME = "scalelab-nodes"
_SHOWN_AFTER_S = 60.0  # silence that is worth a word
_RESTART_S = 30.0
# Between the round trips to a worker that does not answer.
_PAUSES_S = (0.2, 1.0, 5.0)
LISTEN_EVERY_S = 1.0


class Silences:
    """The time since the last heartbeat of each node, on the driver's own clock.

    While the driver itself stands still it hears nobody: that time does not count.
    """

    def __init__(self) -> None:
        self._beats: dict[str, tuple[object, float]] = {}
        self._time = WakingTime(LISTEN_EVERY_S)

    def update(self, beats: Mapping[str, object]) -> dict[str, float]:
        """Return the seconds of silence by node."""
        now_s, known = self._time.look(), {}
        for node, beat in beats.items():
            before, since_s = self._beats.get(node, (None, now_s))
            known[node] = (beat, now_s if beat != before else since_s)
        self._beats = known
        return {node: now_s - since_s for node, (_, since_s) in known.items()}


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node answered a round trip."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """The worker at this address is gone."""

    address: str


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """The worker at this address has sent no heartbeat for a while."""

    address: str
    silent_s: float


NodeEvent = NodeJoined | NodeSilent | NodeLeft


class NodeWatch(SchedulerPlugin):
    """Deliver node events while it is entered.

    It hears of them in the scheduler itself, which is in this process: a client whose
    connection has broken would hear of none.

    A worker may stand still without leaving: stopped, swapped out, waiting for a file
    server, or without power. Silence for too long counts as having left; where its
    nanny still answers, it is started anew, and with it all that ran there has ended.
    """

    def __init__(
        self,
        client: Client,
        deliver: Callable[[NodeEvent], None],
        lost_after_s: float = math.inf,
    ) -> None:
        self._client = client
        self._scheduler = cast(Any, client.cluster).scheduler
        self._deliver = deliver
        self._lost_after_s = lost_after_s
        self._tasks: set[Future[None]] = set()

    def __enter__(self) -> Self:
        self._scheduler.add_plugin(self, name=_NAME)
        self._begin(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._scheduler.remove_plugin(_NAME)
        for task in list(self._tasks):
            task.cancel()

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        loop: Any = self._client.loop  # of tornado's, around asyncio's
        task = asyncio.run_coroutine_threadsafe(coroutine, loop.asyncio_loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Begin to meet a worker that has joined; to wait would delay the scheduler."""
        self._begin(self._meet(worker))

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        """Deliver that a worker has left."""
        self._deliver(NodeLeft(worker))

    async def _meet(self, address: str) -> None:
        for node in await ask_nodes(self._client, [address]):
            self._deliver(NodeJoined(node))

    async def _listen(self) -> None:
        silences, shown = Silences(), set[str]()
        shown_after_s = min(_SHOWN_AFTER_S, self._lost_after_s / 2)
        while True:
            await asyncio.sleep(LISTEN_EVERY_S)
            beats = {
                name: worker.last_seen
                for name, worker in self._scheduler.workers.items()
            }
            for address, silent_s in silences.update(beats).items():
                if silent_s < shown_after_s:
                    shown.discard(address)
                elif address not in shown:
                    shown.add(address)
                    self._deliver(NodeSilent(address, silent_s))
                worker = self._scheduler.workers.get(address)  # it may just have left
                if silent_s >= self._lost_after_s and worker is not None:
                    await self._scheduler.remove_worker(
                        address, stimulus_id="scalelab-silent", close=False
                    )
                    self._begin(_restart(self._scheduler, worker.nanny))


async def _restart(scheduler: Any, nanny: str) -> None:
    with suppress(OSError, TimeoutError):
        async with scheduler.rpc(nanny) as remote:
            await asyncio.wait_for(remote.restart(), _RESTART_S)


async def ask_nodes(client: Client, addresses: list[str]) -> list[Node]:
    """Make a round trip to each worker and return the nodes that answered."""
    answers = await asyncio.gather(*(_ask(client, address) for address in addresses))
    return [answer for answer in answers if answer is not None]


async def _ask(client: Client, address: str) -> Node | None:
    for pause_s in _PAUSES_S:
        future = client.submit(
            describe_node, workers=[address], allow_other_workers=False, pure=False
        )
        try:
            return cast(Node, await future)
        except NoValidWorkerError:  # it has left
            return None
        except (Exception, asyncio.CancelledError):  # the answer is lost: ask again
            await asyncio.sleep(pause_s)
    return None
