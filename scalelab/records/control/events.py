"""The events of a sweep: plain values that its driver appends to the run's records.

``NAME/events.jsonl`` holds one JSON object a line: ``version``, ``time`` (when, in
UTC), ``kind``, and the values of the event of that kind. It says what goes on; what was
measured stands in the ledger. Whoever shows a sweep reads these and nothing else.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import checked, open_to_append, parse_json, read_file
from scalelab.records.attempt import append_all, encode_json, reading, storing

EVENTS = "events.jsonl"
VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Counts of a sweep at one moment."""

    num_done: int
    num_failed: int  # trials that ended without a measurement
    num_running: int
    num_waiting: int
    used_gpu_s: float
    num_devices: int
    num_out_of_memory: int = 0  # trials that did not fit into the memory of a device


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepStarted:
    """A driver has taken the run and is about to start its nodes."""

    host: str
    pid: int
    frameworks: tuple[str, ...]  # what nodes import before they start a trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """Trials that earlier sweeps of this run finished were told to the source."""

    num_finished: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeUp:
    """A node is up: it answered a round trip, and trials may run on it."""

    node: str
    host: str
    num_devices: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSilent:
    """A node has not answered for a while; it counts as lost after `lost_after_s`."""

    node: str
    silent_s: float
    lost_after_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLost:
    """A node was lost, and the attempts that it ran with it."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialStarted:
    """An attempt was sent to its nodes."""

    trial_id: str
    attempt: int
    title: str  # the trial in words
    directory: str  # of the attempt's files
    progress: Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialEnded:
    """An attempt ended."""

    trial_id: str
    attempt: int
    title: str
    program: str | None  # None: the experiment has not several
    outcome: Outcome
    reason: str
    input_error: str | None  # what the user must correct, where that is why it ended
    log: str | None  # the file that says more
    runs_again: bool
    progress: Progress
    samples_per_s: float | None = None  # None: it timed no steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Trials wait for nodes, or wait longer than expected.

    Nothing can run without further nodes, a batch job waits in the queue or has ended,
    or the batch system does not answer.
    """

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """A record cannot be read; the sweep goes on."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopping:
    """No further trial starts."""

    reason: str
    num_running: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepEnded:
    """The driver has ended the sweep."""

    stopped: str | None  # why it ended before its source did


Event = (
    SweepStarted
    | Resumed
    | NodeUp
    | NodeSilent
    | NodeLost
    | TrialStarted
    | TrialEnded
    | Waiting
    | Unreadable
    | Stopping
    | SweepEnded
)
OnEvent = Callable[[Event], None]


def _kind_of(event: type[Event]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event.__name__).lower()


# The events by their name in the file.
KINDS: dict[str, type[Event]] = {_kind_of(event): event for event in get_args(Event)}


class EventLog:
    """Appends events to a run's file; for the one driver that holds the run's lease."""

    def __init__(self, run: Path) -> None:
        self._path = run / EVENTS
        with storing(self._path):
            self._descriptor = open_to_append(self._path)
            # A driver that was killed may have left half a line.
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                append_all(self._descriptor, b"\n")

    def append(self, event: Event) -> None:
        """Append an event, which happens now."""
        values = {
            "version": VERSION,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "kind": _kind_of(type(event)),
            **asdict(event),
        }
        with storing(self._path):
            append_all(self._descriptor, encode_json(values) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def seconds_of_sweeps(run: Path) -> float:
    """Return for how many seconds sweeps of a run have gone on, by their events."""
    try:
        with reading(run / EVENTS):
            lines = read_file(run / EVENTS).split(b"\n")
    except FileNotFoundError:
        return 0.0

    total_s, began, last = 0.0, None, None
    for line in lines:
        try:
            values = parse_json(line, float)
            moment = datetime.fromisoformat(values["time"])
            is_start = values["kind"] == _kind_of(SweepStarted)
        except (ValueError, LookupError, TypeError):
            continue  # torn, or of no version that is known
        if is_start:
            total_s += _between(began, last)
            began = moment
        last = moment

    return total_s + _between(began, last)


def _between(began: datetime | None, last: datetime | None) -> float:
    return (last - began).total_seconds() if began and last else 0.0


def events_of_last_sweep(
    run: Path, kinds: Collection[type[Event]] = tuple(KINDS.values())
) -> Iterator[Event]:
    """Yield the events of these kinds since the last driver took the run.

    Lines that are torn, or of a kind or a version that is not known, are left out. A
    run of an older version has none.
    """
    try:
        with reading(run / EVENTS):
            content = read_file(run / EVENTS)
    except FileNotFoundError:
        return

    start = content.rfind(encode_json({"kind": _kind_of(SweepStarted)})[1:-1])
    begin = content.rfind(b"\n", 0, max(0, start)) + 1
    for line in content[begin:].split(b"\n")[:-1]:
        try:
            values = parse_json(line)
            kind = KINDS[values.pop("kind")]
            if kind in kinds and values.pop("version") == VERSION:
                del values["time"]
                yield checked(values, kind)
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
