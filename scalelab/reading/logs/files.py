"""Reading files while other processes write them: inotify, and whole lines."""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import inotify_simple  # type: ignore[import-untyped]

from scalelab.errors import LaunchError, MissingExtraError, SpecError
from scalelab.inputs.plain_files import open_by_name

_CHANGES = (
    inotify_simple.flags.MODIFY
    | inotify_simple.flags.MOVED_TO
    | inotify_simple.flags.CREATE
)
_LINE_ENDS = re.compile(rb"[\r\n]")
_CHUNK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 20
# A line of a progress bar may be written in pieces; after this time it is taken for
# whole although nothing ends it.
_WHOLE_AFTER_S = 0.002
# DT_FLOAT and DT_DOUBLE of TensorFlow's types
_FLOATS = (1, 2)


class FileWatch:
    """An inotify watch on files; they and their folders need not exist yet.

    The kernel reports only what processes of this host write, on any file system.
    """

    def __init__(self, files: Iterable[Path], folders: Iterable[Path] = ()) -> None:
        self._files = list(files)
        self._folders = list(folders)
        self._directories: dict[int, Path] = {}

        with _refusing("inotify_init1"):
            self._inotify = inotify_simple.INotify()

        self.descriptor: int = self._inotify.fileno()
        try:
            self._watch_nearest()
        except LaunchError:
            self.close()
            raise

    def changed(self) -> set[Path]:
        """Return the watched files and folders that changed since the last call."""
        touched = {
            self._directories[event.wd] / event.name
            for event in self._inotify.read(timeout=0)
            if event.wd in self._directories
        }
        self._watch_nearest()
        # A file may have been made before its folder was watched.
        return {
            *(file for file in self._files if {file, *file.parents} & touched),
            *(
                folder
                for folder in self._folders
                if any(folder in path.parents for path in touched)
            ),
        }

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()

    def _watch_nearest(self) -> None:
        num_watched = -1
        # A folder may have been made before the watch of the one above began: look
        # again, until there is no further one.
        while num_watched != len(self._directories):
            num_watched = len(self._directories)
            inner = (
                Path(folder) for top in self._folders for folder, _, _ in os.walk(top)
            )
            for place in (
                *(file.parent for file in self._files),
                *self._folders,
                *inner,
            ):
                nearest = next(
                    parent for parent in (place, *place.parents) if parent.is_dir()
                )
                if nearest not in self._directories.values():
                    with _refusing("inotify_add_watch"):
                        watch = self._inotify.add_watch(nearest, _CHANGES)
                    self._directories[watch] = nearest


