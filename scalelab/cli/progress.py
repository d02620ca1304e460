"""A sweep's progress: a live block on a terminal, plain lines everywhere else."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scalelab.errors import StoreError
from scalelab.inputs.lines import between_words, one_line
from scalelab.inputs.numerals import DeviceWords, counted, duration, number
from scalelab.inputs.plain_files import log_tail
from scalelab.plan.inquiry import in_a_line
from scalelab.plan.tracked import TrackedSource
from scalelab.records.attempt import AttemptFiles
from scalelab.records.control.events import (
    Event,
    NodeLost,
    NodeSilent,
    NodeUp,
    Progress,
    Stopping,
    SweepStarted,
    TrialEnded,
    TrialStarted,
    Unreadable,
    Waiting,
)
from scalelab.records.streams import FollowedStream

REFRESH_PER_S, LINE_EVERY_S = 4, 10.0
BAR_WIDTH, SHORTEST_BAR = 24, 8


# Seconds without a word after which it is said what goes on: at first, and at most.
SILENT_S, LONGEST_SILENCE_S, LONGEST_WITHOUT_STEP_S = 5.0, 60.0, 20.0


class Activity:
    """Follows a sweep from the start of its nodes until its first trial has ended."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._frameworks: tuple[str, ...] = ()
        self._trial: FollowedStream | None = None
        self._files: AttemptFiles | None = None
        self._trial_since_s = 0.0
        self._step: int | None = None
        self.is_over = False

    def take(self, event: Event, now_s: float) -> None:
        """Learn of an event, at a moment of the monotonic clock."""
        match event:
            case SweepStarted():
                self._since_s = now_s
                self._frameworks = event.frameworks
            case TrialStarted() if self._trial is None:
                self._files = files = AttemptFiles(Path(event.directory))
                self._trial = FollowedStream(files.stream, below=files.run)
                self._trial_since_s = now_s
            case TrialEnded():
                self.is_over = True

    def of_nodes(self, now_s: float) -> str:
        """Say that nodes start."""
        names = ", ".join(self._frameworks)
        text = f"starting nodes: importing {names}" if names else "starting nodes"
        passed_s = now_s - (now_s if self._since_s is None else self._since_s)
        return f"{text}, {duration(round(passed_s))}" if passed_s >= 1 else text

    def of_trial(self, now_s: float) -> str:
        """Say how far the first trial is; empty once it has ended, or just began."""
        passed_s = now_s - self._trial_since_s
        if self.is_over or self._trial is None or passed_s < 1:
            return ""
        with suppress(StoreError):  # the sweep itself says what cannot be read
            for row in self._trial.rows():
                self._step = row.get("step", self._step)
        if self._step is not None:
            return f"the first trial is at step {self._step}"
        return f"no step yet after {duration(round(passed_s))}"

    @property
    def has_stepped(self) -> bool:
        """Whether the first trial has reported a step, or has ended."""
        return self.is_over or self._step is not None

    @property
    def notice(self) -> str:
        """What the node of the first trial says while no step comes; mostly empty."""
        if self.has_stepped or self._files is None:
            return ""
        return log_tail(self._files.notice, below=self._files.run)


class Speaker:
    """A thread that says what goes on where nothing was said for a while.

    First after a few seconds, then ever more rarely; after the end of the first trial
    once a minute.
    """

    def __init__(self, say: Callable[[], None], activity: Activity) -> None:
        self._say = say
        self._activity = activity
        self._heard = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._heard.set()
        self._thread.join()

    def hear(self) -> None:
        """Take note that something was said."""
        self._heard.set()

    def _run(self) -> None:
        silent_s = SILENT_S
        with suppress(OSError):  # the reader left: the sweep's own thread finds out
            while not self._is_over:
                if self._heard.wait(silent_s):
                    silent_s = SILENT_S
                else:
                    self._say()
                    silent_s = min(
                        2 * silent_s,
                        LONGEST_SILENCE_S
                        if self._activity.has_stepped
                        else LONGEST_WITHOUT_STEP_S,
                    )
                if self._activity.is_over:
                    silent_s = LONGEST_SILENCE_S
                self._heard.clear()


def view(words: DeviceWords, *, is_quiet: bool) -> ProgressView:
    """Return the view that suits stderr."""
    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal and not is_quiet:
        return LiveView(console, words)
    return LineView(console, words, is_quiet=is_quiet)


