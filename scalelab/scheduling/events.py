"""Events that the driver reports while a sweep runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scalelab.cluster.nodes import Node
from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.plan.source import Observation
from scalelab.records.attempt import AttemptSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Counts of a sweep at one moment.

    Parameters
    ----------
    num_failed, num_out_of_memory
        Those of them that ended without a measurement, and that did not fit into the
        memory of a device.
    """

    num_done: int
    num_failed: int
    num_running: int
    num_waiting: int
    used_gpu_s: float
    num_devices: int
    num_out_of_memory: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """A record cannot be read; the sweep goes on."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesStarting:
    """The nodes of the sweep are being started."""

    imports_torch: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialStarted:
    """An attempt was sent to its nodes."""

    spec: AttemptSpec
    progress: Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialEnded:
    """An attempt ended.

    Parameters
    ----------
    observation
        Its row; the attempt's number, ``outcome`` and ``reason`` are among it.
    """

    trial: Trial
    observation: Observation
    runs_again: bool
    traceback: str | None
    log: str | None
    progress: Progress

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return Outcome(self.observation["outcome"])


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeUp:
    """A node is up: it answered a round trip, and trials may run on it."""

    node: Node


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLost:
    """A node was lost, and the attempts that it ran with it."""

    node: Node


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """Trials that earlier sweeps of this run finished were told to the source."""

    num_finished: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Trials wait for nodes, or wait longer than expected.

    Parameters
    ----------
    reason
        Nothing can run without further nodes, a batch job waits in the queue or has
        ended, or the batch system does not answer.
    """

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopping:
    """No further trial starts."""

    reason: str
    num_running: int


Event = (
    NodesStarting
    | TrialStarted
    | TrialEnded
    | NodeUp
    | NodeLost
    | Resumed
    | Waiting
    | Unreadable
    | Stopping
)
OnEvent = Callable[[Event], None]
