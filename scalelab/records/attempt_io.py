"""Atomic reading and writing of a run's files: no reader sees half of one."""

import errno
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from scalelab.errors import DiskFullError, StoreError
from scalelab.records.attempt import AttemptFiles, AttemptResult, AttemptSpec
from scalelab.records.plain_files import parse_json, read_file

T = TypeVar("T")


class TornRecordError(StoreError):
    """A file of an attempt exists but cannot be parsed."""


_FULL = "Free space (or raise the quota) and run the same command again: it resumes."
_FORBIDDEN = "Give yourself write permission there or choose another directory."
# What an operating system calls a disk, a quota or a limit that leaves no space.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMEDIES = {
    **dict.fromkeys(NO_SPACE, _FULL),
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.ENOTEMPTY: "Another process works there. One driver writes a run at a time. "
    "Rerun once that has ended.",
}


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal to write ``path`` into a `StoreError`."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        remedy = _REMEDIES.get(code, "Check the file system and the path, then rerun.")
        kind = DiskFullError if code in NO_SPACE else StoreError
        raise kind(
            f"{path} cannot be written: {error.strerror or error}. {remedy}"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a refusal to read ``path`` into a `StoreError`; absence passes through."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read: {error.strerror or error}. Give yourself read "
            "permission or check the file system."
        ) from error


def existing_place(path: Path) -> Path:
    """Return an absolute path, or its nearest parent that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


def is_taken(directory: Path) -> bool:
    """Tell whether the directory of a run exists and is not empty."""
    try:
        place = existing_place(directory)
        if place != directory:
            if not place.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            return False
        return not directory.is_dir() or any(directory.iterdir())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(
            f"{directory} cannot hold a run: {reason}. Choose another directory with "
            "--run."
        ) from error


def encode_json(values: Any) -> bytes:
    """Encode plain values as one line of JSON; NaN and infinities become null.

    Examples
    --------
    >>> encode_json({"loss": float("nan"), "step": 3})
    b'{"loss":null,"step":3}'
    """
    try:
        return json.dumps(values, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return encode_json(_without_non_finite(values))
    except TypeError as error:
        raise StoreError(
            f"A value cannot be recorded: {error}. Records hold text, numbers, flags, "
            "lists and mappings; convert it first, e.g. with .item() or .tolist()."
        ) from error


def _without_non_finite(values: Any) -> Any:
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {name: _without_non_finite(value) for name, value in values.items()}
    if isinstance(values, Sequence) and not isinstance(values, str):
        return [_without_non_finite(value) for value in values]
    return values


def decode_json(content: bytes, *, is_compared: bool = False) -> Any:
    """Decode JSON of a record, refusing NaN and Infinity; see :func:`parse_json`."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return parse_json(content, refuse, is_compared=is_compared)


def write_atomically(
    path: Path, content: bytes, *, durable: bool = True, permissions: int = 0o644
) -> None:
    """Write a whole file or none: a hidden sibling first, then a rename.

    If ``durable``, the bytes are on the disk before the rename, so that after a power
    cut the file is old or new, never empty. The directory is not flushed as well: that
    would be a second journal commit, and all it saves is the newest name.
    """
    sibling = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with storing(path):
        try:
            write_new(sibling, content, durable=durable, permissions=permissions)
            os.replace(sibling, path)
        except OSError:
            with suppress(OSError):
                sibling.unlink()
            raise


def write_new(
    path: Path, content: bytes, *, durable: bool = False, permissions: int = 0o644
) -> None:
    """Write a file that must not exist yet; ``OSError`` passes through."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = os.open(path, flags, permissions)
    try:
        write_all(descriptor, content)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte; a full disk may take a few of them before it refuses."""
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, content[written:])


def append_all(descriptor: int, content: bytes) -> None:
    """Append all bytes or none to a file open for appending.

    For one writer. ``OSError`` passes through.
    """
    size = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        write_all(descriptor, content)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)  # a full disk took a part
        raise


def write_spec(files: AttemptFiles, content: bytes) -> None:
    """Make an attempt's directory and write its specification, without flushing."""
    directory = files.directory
    with storing(directory):
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir()
        except FileExistsError:
            raise StoreError(
                f"{directory} exists: this attempt was begun before. Take the number "
                "from next_attempt_number."
            ) from None
        try:
            write_new(files.spec, content)
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def write_result(
    files: AttemptFiles, result: AttemptResult, *, replace: bool = False
) -> None:
    """Record how an attempt ended, on disk before the function returns.

    The first result of an attempt stands: a node that comes back late, or a task that
    runs twice, changes nothing.
    """
    with storing(files.result):
        content, is_there = encode_json(result.to_json()), files.result.exists()
        if not is_there or (replace and files.result.read_bytes() != content):
            write_atomically(files.result, content)


def read_result(files: AttemptFiles) -> AttemptResult | None:
    """Read the result of an attempt; None while there is none."""
    return _read(files.result, AttemptResult.from_json)


def read_spec(files: AttemptFiles) -> AttemptSpec | None:
    """Read the specification of an attempt; None where it was never written."""
    return _read(files.spec, AttemptSpec.from_json, is_compared=True)


def _read(
    path: Path, made_of: Callable[[Any], T], *, is_compared: bool = False
) -> T | None:
    try:
        with reading(path):
            return made_of(decode_json(read_file(path), is_compared=is_compared))
    except FileNotFoundError:
        return None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TornRecordError(
            f"{path} is torn or was changed: {error!r}. Continuing the sweep sets it "
            "aside and runs the trial again."
        ) from error