class Tracker:
    """The state of a sweep as its events tell it; every view shows it."""

    def __init__(self, words: DeviceWords) -> None:
        self._words = words
        self.source: TrackedSource | None = None  # None: it has not been asked yet
        self.total: int | None = None  # trials of the plan; None: not known yet
        self.num_done = 0  # trials of the plan that have ended
        self.progress: Progress | None = None  # None: no trial has started
        self._num_elsewhere = 0
        self._started: tuple[float, int] | None = None
        self._end_s: float | None = None
        self.is_stopping = False
        self.is_over = False  # nothing more will run
        self.fastest = 0.0, ""  # trial of this sweep: samples per second, and which
        self.activity = Activity()

    def take(self, event: Event) -> None:
        """Show an event of the sweep."""
        now_s = time.monotonic()
        self.activity.take(event, now_s)
        self.is_stopping |= isinstance(event, Stopping)

        if isinstance(event, TrialStarted | TrialEnded):
            self.progress = event.progress
            self._count(event.progress.num_done)
            self._end_s = self._expected_end_s(now_s)
        if problem(event):
            self._end_s = None  # until a trial starts or is measured

        if isinstance(event, TrialEnded) and event.samples_per_s:
            self.fastest = max(
                self.fastest,
                (event.samples_per_s, event.title.removeprefix(event.trial_id)),
            )

    def inquiry(self) -> str:
        """Say what the source is to find out, and what is next; empty: it does not."""
        found = self.source and self.source.inquiry
        if not found or self.progress is None:
            return ""
        return in_a_line(found, self._words)

    def _count(self, num_done: int) -> None:
        # A total is counted trial by trial: once is enough, and it does not change.
        if self.total is None and self.source is not None:
            self.total, remaining = self.source.total, self.source.remaining
            if self.total is not None and remaining is not None:
                # The run may hold trials that this experiment no longer asks for.
                self._num_elsewhere = num_done - (self.total - remaining)
        self.num_done = num_done - self._num_elsewhere

    def _expected_end_s(self, now_s: float) -> float | None:
        self._started = self._started or (now_s, self.num_done)
        started_s, num_before = self._started
        num_here = self.num_done - num_before
        if self.total is None or not num_here or self.num_done >= self.total:
            return None
        pace_s = (now_s - started_s) / num_here
        return now_s + pace_s * (self.total - self.num_done)

    def counts(self) -> str:
        """Return in words how many trials have ended, and what they took."""
        progress, now_s = self.progress, time.monotonic()
        if progress is None:
            starts_nodes = self.source is None
            return self.activity.of_nodes(now_s) if starts_nodes else "starting trials"

        of_total = "" if self.total is None else f"/{self.total:,}"
        failed, unfitting = progress.num_failed, progress.num_out_of_memory
        # Always in hours: a figure in another unit would look like a fall.
        hours = progress.used_gpu_s / 3600
        used = number(hours) if hours >= 0.01 else f"{hours:.4f}"

        left = ""
        left_s = round((self._end_s or now_s) - now_s)
        if left_s > 0 and not (self.is_stopping or self.is_over):
            left = f"about {duration(left_s)} left"

        parts = (
            f"{self.num_done:,}{of_total} done",
            f"{progress.num_running:,} running",
            f"{failed:,} failed" if failed else "",
            f"{unfitting:,} out of memory" if unfitting else "",
            f"{used} {self._words.hour}",
            self.activity.of_trial(now_s),
            left,
        )
        return ", ".join(filter(None, parts))


class ProgressView(ABC):
    """A view that shows a sweep while it runs."""

    _shown: AbstractContextManager[object]

    def __init__(self, words: DeviceWords) -> None:
        self._tracker = Tracker(words)

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._shown.__exit__(None, None, None)
        self._tracker.is_over = True
        if error is None and self._tracker.progress is not None:
            self._show_counts()  # the line that stays says where the sweep ended

    def __call__(self, event: Event) -> None:
        """Show an event of the sweep."""
        self._tracker.take(event)
        self._show(event)

    def watch(self, source: TrackedSource) -> None:
        """Set the source of the trials, which knows how many there are."""
        self._tracker.source = source

    @abstractmethod
    def announce(self, text: str) -> None:
        """Show a line that stays."""

    @abstractmethod
    def _show(self, event: Event) -> None: ...

    def _show_counts(self) -> None:
        self.announce(self._tracker.counts())


