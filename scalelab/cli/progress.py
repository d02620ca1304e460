"""A sweep's progress: a live block on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scalelab.cli.wording import duration, gpu_hours, trials
from scalelab.scheduling.events import (
    Event,
    NodeLost,
    Progress,
    Resumed,
    Stopping,
    TrialEnded,
    TrialStarted,
    Waiting,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH_PER_S = 4
LINE_EVERY_S = 10.0


class ProgressView(Protocol):
    """What a sweep shows while it runs."""

    def __enter__(self) -> Self:
        """Start showing."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop showing."""
        ...

    def __call__(self, event: Event) -> None:
        """Take in what happened."""
        ...

    def announce(self, text: str) -> None:
        """Show a line that stays."""
        ...


def view(console: Console, total: int | None, *, is_quiet: bool) -> ProgressView:
    """Return the view that suits the console.

    Parameters
    ----------
    console
        Standard error.
    total
        Trials of the whole run; None: not known yet.
    is_quiet
        Show nothing but failures.
    """
    if console.is_terminal and not is_quiet:
        return LiveView(console, total)
    return LineView(console, total, is_quiet=is_quiet)


class _Tracker:
    """What every view needs to know about the sweep so far."""

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.progress: Progress | None = None
        self.num_done_at_start = 0
        self.started_s = time.monotonic()

    def take(self, event: Event) -> None:
        if isinstance(event, Resumed):
            self.num_done_at_start = event.num_finished
        if isinstance(event, TrialStarted | TrialEnded):
            self.progress = event.progress

    @property
    def remaining_s(self) -> float | None:
        """Seconds to the end at the pace of this sweep so far; None: unknown."""
        progress = self.progress
        if progress is None or progress.num_done <= self.num_done_at_start:
            return None
        if self.total is None or not progress.num_devices:
            return None
        done_here = progress.num_done - self.num_done_at_start
        pace_s = (time.monotonic() - self.started_s) / done_here
        return pace_s * max(0, self.total - progress.num_done)

    def counts(self) -> str:
        progress = self.progress
        if progress is None:
            return "starting nodes"
        of_total = f"/{self.total}" if self.total else ""
        parts = [
            f"{progress.num_done}{of_total} done",
            f"{progress.num_running} running",
        ]
        if progress.num_failed:
            parts.append(f"{progress.num_failed} failed")
        parts.append(gpu_hours(progress.used_gpu_s))
        if self.remaining_s is not None:
            parts.append(f"about {duration(self.remaining_s)} left")
        return ", ".join(parts)


class LiveView:
    """A block of lines at the bottom of a terminal, redrawn in place."""

    def __init__(self, console: Console, total: int | None) -> None:
        self._tracker = _Tracker(total)
        self._problem: Text | None = None
        self._live = Live(
            console=console,
            refresh_per_second=REFRESH_PER_S,
            transient=True,
            get_renderable=self._render,
        )

    def __enter__(self) -> Self:
        """Start redrawing."""
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the block."""
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Take in what happened."""
        self._tracker.take(event)
        if text := problem(event):
            self._problem = Text(
                text, style="yellow", overflow="ellipsis", no_wrap=True
            )

    def announce(self, text: str) -> None:
        """Print a line above the block."""
        self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        progress, total = self._tracker.progress, self._tracker.total
        block = Table.grid(padding=(0, 1))
        done = progress.num_done if progress else 0
        block.add_row(
            ProgressBar(
                total=total or 1, completed=done, width=24, pulse=total is None
            ),
            Text(self._tracker.counts()),
        )
        rows = Table.grid()
        rows.add_row(block)
        if self._problem:
            rows.add_row(self._problem)
        return rows


class LineView:
    """A line now and then, for pipes, files and batch logs."""

    def __init__(self, console: Console, total: int | None, *, is_quiet: bool) -> None:
        self._console = console
        self._tracker = _Tracker(total)
        self._is_quiet = is_quiet
        self._next_line_s = time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> Self:
        """Start."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Print where the sweep ended."""
        if self._tracker.progress:
            self.announce(self._tracker.counts())

    def __call__(self, event: Event) -> None:
        """Take in what happened."""
        self._tracker.take(event)
        if text := problem(event):
            self._print(text)
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + LINE_EVERY_S
            self.announce(self._tracker.counts())

    def announce(self, text: str) -> None:
        """Print a line, unless quiet."""
        if not self._is_quiet:
            self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def problem(event: Event) -> str | None:
    """Say what went wrong, or None where nothing did."""
    match event:
        case TrialEnded() if not event.outcome.is_measurement:
            again = "; it runs again" if event.runs_again else ""
            reason = event.observation.get("reason") or ""
            return f"Trial {event.trial}: {event.outcome}{again}. {reason}".rstrip()
        case NodeLost():
            return f"Node {event.node.name} was lost; its trials run again."
        case Waiting():
            return f"Waiting: {event.reason}"
        case Stopping():
            return (
                f"Stopping: {event.reason}; {trials(event.num_running)} still running."
            )
        case _:
            return None
