"""Files of a run directory, which may be somebody else's: read as data and no more.

A link is not followed, a pipe or a device is not waited for, neither to read nor to
append, and what is too large for what it should be is not read. Text that a terminal
would obey is made harmless.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Callable
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


def opened(path: Path, most_bytes: float = MOST_BYTES) -> BinaryIO:
    """Open a regular file to read it."""
    return os.fdopen(_open_regular(path, os.O_RDONLY, most_bytes), "rb")


def open_to_append(path: Path) -> int:
    """Return the descriptor of a regular file to append to; make it where it is not."""
    return _open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)


def _open_regular(path: Path, flags: int, most_bytes: float = math.inf) -> int:
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from error
        raise

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


def read_file(path: Path) -> bytes:
    """Read a regular file; raises as :func:`opened`."""
    with opened(path) as file:
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
    adapter: TypeAdapter[T] = _adapter(kind)  # type: ignore[arg-type]
    return adapter.validate_json(json.dumps(value), strict=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
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


def log_tail(log: Path, *, num_bytes: int = TAIL_BYTES, since: int = 0) -> str:
    """Return the end of a log; empty where there is none, or it cannot be read.

    The first ``since`` bytes do not count: what it held before.
    """
    try:
        with opened(log, most_bytes=math.inf) as file:
            file.seek(max(since, file.seek(0, 2) - num_bytes))
            return harmless_text(file.read(num_bytes).decode(errors="replace"))
    except OSError:
        return ""


def last_log_lines(log: Path, num_lines: int = 8, *, since: int = 0) -> str:
    """Return the last lines of a log; see :func:`log_tail`."""
    lines = log_tail(log, since=since).strip().splitlines()
    return "\n".join(lines[-num_lines:])