@contextmanager
def _refusing(call: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LaunchError(
            f"{call}: {error.strerror}. Raise fs.inotify.max_user_instances and "
            "fs.inotify.max_user_watches of the node, or end what uses them up."
        ) from error


class FollowedFile:
    """Reads the complete lines of a growing file, each once.

    Lines that it holds already are left out, and those longer than a megabyte. A file
    that does not exist yet counts as empty. A file that was truncated or replaced is
    read from its beginning. A link below ``within``, the folder of a trial, must end
    there.
    """

    def __init__(
        self, path: Path, *, is_table: bool = False, within: Path | None = None
    ) -> None:
        self.path, self._within = path, within
        self.num_lines = 0
        self._partial, self._is_skipping = b"", False
        self._is_redrawn, self._shown = False, b""
        self._descriptor = self._opened()
        self._header = b""
        if self._descriptor is not None:
            self._header = os.pread(self._descriptor, 1 << 16, 0) if is_table else b""
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that were completed since the last call.

        A line ends with a line feed, or with a carriage return. Progress bars begin a
        line with the carriage return that deletes the one before: only the next update
        completes it. So the line at the end that follows one is whole, too.
        """
        header, self._header = self._header, b""
        if header:
            yield _LINE_ENDS.split(header)[0]

        self._keep_up()
        yield from self._completed()
        if self._is_redrawing():
            time.sleep(_WHOLE_AFTER_S)
            yield from self._completed()

        if self._is_redrawing():
            self._shown = self._partial.strip()
            self.num_lines += 1
            yield self._partial

    def _completed(self) -> Iterator[bytes]:
        while self._descriptor is not None and (
            chunk := os.read(self._descriptor, _CHUNK_BYTES)
        ):
            yield from self._split(chunk)

    def _is_redrawing(self) -> bool:
        return self._is_redrawn and self._partial.strip() not in (b"", self._shown)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _split(self, chunk: bytes) -> Iterator[bytes]:
        *whole, rest = _LINE_ENDS.split(chunk)
        for line in whole:
            line, self._partial = self._partial + line, b""
            shown, self._shown = self._shown, b""
            if self._is_skipping:
                self._is_skipping = False
            elif line.strip() not in (b"", shown):
                self.num_lines += 1
                yield line

        if whole:
            self._is_redrawn = chunk[-len(rest) - 1 :][:1] == b"\r"

        self._partial += rest
        if len(self._partial) > _MAX_LINE_BYTES:
            self._partial, self._is_skipping = b"", True

    def _keep_up(self) -> None:
        if self._descriptor is not None:
            known, at = (
                os.fstat(self._descriptor),
                os.lseek(self._descriptor, 0, os.SEEK_CUR),
            )
            try:
                found = self.path.stat()
            except OSError:
                return

            if os.path.samestat(known, found) and found.st_size >= at:
                return

            self.close()
            self._partial, self._is_skipping = b"", False
            self._is_redrawn, self._shown = False, b""

        self._descriptor = self._opened()

    def _opened(self) -> int | None:
        with suppress(FileNotFoundError):
            return open_by_name(self.path, within=self._within)
        return None


class _Scalar(NamedTuple):
    # They sort by time.
    time_s: float
    step: int
    tag: str
    value: float
    file: Path


class EventFiles:
    """Reads the scalars of all event files in a folder and below, each once, as JSON.

    Files that are there already are left out. Steps are those of one file, of which
    most are seen at first. There a scalar beyond all steps so far reports its step, at
    the time of its event. Others only add their value: what is written once an epoch
    may count epochs.
    """

    def __init__(self, path: Path, *, within: Path | None = None) -> None:
        try:
            from tensorboard.backend.event_processing import event_file_loader
            from tensorboard.util import tensor_util
        except ImportError as error:
            missing = MissingExtraError("metrics.tensorboard", "tensorboard")
            raise SpecError(str(missing), code=missing.code) from error

        self.path, self._within = path, within
        self.num_lines = 0
        self._open = event_file_loader.EventFileLoader
        self._number = tensor_util.make_ndarray
        self._old: set[Path] = set()
        self._old = set(self._files())
        self._loaders: dict[Path, Any] = {}
        self._held: list[_Scalar] = []
        self._leading: Path | None = None
        self._steps: dict[str, int] = {}
        self._last_step = -1

    def lines(self) -> Iterator[bytes]:
        """Yield the scalars that were written since the last call, by their time."""
        scalars = self._held + [
            scalar for file in self._files() for scalar in self._new(file)
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

    def close(self) -> None:
        """Let go of all files."""
        self._loaders.clear()

    def _files(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self.path):
            files = {Path(folder, name) for name in names if "tfevents" in name}
            yield from files - self._old

    def _new(self, file: Path) -> Iterator[_Scalar]:
        if file not in self._loaders:
            os.close(open_by_name(file, within=self._within))
            self._loaders[file] = self._open(str(file))
        for event in self._loaders[file].Load():
            for value in event.summary.value:
                tensor, tag = value.tensor, value.tag
                if tensor.dtype in _FLOATS and not tensor.tensor_shape.dim:
                    number = float(self._number(tensor))
                    yield _Scalar(event.wall_time, event.step, tag, number, file)


def _leading(scalars: Sequence[_Scalar]) -> Path | None:
    steps = Counter(
        file for file, _ in {(scalar.file, scalar.step) for scalar in scalars}
    )
    file, number = max(steps.items(), key=lambda count: count[1], default=(None, 0))
    return file if number > 1 else None
