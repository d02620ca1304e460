"""The one way to open files that others may have written.

Inside the directory of a run no folder and no file may be a link. What a user names may
be a link. Both must be regular files: a pipe or a device is refused at once, and so is
a file that is too large. Text that a terminal would obey is made harmless.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

MOST_BYTES = 4 * 2**30
TAIL_BYTES = 1 << 14
# Colours and movements of the cursor, and titles of windows.
_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@contextmanager
def plain_folder(path: Path, *, below: Path, makes: bool = False) -> Iterator[int]:
    """Open a folder and return its descriptor; no folder under ``below`` may be a link.

    Parameters
    ----------
    below
        The directory of a run, or the folder itself. It may be a link.
    makes
        Whether missing folders are created.
    """
    if makes:
        below.mkdir(parents=True, exist_ok=True)

    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(below, flags)
    try:
        for name in path.relative_to(below).parts:
            if makes:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)

            try:
                inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            except NotADirectoryError as error:
                why = f"{name} is a link or no folder"
                raise OSError(errno.ELOOP, why, str(path)) from error

            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(path: Path, *, below: Path) -> None:
    """Create a folder of a run with the missing folders above it."""
    with plain_folder(path, below=below, makes=True):
        pass


def opened(
    path: Path, most_bytes: float = MOST_BYTES, *, below: Path | None = None
) -> BinaryIO:
    """Open a regular file to read it.

    Parameters
    ----------
    below
        The directory of the run that holds the file: no folder between them may be a
        link. None: the folder of the file.

    Raises
    ------
    OSError
        The file is a link, no regular file, or has more than ``most_bytes``.
    """
    descriptor = _open_below(path, os.O_RDONLY, below)
    return os.fdopen(_regular(descriptor, path, most_bytes), "rb")


def opened_by_name(path: Path, most_bytes: float = MOST_BYTES) -> BinaryIO:
    """Open a regular file that a user has named, to read it; see :func:`opened`."""
    return os.fdopen(open_by_name(path, most_bytes), "rb")


def open_by_name(
    path: Path, most_bytes: float = math.inf, *, within: Path | None = None
) -> int:
    """Return the descriptor of a regular file that a user has named.

    It may be a link. ``within`` is the folder of a trial: a link there must end there.
    """
    if within is not None and Path(os.path.normpath(path)).is_relative_to(within):
        path, link = path.resolve(), path
        if not path.is_relative_to(within.resolve()):
            raise OSError(errno.ELOOP, f"it is a link out of {within}", str(link))

    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return _regular(descriptor, path, most_bytes)


def open_to_append(path: Path, *, below: Path | None = None) -> int:
    """Return the descriptor of a regular file to append to; it is created if missing.

    Arguments and errors are those of :func:`opened`.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    return _regular(_open_below(path, flags, below), path)


def _open_below(path: Path, flags: int, below: Path | None) -> int:
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with plain_folder(path.parent, below=below or path.parent) as folder:
        try:
            return os.open(path.name, flags, 0o644, dir_fd=folder)
        except OSError as error:
            why = "it is a link" if error.errno == errno.ELOOP else error.strerror
            raise OSError(error.errno, why, str(path)) from error


def _regular(descriptor: int, path: Path, most_bytes: float = math.inf) -> int:
    """Return the descriptor if it is of a regular file, or close it."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        is_directory = stat.S_ISDIR(status.st_mode)
        why = "it is a directory" if is_directory else "it is no regular file"
    elif status.st_size > most_bytes:
        why = f"it has more than {most_bytes:,} bytes"
    else:
        return descriptor

    os.close(descriptor)
    raise OSError(errno.EINVAL, why, str(path))


def read_file(path: Path, *, below: Path | None = None) -> bytes:
    """Read a regular file; arguments and errors are those of :func:`opened`."""
    with opened(path, below=below) as file:
        return file.read()


def harmless_text(text: str) -> str:
    r"""Return text without what a terminal obeys and files cannot hold.

    Sequences for colours and the like are left out, a carriage return ends a line, and
    other control characters and halves of surrogate pairs become U+FFFD.

    >>> harmless_text("\x1b[31mred\x1b[0m 50%\r100%\n\x07")
    'red 50%\n100%\n\ufffd'
    """
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("\ufffd", text)


def parse_json(
    content: bytes,
    constant: Callable[[str], Any] | None = None,
    *,
    is_compared: bool = False,
) -> Any:
    """Return the values of JSON, their texts harmless."""
    try:
        values = json.loads(content, parse_constant=constant or (lambda name: None))
        # Control characters are escaped in JSON, or are no ASCII.
        is_plain = content.isascii() and b"\\" not in content
        return values if is_plain or is_compared else harmless(values)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError(str(error)) from error  # its repr is all that was read


def checked(value: Any, kind: type[T]) -> T:
    """Return a dataclass made of parsed JSON."""
    # strict Python takes an instance only, strict JSON what would become one
    adapter: TypeAdapter[T] = adapter_of(kind)  # type: ignore[arg-type]
    return adapter.validate_json(json.dumps(value), strict=True)


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return the adapter of a kind; to make it can take 20 ms, so it is kept."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def harmless(value: Any) -> Any:
    """Return JSON values with :func:`harmless_text` of their texts."""
    if isinstance(value, str):
        return harmless_text(value)
    if isinstance(value, dict):
        return {harmless_text(name): harmless(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [harmless(entry) for entry in value]
    return value


def log_tail(
    log: Path,
    *,
    below: Path | None = None,
    num_bytes: int = TAIL_BYTES,
    since: int = 0,
) -> str:
    """Return the end of a log; empty where there is none, or it cannot be read.

    The first ``since`` bytes do not count: what it held before. ``below`` is the
    directory of the run, as in :func:`opened`.
    """
    try:
        with opened(log, math.inf, below=below) as file:
            file.seek(max(since, file.seek(0, 2) - num_bytes))
            return harmless_text(file.read(num_bytes).decode(errors="replace"))
    except OSError:
        return ""


def last_log_lines(
    log: Path, num_lines: int = 8, *, below: Path | None = None, since: int = 0
) -> str:
    """Return the last lines of a log; see :func:`log_tail`."""
    lines = log_tail(log, below=below, since=since).strip().splitlines()
    return "\n".join(lines[-num_lines:])
