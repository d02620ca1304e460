"""The outcome of failed ranks: out of memory, a crash, or a lost connection.

A rank that loses its peer fails, too: its failure is an *echo* of the peer's.
"""

import os
import re
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalelab.errors import ScaleLabError, SpecError
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import log_tail
from scalelab.launch.neighbours import COLUMNS as NEIGHBOURS
from scalelab.launch.steady import MIN_STEPS
from scalelab.records.attempt import NO_SPACE, AttemptResult

TRACEBACK_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
# Files of Python's library and of installed packages, and code without a file.
_NOT_THE_USERS = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d[^/]*/|^<")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(:|$)")
_LENGTH = 300
_END_LENGTH = 100
_MAX_LINES = 40

NO_RESULT = AttemptResult(
    outcome=Outcome.FAILED, reason="rank 0 returned no result", rank=0
)

OutcomeOf = Callable[[BaseException], Outcome | None]

_TRACEBACK_LENGTH = 20_000
_TAIL_BYTES = 4096
_TAIL_LINES = 5

_DEVICE_MEMORY = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|Cuda failure 2 'out of memory'|\bOutOfMemoryError\b"
    r"|RESOURCE_EXHAUSTED: Out of memory",
)
_HOST_MEMORY = re.compile(
    r"can't allocate memory|Cannot allocate memory|std::bad_alloc|\bMemoryError\b"
)
_LOADER_KILLED = re.compile(r"DataLoader worker \(pid.*\) is killed by signal: Killed")
# Messages of gloo, NCCL and the store in a rank whose peer has gone.
_ECHO = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused"
    r"|Broken pipe|failed to connect|connectFullMesh|Socket Timeout|Timed out waiting"
    r"|remote process exited|network error|DistNetworkError|DistStoreError"
    r"|DistBackendError|failed to recv|Failed to recv|Application timeout"
    r"|Read error|Write error|timed out after \d+ms|ncclRemoteError",
    re.IGNORECASE,
)
# Programs leave out the last partial batch of an epoch, and report now and then.
_WHOLE = 0.9
_PRECEDENCE = (
    Outcome.NODE_FAIL,
    Outcome.HOST_OUT_OF_MEMORY,
    Outcome.OUT_OF_MEMORY,
    Outcome.PREEMPTED,
    Outcome.FAILED,
    Outcome.REFUSED,
    Outcome.STALLED,
    Outcome.TIMED_OUT,
    Outcome.CANCELLED,
)


def headline(text: str, code: str | None) -> str | None:
    """Return the exception of a traceback, the place in the user's code, the message.

    >>> print(headline('''Traceback (most recent call last):
    ...   File "/run/code/1f/train.py", line 7, in <module>
    ...     batch = load(0)
    ...   File "/run/code/1f/vit/data.py", line 29, in load
    ...     assert len(files)
    ... AssertionError
    ... ''', code="/run/code/1f"))
    AssertionError at vit/data.py:29
    """
    raised = text.rpartition(TRACEBACK_START)[2]
    lines = raised.splitlines()
    at = index_of_exception(lines)
    if at == len(lines):
        return None
    name, has_message, first = lines[at].partition(":")
    message = [first, *lines[at + 1 :]] if has_message else []
    return _joined(name, _place_of(raised, code), message)


def _joined(name: str, place: str | None, message: Sequence[str]) -> str:
    where = f"{name} at {place}" if place else name
    sentence = first_sentence(message)
    return f"{where}: {sentence}" if sentence else where


def index_of_exception(lines: Sequence[str]) -> int:
    """Return the index of the line that names the exception; at most their number.

    Other ranks may write their own lines to the same log in between.
    """
    outer = [at for at, line in enumerate(lines) if line[:1] not in ("", " ")]
    named = (at for at in outer if _EXCEPTION.match(lines[at]))
    return next(named, outer[0] if outer else len(lines))


def _place_of(raised: str, code: str | None) -> str | None:
    frames = [(found["path"], found["line"]) for found in _FRAME.finditer(raised)]
    root = f"{code}{os.sep}"
    if code and (
        frames_of_code := [frame for frame in frames if frame[0].startswith(root)]
    ):
        return f"{frames_of_code[-1][0].removeprefix(root)}:{frames_of_code[-1][1]}"
    users = [frame for frame in frames if not _NOT_THE_USERS.search(frame[0])]
    return f"{os.path.basename(users[-1][0])}:{users[-1][1]}" if users else None


def first_sentence(lines: Sequence[str]) -> str:
    """Return the first lines of a message, until what was begun is said, as one.

    >>> first_sentence(["Cannot convert ({", "  0: <tf.Tensor>,", "}) to it.", "See x"])
    'Cannot convert ({ 0: <tf.Tensor>, }) to it.'
    >>> first_sentence(["CUDA error: device-side assert triggered", "Compile with"])
    'CUDA error: device-side assert triggered'
    """
    sentence = " ".join(" ".join(lines[: num_lines(lines)]).split())
    if len(sentence) <= _LENGTH:
        return sentence
    return f"{sentence[: _LENGTH - _END_LENGTH]} ... {sentence[-_END_LENGTH:]}"


