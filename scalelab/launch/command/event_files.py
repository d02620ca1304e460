"""Reading TensorBoard's event files while a program writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalelab.errors import MissingExtraError, SpecError

# DT_FLOAT and DT_DOUBLE of TensorFlow's types
_FLOATS = (1, 2)


class EventFiles:
    """Reads the scalars of all event files in a folder and below, each once, as JSON.

    A scalar beyond all steps so far reports its step, at the time of its event. Others
    only add their value: what is written once an epoch may count epochs.

    Parameters
    ----------
    path
        The folder; it need not exist yet. Files that it holds already are left out.

    Raises
    ------
    SpecError
        If TensorBoard's reader is not installed.
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
        self._steps: dict[tuple[Path, str], int] = {}
        self._last_step = -1

    def lines(self) -> Iterator[bytes]:
        """Yield the scalars that were written since the last call, by their time."""
        scalars = [each for file in self._files() for each in self._new_in(file)]
        for time_s, step, tag, value, file in sorted(scalars):
            self.num_lines += 1
            goes_back = step < self._steps.get((file, tag), -1)
            self._steps[file, tag] = step
            found: dict[str, Any] = {tag: value}
            if step >= self._last_step or goes_back:
                found |= {"step": step, "t": time_s}
                self._last_step = step
            yield json.dumps(found).encode()

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

    def _new_in(self, file: Path) -> Iterator[tuple[float, int, str, float, Path]]:
        if file not in self._loaders:
            self._loaders[file] = self._open(str(file))
        for event in self._loaders[file].Load():
            for value in event.summary.value:
                kind = value.tensor.dtype
                if kind in _FLOATS and not value.tensor.tensor_shape.dim:
                    number = float(self._number(value.tensor))
                    yield event.wall_time, event.step, value.tag, number, file