class LiveView(ProgressView):
    """A block of lines at the bottom of a terminal, redrawn in place."""

    def __init__(self, console: Console, words: DeviceWords) -> None:
        super().__init__(words)
        self._problem: Text | None = None
        self._is_waiting = False
        self._longest = 0
        self._console = console
        self._shown = Live(
            console=console,
            refresh_per_second=REFRESH_PER_S,
            transient=True,
            get_renderable=self._render,
        )

    def _show(self, event: Event) -> None:
        has_place = isinstance(event, TrialStarted | TrialEnded) and (
            event.progress.num_waiting == 0
        )
        if self._is_waiting and (has_place or isinstance(event, NodeUp)):
            self._problem, self._is_waiting = None, False
        if text := problem(event):
            self._is_waiting = isinstance(event, Waiting | NodeSilent)
            self._problem = _on_one_line(one_line(text), style="yellow")

        progress = self._tracker.progress
        if self._tracker.is_stopping and progress and not progress.num_running:
            self._problem = None  # there is nothing left to end

    def announce(self, text: str) -> None:
        """Print a line above the block."""
        self._console.print(
            between_words(one_line(text), self._console.width),
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
        )

    def _render(self) -> RenderableType:
        counts = self._tracker.counts()
        self._longest = max(self._longest, len(counts))
        line: RenderableType = _on_one_line(counts)

        # A bar as wide as the longest line so far leaves: it does not change each time.
        width = min(BAR_WIDTH, self._console.width - self._longest - 1)
        if width >= SHORTEST_BAR:
            done, total = self._tracker.num_done, self._tracker.total
            bar: RenderableType = ProgressBar(
                total=total or 1, completed=done, width=width, pulse=total is None
            )
            if self._console.no_color:  # where rich's bar is invisible while empty
                bar = ("#" * (width * done // (total or 1))).ljust(width, ".")

            block = Table.grid(padding=(0, 1))
            block.add_row(bar, line)
            line = block

        rate, what = self._tracker.fastest
        fastest = f"Fastest here: {number(rate)} samples/s{what}"
        inquiry, notice = self._tracker.inquiry(), self._tracker.activity.notice
        below = [
            _on_one_line(inquiry) if inquiry else None,
            _on_one_line(fastest if rate else ""),
            Text(notice, style="yellow") if notice else self._problem,
        ]
        return Group(line, *filter(None, below))


def _on_one_line(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


class LineView(ProgressView):
    """Progress as plain lines, for pipes and files.

    At most one in a while; and what goes on where nothing is said for longer.
    """

    def __init__(self, console: Console, words: DeviceWords, *, is_quiet: bool) -> None:
        super().__init__(words)
        self._file = console.file
        self._is_quiet = is_quiet
        self._next_line_s = time.monotonic() + LINE_EVERY_S
        self._last = self._notice = ""
        self._printing = threading.Lock()
        self._speaker = Speaker(self._show_counts, self._tracker.activity)
        self._shown = nullcontext() if is_quiet else self._speaker

    def _show(self, event: Event) -> None:
        begins_at_once = isinstance(event, TrialEnded) and (
            event.progress.num_running == 0 < event.progress.num_waiting
        )
        if text := problem(event):
            self._print(text)
        elif time.monotonic() >= self._next_line_s and not begins_at_once:
            self._next_line_s = time.monotonic() + LINE_EVERY_S
            self._show_counts()

    def announce(self, text: str) -> None:
        """Print a line, unless quiet."""
        if not self._is_quiet:
            self._print(text)

    def _show_counts(self) -> None:
        counts = self._tracker.counts()
        inquiry = self._tracker.inquiry()
        text = f"{counts}. {inquiry}" if inquiry else counts
        if text != self._last:
            self.announce(text)
        self._last = text

        notice = self._tracker.activity.notice
        if notice and notice != self._notice:
            self.announce(notice)
        self._notice = notice

    def _print(self, text: str) -> None:
        # Not through rich: it ends the program by itself where a pipe's reader left.
        with self._printing:
            print(one_line(text), file=self._file, flush=True)
        self._speaker.hear()


def problem(event: Event) -> str | None:
    """Say what went wrong, or None where nothing did."""
    match event:
        case TrialEnded() if not event.outcome.is_measurement:
            again = "; it runs again" if event.runs_again else ""
            text = f"Trial {event.title}: {event.outcome}{again}. {event.reason}"
            return text.rstrip()
        case NodeSilent():
            return (
                f"Waiting: Node {event.node} has not answered for {event.silent_s:.0f} "
                f"s. It counts as lost after {event.lost_after_s:g} s."
            )
        case NodeLost():
            return f"Node {event.node} was lost; its trials run again."
        case Waiting():
            return f"Waiting: {event.reason}"
        case Unreadable():
            return event.reason
        case Stopping():
            ending = " (Ctrl-C, or scalelab stop --now, ends them)"
            left = f"{counted(event.num_running, 'trial')} still running"
            how = ending if event.num_running else ""
            return f"Stopping: {event.reason}; {left}{how}."
        case _:
            return None
