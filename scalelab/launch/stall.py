"""Stall detection: find the rank that hangs among those that wait for it."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import opened
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.timing import Limits
from scalelab.records.attempt import AttemptResult

# A rank this many steps behind another is not one that waits for it.
_BEHIND_STEPS = 2
_STACK_DUMP_S = 0.25
_AT_EASE = 3.0  # times as long between two looks as planned, before it was a pause
# Enough to see who waits for whom.
_MAX_STACKS = 4


class WakingTime:
    """The monotonic clock without the time for which this process stood still.

    A host that is suspended, or a process that is halted by a signal, hears nobody
    and gives nobody the chance to be heard. Only the watcher's own pauses are left out:
    what stands still while the watcher runs is silent.
    """

    def __init__(self, beat_s: float) -> None:
        self.beat_s = beat_s
        self._looked_s = time.monotonic()
        self._pauses: list[tuple[float, float]] = []

    @property
    def paused_s(self) -> float:
        """The length of all pauses."""
        return sum(end_s - begin_s for begin_s, end_s in self._pauses)

    def look(self) -> float:
        """Return the time now; a look that comes far too late ends a pause."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _AT_EASE * self.beat_s:
            self._pauses.append((self._looked_s + self.beat_s, now_s))
        self._looked_s = now_s
        return self.of(now_s)

    def of(self, moment_s: float) -> float:
        """Return a moment of the monotonic clock on this one."""
        return moment_s - sum(
            max(0.0, min(end_s, moment_s) - begin_s)
            for begin_s, end_s in self._pauses
            if begin_s < moment_s
        )

    def left_s(self, since_s: float, limit_s: float) -> float:
        """Return what is left of a time limit that began at a moment."""
        return self.of(since_s) + limit_s - self.of(time.monotonic())


@dataclass(frozen=True, slots=True)
class Member:
    """A process of an attempt: its id, also that of its group, and its pidfd."""

    pid: int
    descriptor: int


def is_stopped(pid: int) -> bool:
    """Tell whether a process is halted by a signal such as SIGSTOP."""
    with suppress(psutil.Error):
        halted = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        return psutil.Process(pid).status() in halted
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class StallWatch:
    """Finds out whether an attempt has stalled, and which rank is to blame.

    A rank is silent after ``stall_factor`` median step times without a report, but at
    least ``stall_floor_s`` seconds. At ``stack_dump_signal`` it writes its stacks to
    its log; None: the signal would kill it.
    """

    board: ProgressBoard
    rows: Mapping[int, int]
    time: WakingTime
    limits: Limits
    log: Callable[[int], Path]
    stack_dump_signal: int | None

    @property
    def has_begun(self) -> bool:
        """Whether every rank has taken its first step."""
        return all(self._step(rank) > 0 for rank in self.rows)

    def limit_s(self) -> float:
        """Return the seconds of silence that count as a stall."""
        if not self.has_begun:
            return self.limits.start_up_s
        usual_s = self.limits.stall_factor * (self.board.median_interval_s() or 0.0)
        return max(self.limits.stall_floor_s, usual_s)

    def next_look_s(self, now: float) -> float:
        """Return when to look for a stall next, as ``now`` on the waking clock."""
        limit_s = self.limit_s()
        # The oldest rank may only wait for another: then look again a little later.
        silent_s = min(map(self._last_sign_s, self.rows)) + limit_s
        return max(silent_s, now + limit_s / 20)

    def find(
        self, live: Mapping[int, Member], heard_s: float, now: float
    ) -> AttemptResult | None:
        """Return the result of a stalled attempt with the rank to blame, else None.

        Ranks that wait for a busy one are silent, too. So the attempt has stalled only
        when all ranks are silent, those that have ended included, or when a silent rank
        is several steps behind another.
        """
        limit_s = self.limit_s()
        silent = [rank for rank in live if now - self._last_sign_s(rank) > limit_s]

        signs = map(self._last_sign_s, self.rows)
        if now - max(self.time.of(heard_s), *signs) <= limit_s:
            ahead = max(self.board.step(row) for row in self.rows.values())
            silent = [
                rank for rank in silent if ahead - self._step(rank) >= _BEHIND_STEPS
            ]

        if not silent:
            return None

        lateness = {
            rank: (
                not is_stopped(live[rank].pid),
                self._step(rank),
                self._last_sign_s(rank),
            )
            for rank in silent
        }

        silent.sort(key=lateness.__getitem__)
        rank, limits = silent[0], self.limits

        limit = (
            f"{limits.stall_factor:g} median steps, at least "
            f"measure.stall_timeout={limits.stall_floor_s:g} s"
        )
        if not self.has_begun:
            limit = (
                f"measure.start_up_timeout={limits.start_up_s:g} s to the first step"
            )

        places = ", ".join(self._place(rank, live[rank]) for rank in sorted(live))
        silence = f"no progress for {now - self._last_sign_s(rank):.1f} s"
        return AttemptResult(
            outcome=Outcome.STALLED,
            reason=f"{silence} (the limit is {limit}): {places}",
            rank=rank,
            traceback=self._stacks({rank: live[rank] for rank in silent}),
            log=self.log(rank).name,
        )

    def halted(self, live: Mapping[int, Member]) -> tuple[int, str] | None:
        """Return a rank that a signal has stopped, with its step; None without one."""
        for rank in sorted(live):
            if is_stopped(live[rank].pid):
                return rank, self._place(rank, live[rank])
        return None

    def _step(self, rank: int) -> int:
        return self.board.step(self.rows[rank])

    def _last_sign_s(self, rank: int) -> float:
        return self.time.of(self.board.last_sign_s(self.rows[rank]))

    def _place(self, rank: int, member: Member) -> str:
        place = f"rank {rank} at step {self._step(rank)}"
        return f"{place} (stopped by a signal)" if is_stopped(member.pid) else place

    def _stacks(self, silent: Mapping[int, Member]) -> str | None:
        if self.stack_dump_signal is None:
            return None
        logs = {rank: self.log(rank) for rank in [*silent][:_MAX_STACKS]}
        sizes = {
            rank: log.stat().st_size if log.exists() else 0
            for rank, log in logs.items()
        }
        for rank in logs:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(
                    silent[rank].descriptor, self.stack_dump_signal
                )

        time.sleep(_STACK_DUMP_S)
        stacks = {rank: _read(log, sizes[rank]) for rank, log in logs.items()}
        return "\n".join(
            f"Stack of rank {rank}:\n{stack}" for rank, stack in stacks.items() if stack
        )


def _read(log: Path, offset: int) -> str:
    with suppress(OSError), opened(log) as file:
        file.seek(offset)
        return file.read().decode(errors="replace")
    return ""
