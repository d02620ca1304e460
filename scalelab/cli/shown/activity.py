"""What a sweep is at while no trial has ended: it starts nodes, or waits for a step."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scalelab.errors import StoreError
from scalelab.inputs.numerals import duration
from scalelab.inputs.plain_files import log_tail
from scalelab.records.attempt import AttemptFiles
from scalelab.records.control.events import (
    Event,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from scalelab.records.streams import FollowedStream

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
