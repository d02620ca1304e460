"""The process of a parameter server, beside the ranks that train."""

import time
from collections.abc import Callable

from scalelab.experiment.trial import Trial
from scalelab.kinds.strategies import STRATEGIES, ParameterServer
from scalelab.launch.protocol import RankIdentity
from scalelab.records.attempt import AttemptSpec
from scalelab.training.context import meeting_store
from scalelab.training.servers.rules import rule_of
from scalelab.training.servers.served import Pace, ServedParameters
from scalelab.training.servers.wire import Kind, Tag, Wire


def run_server(
    spec: AttemptSpec,
    identity: RankIdentity,
    rendezvous: str,
    progress: Callable[[int], None],
) -> None:
    """Serve a part of the parameters until rank 0 says that the trial has ended."""
    progress(0)
    trial = spec.trial
    size = STRATEGIES[trial.parallelism].num_servers(trial.world_size, trial.options)
    store = meeting_store(rendezvous, identity.world_size, spec.attempt_id)
    wire = Wire(store, identity.rank, identity.world_size + size)
    Server(wire, trial, progress).serve()


class Server:
    """Answers the requests of workers, one after the other.

    ``progress`` is called with the step at which the series of the workers is to end: a
    server that nobody asks for long is then not taken for one that lags behind.
    """

    def __init__(
        self, wire: Wire, trial: Trial, progress: Callable[[int], None]
    ) -> None:
        self._wire = wire
        self._num_workers = trial.world_size
        self._rule = rule_of(trial.options, trial.world_size)
        self._bound = ParameterServer.Options.of(trial.options).staleness_bound
        self._progress = progress
        self._limit = 0
        self._began_ns = 0
        self._ended: list[int] = []
        self._asking: set[int] = set()
        self._answer: dict[Kind, Callable[..., None]] = {
            Kind.LOAD: self._load,
            Kind.BEGIN: self._begin,
            Kind.CLAIM: self._claim,
            Kind.ENDED: self._note_ends,
            Kind.HALT: self._halt,
            Kind.LOG: self._log,
            Kind.EXCHANGE: self._exchange,
            Kind.READ: self._read,
        }

    def serve(self) -> None:
        """Serve until a worker says that it is over."""
        while True:
            worker, kind, arguments = self._wire.next_request()
            if kind is Kind.END:
                return
            self._answer[kind](worker, *arguments)

    def _load(self, worker: int, version: int, num_claimed: int, length: int) -> None:
        parameters = self._wire.expect_vector(worker, length)()
        self._served = ServedParameters(parameters, self._rule, version)
        self._pace = Pace(self._num_workers, self._bound)
        self._num_claimed = num_claimed
        self._wire.send_numbers(worker, [version])

    def _begin(self, worker: int, limit: int, *_: int) -> None:
        self._limit, self._began_ns, self._ended = limit, 0, []
        self._show_life()
        self._wire.send_numbers(worker, [limit])

    def _show_life(self) -> None:
        self._progress(self._limit // self._num_workers)

    def _note_ends(self, worker: int, num_ended: int, *_: int) -> None:
        """Note when steps have ended, on the one clock that all steps are timed by."""
        self._show_life()
        now_ns = time.monotonic_ns()
        self._began_ns = self._began_ns or now_ns
        self._ended += [worker, now_ns] * num_ended

    def _claim(self, worker: int, num_ended: int, *_: int) -> None:
        self._note_ends(worker, num_ended)
        self._asking.add(worker)
        self._deal()

    def _halt(self, worker: int, origin: int, unit: int, *_: int) -> None:
        end = origin - (origin - self._num_claimed) // unit * unit
        self._limit = min(self._limit, end)
        self._deal()

    def _log(self, worker: int, *_: int) -> None:
        ended, self._ended = self._ended, []
        numbers = [len(ended) // 2, self._began_ns, self._is_over]
        self._wire.send_numbers(worker, numbers)
        if ended:
            self._wire.send_numbers(worker, ended)

    @property
    def _is_over(self) -> bool:
        return self._num_claimed >= self._limit

    def _deal(self) -> None:
        # A step that is given to the slowest may be what others wait for.
        while due := [
            worker
            for worker in sorted(self._asking)
            if self._is_over or self._pace.may_go_on(worker)
        ]:
            for worker in due:
                self._asking.remove(worker)
                self._answer_claim(worker)

    def _answer_claim(self, worker: int) -> None:
        is_granted = not self._is_over
        if is_granted:
            self._num_claimed += 1
            self._pace.advance(worker, 1)
        numbers = [is_granted, self._num_claimed]
        self._wire.send_numbers(worker, numbers, Tag.GRANT)

    def _exchange(self, worker: int, version: int, *_: int) -> None:
        self._show_life()
        message = self._wire.expect_vector(worker, len(self._served.parameters))()
        answer, version = self._served.exchange(message, version)
        self._wire.send_vector(worker, answer)
        self._wire.send_numbers(worker, [version])

    def _read(self, worker: int, *_: int) -> None:
        staleness = self._served.staleness
        self._wire.send_vector(worker, self._served.parameters)
        self._wire.send_numbers(worker, [self._served.version])
        self._wire.send_numbers(
            worker, [staleness.num_messages, staleness.total, staleness.maximum]
        )
