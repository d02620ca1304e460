"""A worker's link to the parameter servers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from scalelab.experiment.trial import Trial
from scalelab.kinds.strategies import STRATEGIES
from scalelab.training.servers.served import Staleness
from scalelab.training.servers.step_times import ServedLog
from scalelab.training.servers.wire import Kind, Tag, Wire


class ServerLink:
    """Speaks to all servers at once, each of which holds a part of the parameters.

    Servers have the ranks after those of the workers. The first of them also deals out
    the steps. Vectors are of all parameters, shape (num_parameters,).
    """

    def __init__(self, wire: Wire, num_workers: int, num_servers: int) -> None:
        self._wire = wire
        self._servers = range(num_workers, num_workers + num_servers)

    def load(
        self, parameters: torch.Tensor, versions: Sequence[int], num_claimed: int
    ) -> None:
        """Give the servers their state; one worker does, before anyone asks for it."""
        parts = self._parts(parameters)
        for server, part, version in zip(self._servers, parts, versions, strict=True):
            self._wire.request(server, Kind.LOAD, version, num_claimed, len(part))
            self._wire.send_vector(server, part)
            self._wire.expect_numbers(server, 1)()

    def begin(self, limit: int) -> None:
        """Begin a series; one worker does, before anyone claims a step of it."""
        for server in self._servers:
            self._wire.request(server, Kind.BEGIN, limit)
            self._wire.expect_numbers(server, 1)()

    def halt(self, origin: int, unit: int) -> None:
        """Let the series end early, as soon as whole units of steps are claimed.

        Any worker may; nobody waits. Who claims a step after the last one is refused.
        """
        self._wire.request(self._servers[0], Kind.HALT, origin, unit)

    def claim(self, num_ended: int) -> None:
        """Ask for one more step; :meth:`claimed` waits for the answer."""
        server = self._servers[0]
        self._grant = self._wire.expect_numbers(server, 2, Tag.GRANT)
        self._is_received = self._wire.post(server, Kind.CLAIM, num_ended)

    def tell_ended(self, num_ended: int) -> None:
        """Tell of steps that this worker has ended, and claim none."""
        self._wire.request(self._servers[0], Kind.ENDED, num_ended)

    def claimed(self) -> tuple[bool, int]:
        """Wait until the step that was asked for may begin."""
        is_granted, num_claimed = self._grant()
        self._is_received()
        return bool(is_granted), num_claimed

    def log(self) -> ServedLog:
        """Return the steps that ended since the last call; one worker does."""
        server = self._servers[0]
        self._wire.request(server, Kind.LOG)
        length, began_ns, is_over = self._wire.expect_numbers(server, 3)()
        numbers = self._wire.expect_numbers(server, 2 * length)() if length else []
        ended = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        return ServedLog(began_ns, bool(is_over), ended)

    def exchange(
        self, message: torch.Tensor, versions: Sequence[int]
    ) -> tuple[torch.Tensor, list[int]]:
        """Send a rule's message; return the servers' answer and its versions."""
        parts = self._parts(message)
        answers = self._expect_answers(parts)
        for server, part, version in zip(self._servers, parts, versions, strict=True):
            self._wire.request(server, Kind.EXCHANGE, version)
            self._wire.send_vector(server, part)
        return answers()

    def read(self, like: torch.Tensor) -> tuple[torch.Tensor, list[int], Staleness]:
        """Return the served parameters, their versions, and the staleness so far."""
        answers = self._expect_answers(self._parts(like))
        for server in self._servers:
            self._wire.request(server, Kind.READ)
        parameters, versions = answers()
        tallies = [self._wire.expect_numbers(server, 3)() for server in self._servers]
        counts, totals, maxima = zip(*tallies, strict=True)
        return parameters, versions, Staleness(sum(counts), sum(totals), max(maxima))

    def end(self) -> None:
        """Tell the servers to end; one worker does, after the last request of any."""
        for server in self._servers:
            self._wire.request(server, Kind.END)

    def _parts(self, vector: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.tensor_split(vector, len(self._servers))

    def _expect_answers(
        self, parts: Sequence[torch.Tensor]
    ) -> Callable[[], tuple[torch.Tensor, list[int]]]:
        vectors, versions = [], []
        for server, part in zip(self._servers, parts, strict=True):
            vectors.append(self._wire.expect_vector(server, len(part)))
            versions.append(self._wire.expect_numbers(server, 1))

        def received() -> tuple[torch.Tensor, list[int]]:
            values = torch.cat([vector() for vector in vectors])
            return values, [version()[0] for version in versions]

        return received


@contextmanager
def linked_to_servers(
    trial: Trial, store: Store, rank: int
) -> Iterator[ServerLink | None]:
    """Link a rank to the servers of its trial for the block; None: it has none."""
    num_servers = STRATEGIES[trial.parallelism].num_servers(
        trial.world_size, trial.options
    )
    if num_servers == 0:
        yield None
        return

    wire = Wire(store, rank, trial.world_size + num_servers)
    link = ServerLink(wire, trial.world_size, num_servers)
    yield link

    if rank == 0:
        link.end()
