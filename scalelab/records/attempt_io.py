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
from scalelab.inputs.plain_files import make_folder, parse_json, plain_folder, read_file
from scalelab.records.attempt import AttemptFiles, AttemptResult, AttemptSpec

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


def names_in(directory: Path, run: Path, *, skips_links: bool = False) -> list[str]:
    """Return the names in a folder of a run; a file has no names.

    Raises
    ------
    StoreError
        The folder cannot be read, or is a link that is not to be skipped.
    """
    with suppress(FileNotFoundError), reading(directory):
        try:
            with plain_folder(directory, below=run) as folder:
                return os.listdir(folder)
        except OSError as error:
            is_link = directory.is_symlink() and not skips_links
            if is_link or error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
    return []


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
    path: Path,
    content: bytes,
    *,
    below: Path | None = None,
    durable: bool = True,
    permissions: int = 0o644,
) -> None:
    """Write a whole file or none: a hidden sibling first, then a rename.

    ``below`` is the directory of the run, as in :func:`opened`.

    If ``durable``, the bytes are on the disk before the rename, so that after a power
    cut the file is old or new, never empty. The directory is not flushed as well: that
    would be a second journal commit, and all it saves is the newest name.
    """
    sibling = f".{path.name}.{uuid.uuid4().hex}"
    below = below or path.parent
    with storing(path), plain_folder(path.parent, below=below) as folder:
        try:
            write_new(
                sibling,
                content,
                folder=folder,
                durable=durable,
                permissions=permissions,
            )
            os.replace(sibling, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(sibling, dir_fd=folder)
            raise


def write_new(
    path: str | Path,
    content: bytes,
    *,
    folder: int | None = None,
    durable: bool = False,
    permissions: int = 0o644,
) -> None:
    """Write a file that must not exist yet; ``OSError`` passes through.

    ``folder`` is the descriptor of the folder that ``path`` is relative to.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = os.open(path, flags, permissions, dir_fd=folder)
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
            make_folder(directory.parent, below=files.run)
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
        content, present = encode_json(result.to_json()), None
        with suppress(FileNotFoundError):
            present = read_file(files.result, below=files.run)
        if present is None or (replace and present != content):
            write_atomically(files.result, content, below=files.run)


def read_result(files: AttemptFiles) -> AttemptResult | None:
    """Read the result of an attempt; None while there is none."""
    return _read(files, files.result, AttemptResult.from_json)


def read_spec(files: AttemptFiles) -> AttemptSpec | None:
    """Read the specification of an attempt; None where it was never written."""
    return _read(files, files.spec, AttemptSpec.from_json, is_compared=True)


def _read(
    files: AttemptFiles,
    path: Path,
    made_of: Callable[[Any], T],
    *,
    is_compared: bool = False,
) -> T | None:
    try:
        with reading(path):
            content = read_file(path, below=files.run)
            return made_of(decode_json(content, is_compared=is_compared))
    except FileNotFoundError:
        return None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TornRecordError(
            f"{path} is torn or was changed: {error!r}. Continuing the sweep sets it "
            "aside and runs the trial again."
        ) from error
