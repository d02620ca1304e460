"""Ask the source of trials, while they run, which of them are to end early."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scalelab.experiment.trial import Trial
from scalelab.plan.source import Decision, TrialSource
from scalelab.records.attempt import AttemptSpec
from scalelab.records.columns import COLUMNS_BY_NAME
from scalelab.records.streams import FollowedStream

LOOK_EVERY_S = 1.0
_EVALUATION = "evaluation"
_POSITION = ("event", "step")
_NO_METRICS = {"samples", "t", *COLUMNS_BY_NAME}
"""What reports hold besides the metrics of the program."""


class Pruning:
    """Tells a source what running trials report and learns which of them are to end.

    It reads the streams that rank 0 of each attempt writes, at most about once a
    second, and nothing at all for a source that does not want to know.
    """

    def __init__(self, source: TrialSource) -> None:
        self._source = source
        self._followed: dict[str, tuple[Trial, FollowedStream]] = {}
        self._next_look_s = 0.0

    def follow(self, spec: AttemptSpec) -> None:
        """Read from now on what an attempt reports, if the source wants to know."""
        if self._source.wants_progress:
            stream = FollowedStream(spec.files.stream, below=spec.files.run)
            self._followed[spec.attempt_id] = spec.trial, stream

    def forget(self, attempt_id: str) -> None:
        """Read no more of an attempt: it has ended."""
        self._followed.pop(attempt_id, None)

    @property
    def deadline_s(self) -> float | None:
        """When :meth:`look` has something to do, on the monotonic clock."""
        return self._next_look_s if self._followed else None

    def look(self) -> Iterator[tuple[str, str]]:
        """Yield the attempts that are to end, each with the reason."""
        if not self._followed or time.monotonic() < self._next_look_s:
            return
        for attempt_id, (trial, stream) in list(self._followed.items()):
            if reason := self._reason_to_end(trial, stream.rows()):
                self.forget(attempt_id)
                yield attempt_id, reason
        self._next_look_s = time.monotonic() + LOOK_EVERY_S

    def _reason_to_end(
        self, trial: Trial, rows: Iterable[Mapping[str, Any]]
    ) -> str | None:
        for step, metrics in worth_telling(rows):
            if self._source.tell_progress(trial, step, metrics) == Decision.END:
                shown = ", ".join(
                    f"{name}={value:.4g}"
                    for name, value in metrics.items()
                    if name not in _NO_METRICS
                )
                seen = f" with {shown}" if shown else ""
                return (
                    f"Ended early by source={self._source.name} at step {step}{seen}."
                )
        return None


def worth_telling(
    rows: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Choose the reports that a source is told: step, and numbers by name.

    Every evaluation is told. Of training steps that follow each other and report the
    same names, only the last one is: there may be thousands of them a second.

    >>> steps = [{"event": "step", "step": n, "loss": 1 / n} for n in (1, 2, 4)]
    >>> list(worth_telling([*steps, {"event": "evaluation", "step": 4, "acc": 0.5}]))
    [(4, {'loss': 0.25}), (4, {'acc': 0.5})]
    """
    held: tuple[int, Mapping[str, float]] | None = None
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int):
            continue

        numbers = {
            name: value
            for name, value in row.items()
            if name not in _POSITION
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
        }

        report = step, numbers

        is_evaluation = row.get("event") == _EVALUATION
        if held is not None and (is_evaluation or held[1].keys() != report[1].keys()):
            yield held

        held = None if is_evaluation else report
        if is_evaluation:
            yield report

    if held is not None:
        yield held
