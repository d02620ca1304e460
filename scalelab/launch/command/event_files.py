"""Reading TensorBoard's event files while a program writes them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scalelab.errors import MissingExtraError, SpecError


class _Scalar(NamedTuple):
    """A number in an event file; they sort by time."""

    time_s: float
    step: int
    tag: str
    value: float
    file: Path


# DT_FLOAT and DT_DOUBLE of TensorFlow's types
_FLOATS = (1, 2)


class EventFiles:
    """Reads the scalars of all event files in a folder and below, each once, as JSON.

    Steps are those of one file, of which most are seen at first. There a scalar beyond
    all steps so far reports its step, at the time of its event. Others only add their
    value: what is written once an epoch may count epochs.

    Parameters
    ----------
    path
        The folder; it need not exist yet. Files that it holds already are left out.
    """

    is_redrawing = False

    def __init__(self, path: Path) -> None:
        try:
            from tensorboard.backend.event_processing import event_file_loader
            from tensorboard.util import tensor_util
        except ImportError as error:
            missing = MissingExtraError("metrics.tensorboard", "tensorboard")
            raise SpecError(str(missing)) from error
        self.path = path
        self.num_lines = 0
        self._open = event_file_loader.EventFileLoader
        self._number = tensor_util.make_ndarray
        self._old: frozenset[Path] = frozenset()
        self._old = frozenset(self._files())
        self._loaders: dict[Path, Any] = {}
        self._held: list[_Scalar] = []
        self._leading: Path | None = None
        self._steps: dict[str, int] = {}
        self._last_step = -1

    def lines(self) -> Iterator[bytes]:
        """Yield the scalars that were written since the last call, by their time."""
        scalars = self._held + [
            each for file in self._files() for each in self._new(file)
        ]
        self._leading = self._leading or _leading(scalars)
        self._held = [] if self._leading else scalars
        for scalar in sorted(scalars if self._leading else ()):
            self.num_lines += 1
            yield json.dumps(self._reported(scalar)).encode()

    def _reported(self, scalar: _Scalar) -> dict[str, float]:
        found = {scalar.tag: scalar.value}
        if scalar.file != self._leading:
            return found
        goes_back = scalar.step < self._steps.get(scalar.tag, -1)
        self._steps[scalar.tag] = scalar.step
        if scalar.step < self._last_step and not goes_back:
            return found
        self._last_step = scalar.step
        return {**found, "step": scalar.step, "t": scalar.time_s}

    def redrawn_line(self) -> Iterator[bytes]:
        """Yield nothing: no line of an event file is drawn anew."""
        yield from ()

    def close(self) -> None:
        """Let go of all files."""
        self._loaders.clear()

    def _files(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self.path):
            files = {Path(folder, name) for name in names if "tfevents" in name}
            yield from files - self._old

    def _new(self, file: Path) -> Iterator[_Scalar]:
        if file not in self._loaders:
            self._loaders[file] = self._open(str(file))
        for event in self._loaders[file].Load():
            for value in event.summary.value:
                kind = value.tensor.dtype
                if kind in _FLOATS and not value.tensor.tensor_shape.dim:
                    number = float(self._number(value.tensor))
                    yield _Scalar(event.wall_time, event.step, value.tag, number, file)


def _leading(scalars: Sequence[_Scalar]) -> Path | None:
    steps = Counter(file for file, _ in {(each.file, each.step) for each in scalars})
    file, number = max(steps.items(), key=lambda of: of[1], default=(None, 0))
    return file if number > 1 else None