def num_lines(lines: Sequence[str]) -> int:
    """Return after how many lines what was begun is said; 1 where it never is."""
    text_so_far = ""
    for number, line in enumerate(lines[:_MAX_LINES], start=1):
        text_so_far = f"{text_so_far} {line}".rstrip()
        opened, closed = (
            sum(map(text_so_far.count, signs)) for signs in ("([{", ")]}")
        )
        if (
            re.search(r"\w", text_so_far)
            and text_so_far[-1] not in ":,"
            and opened <= closed
        ):
            return number
    return 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFailure:
    """The failure of one rank."""

    rank: int
    at_s: float
    outcome: Outcome
    summary: str
    traceback: str | None
    input_error: str | None = None

    @property
    def is_echo(self) -> bool:
        """Whether the rank failed only because it lost the connection to another."""
        return self.outcome is Outcome.FAILED and _is_echo(self.traceback)

    def result(self, log: Path) -> AttemptResult:
        """Return the failure as the result of the attempt."""
        reason = f"rank {self.rank} {self.summary}"
        has_traceback = self.traceback is not None and "\n" in self.traceback
        tail = "" if has_traceback else last_lines(log)

        return AttemptResult(
            outcome=self.outcome,
            reason=f"{reason}; last lines of {log.name}: {tail}" if tail else reason,
            rank=self.rank,
            traceback=self.traceback,
            log=log.name,
            input_error=self.input_error,
        )


def has_lost_connection(result: AttemptResult) -> bool:
    """Tell whether nothing is known but that ranks did not hear of each other."""
    never_says = (Outcome.STALLED, Outcome.CANCELLED)
    return result.outcome in never_says or _only_echoes(result)


def _only_echoes(result: AttemptResult) -> bool:
    # A node that was lost, or ran out of memory, says the same; but that is the cause.
    outcomes = (Outcome.FAILED, Outcome.STALLED, Outcome.CANCELLED)
    return result.outcome in outcomes and _is_echo(result.traceback)


def _is_echo(text: str | None) -> bool:
    # The last line is the exception; frames may quote harmless source text.
    text_or_empty = text or ""
    return "\n" in text_or_empty and bool(
        _ECHO.search("\n".join(text_or_empty.splitlines()[-8:]))
    )


def from_exception(
    rank: int,
    at_s: float,
    error: BaseException,
    device_type: str,
    code: str | None = None,
    outcome_of: OutcomeOf | None = None,
) -> RankFailure:
    """Describe an exception that ended a rank; ``code`` is the user's directory.

    ``outcome_of`` knows further errors: see ``kinds.trainers.Trainer.outcome_of``.
    """
    text = "".join(traceback.format_exception(error))
    # What users are told to correct is not where it was noticed.
    is_told = isinstance(error, ScaleLabError)
    place = None if is_told else _place_of(text.rpartition(TRACEBACK_START)[2], code)
    message = str(error).strip().splitlines()

    return RankFailure(
        rank=rank,
        at_s=at_s,
        outcome=_meaning(error, device_type, outcome_of),
        summary=f"raised {_joined(type(error).__name__, place, message)}",
        traceback=text[-_TRACEBACK_LENGTH:],
        input_error=str(error) if isinstance(error, SpecError) else None,
    )


def from_exit(
    rank: int, at_s: float, status: int, device_type: str, log: Path, oom_kills: int
) -> RankFailure:
    """Describe the end of a rank that sent neither a result nor an error."""
    outcome, name = Outcome.FAILED, None
    summary = f"exited with status {status} before it returned a result"
    if status < 0:
        known = {member.value: member.name for member in signal.Signals}
        name = known.get(-status, f"signal {-status}")
        summary = f"was killed by {name}"

    if -status == signal.SIGKILL and oom_kills > 0:
        outcome = Outcome.HOST_OUT_OF_MEMORY
        summary = "was killed by the kernel: the node ran out of memory"
    elif -status == signal.SIGTERM:
        outcome = Outcome.PREEMPTED
        summary = f"was ended by {name} from outside ScaleLab"
    elif -status == signal.SIGABRT and _HOST_MEMORY.search(
        log_tail(log, num_bytes=_TAIL_BYTES)
    ):
        outcome = _host_memory_outcome(device_type)
        summary = f"ran out of memory and aborted ({name})"

    return RankFailure(
        rank=rank, at_s=at_s, outcome=outcome, summary=summary, traceback=name
    )


def first_cause(failures: Sequence[RankFailure]) -> RankFailure:
    """Return the earliest failure that is no echo, or the earliest where all are."""
    causes = [failure for failure in failures if not failure.is_echo]
    return min(causes or failures, key=lambda failure: failure.at_s)


