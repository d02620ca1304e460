"""The outcome of a program that failed, from its exit status and its log."""

import re
import signal
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import log_tail
from scalelab.launch.verdict import (
    TRACEBACK_START,
    RankFailure,
    from_exit,
    headline,
    index_of_exception,
    meaning_of_text,
    num_lines,
)

_TAIL_BYTES = 1 << 17
_LAST_WORDS = 4096
_CHAINED = re.compile(
    r"During handling of the above exception|was the direct cause of the following"
)
# torch puts the rank before every line of an uncaught exception.
_RANK_PREFIX = re.compile(r"^(?:\[\w*?rank\d+\]:? ?)+", re.IGNORECASE | re.MULTILINE)
# What a launcher inside the command says about the ranks it started.
_OF_A_LAUNCHER = re.compile(r"\bChildFailedError\b|\bProcessRaisedException\b")
_MESSAGE_LINES = 6
_PORT_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
_KILLED = re.compile(r"\bSIGKILL\b|\bKilled\b")
_TRACEBACK_LENGTH = 20_000


def from_command_exit(
    rank: int,
    at_s: float,
    status: int,
    device_type: str,
    log: Path,
    oom_kills: int,
    *,
    code: str | None = None,
) -> RankFailure:
    """Describe the failed exit of a command's process; see `from_exit`.

    ``code`` is the directory of the user's code.

    A port that another program holds is no fault of the trial: it counts as a failure
    of the node, and the trial runs again in a new attempt.
    """
    failure = from_exit(rank, at_s, status, device_type, log, oom_kills)
    if failure.outcome is not Outcome.FAILED:
        return failure

    text = _RANK_PREFIX.sub("", log_tail(log, num_bytes=_TAIL_BYTES))
    found = last_traceback(text)
    last_words = text[-_LAST_WORDS:]
    # Messages of exceptions without the frames, which quote source.
    messages = [
        line for line in (found or "").splitlines() if line[:1] not in ("", " ")
    ]
    cause = "\n".join(messages) if found else last_words

    outcome, summary = meaning_of_text(cause, device_type), failure.summary
    if found and status > 0:
        summary = f"raised {headline(found, code) or 'an exception'}"
    elif status >= 0:
        summary = f"exited with status {status}"

    # A shell or launcher reports the signal by its exit status or in its output.
    was_killed = status == 128 + signal.SIGKILL or _KILLED.search(last_words)
    if oom_kills > 0 and was_killed:
        outcome = Outcome.HOST_OUT_OF_MEMORY
        summary += "; the kernel killed a process of it: the node ran out of memory"
    elif _PORT_IN_USE.search(cause):
        outcome = Outcome.NODE_FAIL
        summary += "; another program on the node uses that port"

    return replace(
        failure, outcome=outcome, summary=summary, traceback=found or failure.traceback
    )


def last_traceback(text: str) -> str | None:
    """Return the last Python traceback in a log, with the exceptions that caused it.

    A launcher's traceback, which only says that a rank has failed, is returned only
    where there is no other.
    """
    tracebacks = _tracebacks(text.splitlines())
    of_ranks = [
        traceback for traceback in tracebacks if not _OF_A_LAUNCHER.search(traceback)
    ]
    return next(reversed(of_ranks or tracebacks), None)


def _tracebacks(lines: list[str]) -> list[str]:
    # Another rank, which writes to the same log, may be in the midst of a line.
    starts = [
        index
        for index, line in enumerate(lines)
        if line.rstrip().endswith(TRACEBACK_START)
    ]
    found: list[str] = []

    begin: int | None = None
    for start, following in zip_longest(starts, starts[1:]):
        begin = start if begin is None else begin
        if following is not None and _CHAINED.search(
            "\n".join(lines[max(start, following - 3) : following])
        ):
            continue
        text = "\n".join(lines[begin : _end(lines, start, following)]) + "\n"
        found.append(text[-_TRACEBACK_LENGTH:])
        begin = None

    return found


def _end(lines: list[str], start: int, following: int | None) -> int:
    last = len(lines) if following is None else following
    raised = start + 1 + index_of_exception(lines[start + 1 : last])
    message = max(_MESSAGE_LINES, num_lines(lines[raised:last]))
    end = min(raised + message, last)
    return next((at for at in range(raised, end) if not lines[at].strip()), end)