def merge(
    results: Sequence[AttemptResult], *, first_decides: bool = False
) -> AttemptResult:
    """Return the result of an attempt from those of its nodes, node 0's first.

    A node that lost its peers reports a connection error, a stall or a cancellation;
    the node where the failure began reports the cause, which is returned. Measurements
    are those of node 0, hosts those of all nodes, reasons for exclusion from fits are
    united, and neighbours are those of the node of which other programs took most.
    """
    decided = first_decides and results[0].outcome.is_measurement
    heard = results[:1] if decided else results
    troubled = [result for result in heard if result.outcome in _PRECEDENCE]
    causes = [result for result in troubled if not _only_echoes(result)]

    verdict = min(causes or troubled or results[:1], key=_weight)
    for result_of_rank in results:
        # The rank that a signal has stopped, which its node has named, is to blame.
        is_halted = (
            result_of_rank.outcome is Outcome.CANCELLED
            and result_of_rank.rank is not None
        )
        if verdict.outcome is Outcome.STALLED and is_halted:
            reason = f"{verdict.reason}, {result_of_rank.traceback}"
            verdict = replace(
                verdict, reason=reason, rank=result_of_rank.rank, log=result_of_rank.log
            )
            break

    measurements = dict(results[0].measurements)
    busiest = max(
        (result.measurements for result in results),
        key=lambda of_node: of_node.get("other_cpu_share", -1.0),
    )
    measurements |= {name: busiest[name] for name in NEIGHBOURS if name in busiest}
    for name in ("hosts", "validity"):
        values = [
            value for result in results for value in result.measurements.get(name, ())
        ]
        if values:
            measurements[name] = values if name == "hosts" else sorted(set(values))

    return replace(verdict, measurements=measurements)


def _weight(result: AttemptResult) -> tuple[int, bool]:
    known = result.outcome in _PRECEDENCE
    # A rank that only waits writes its stack: another is to blame.
    wrote_its_stack = f"Stack of rank {result.rank}:" in (result.traceback or "")
    place = _PRECEDENCE.index(result.outcome) if known else len(_PRECEDENCE)
    return place, wrote_its_stack


def with_evidence(trial: Trial, result: AttemptResult) -> AttemptResult:
    """Return the first node's result; ``completed`` without enough steps is `failed`.

    Enough is what was asked for. A throughput trial may end early, when its mean is
    precise or its program has ended, but not before a mean can be; a trial that trains
    to a target ends when that is reached.
    """
    is_completed = result.outcome is Outcome.COMPLETED
    lacking = _lacking(trial, result.measurements) if is_completed else None
    if lacking is None:
        return result
    reason = f"the attempt ended without an error, but its result holds {lacking}"
    return replace(result, outcome=Outcome.FAILED, reason=reason, rank=0)


def fewest_steps(trial: Trial) -> int:
    """Return how many measured steps a throughput trial needs at least."""
    return min(MIN_STEPS, trial.measurement.steps)


def _lacking(trial: Trial, measured: Mapping[str, Any]) -> str | None:
    measurement = trial.measurement
    if trial.kind is TrialKind.THROUGHPUT:
        held, needed = measured.get("num_steps", 0), fewest_steps(trial)
        if held >= needed:
            return None
        return (
            f"{held} measured steps. At least {needed} are needed, and measure.steps="
            f"{measurement.steps} were asked for"
        )

    held, asked = measured.get("num_samples", 0), measurement.max_samples
    if asked is None or measured.get("reached_target") or held >= _WHOLE * asked:
        return None

    return f"{held} training samples, and {asked} were asked for"


def _meaning(
    error: BaseException | None, device_type: str, outcome_of: OutcomeOf | None
) -> Outcome:
    cause, seen = error, set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        text = str(cause)
        if outcome_of is not None and (outcome := outcome_of(cause)) is not None:
            return outcome
        if _DEVICE_MEMORY.search(text):
            return Outcome.OUT_OF_MEMORY

        if isinstance(cause, MemoryError) or (
            isinstance(cause, RuntimeError | OSError) and _HOST_MEMORY.search(text)
        ):
            return _host_memory_outcome(device_type)

        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            return Outcome.NODE_FAIL

        cause = cause.__cause__ or cause.__context__
    return Outcome.FAILED


def meaning_of_text(text: str, device_type: str) -> Outcome:
    """Return the outcome that the last output of a program stands for."""
    if _DEVICE_MEMORY.search(text):
        return Outcome.OUT_OF_MEMORY
    if _HOST_MEMORY.search(text):
        return _host_memory_outcome(device_type)
    return Outcome.FAILED


def _host_memory_outcome(device_type: str) -> Outcome:
    # On CPU the host's memory is the device's.
    return Outcome.OUT_OF_MEMORY if device_type == "cpu" else Outcome.HOST_OUT_OF_MEMORY


def after_oom_kills(failure: RankFailure, oom_kills: int) -> RankFailure:
    """Return the failure as out of memory if the kernel killed a loader worker."""
    if oom_kills > 0 and _LOADER_KILLED.search(failure.traceback or ""):
        return replace(failure, outcome=Outcome.HOST_OUT_OF_MEMORY)
    return failure


def last_lines(log: Path) -> str:
    """Return the last lines of a log joined by `` | ``; empty where there is none."""
    lines = map(str.strip, log_tail(log, num_bytes=_TAIL_BYTES).splitlines())
    return " | ".join([line for line in lines if line][-_TAIL_LINES:])
