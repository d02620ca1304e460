"""The headline of a failure: the exception, the place in the user's code, the message.

>>> print(headline('''Traceback (most recent call last):
...   File "/run/code/1f/train.py", line 7, in <module>
...     batch = load(0)
...   File "/run/code/1f/vit/data.py", line 29, in load
...     assert len(files)
... AssertionError
... ''', code="/run/code/1f"))
AssertionError at vit/data.py:29
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

TRACEBACK_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
# Files of Python's library and of installed packages, and code without a file.
_NOT_THE_USERS = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d[^/]*/|^<")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(:|$)")
_LENGTH = 300
_END_LENGTH = 100
_MAX_LINES = 40


def headline(text: str, code: str | None) -> str | None:
    """Return the headline of a traceback."""
    raised = text.rpartition(TRACEBACK_START)[2]
    lines = raised.splitlines()
    at = index_of_exception(lines)
    if at == len(lines):
        return None
    name, has_message, first = lines[at].partition(":")
    where = place_of(raised, code)
    place = f" at {where}" if where else ""
    if not has_message:
        return f"{name}{place}"
    message = first_sentence([first, *lines[at + 1 :]])
    return f"{name}{place}: {message}" if message else f"{name}{place}"


def index_of_exception(lines: Sequence[str]) -> int:
    """Return the index of the line that names the exception; at most their number.

    Other ranks may write their own lines to the same log in between.
    """
    outer = [at for at, line in enumerate(lines) if line[:1] not in ("", " ")]
    named = (at for at in outer if _EXCEPTION.match(lines[at]))
    return next(named, outer[0] if outer else len(lines))


def place_of(raised: str, code: str | None) -> str | None:
    """Return file and line of the last frame that is the user's; None without one."""
    frames = [(found["path"], found["line"]) for found in _FRAME.finditer(raised)]
    if code is not None:
        root = code + os.sep
        own = [frame for frame in frames if frame[0].startswith(root)]
        if own:
            return f"{own[-1][0].removeprefix(root)}:{own[-1][1]}"
    users = [frame for frame in frames if not _NOT_THE_USERS.search(frame[0])]
    return f"{os.path.basename(users[-1][0])}:{users[-1][1]}" if users else None


def first_sentence(lines: Sequence[str]) -> str:
    """Return the first lines of a message, until what was begun is said, as one.

    >>> first_sentence(["Cannot convert ({", "  0: <tf.Tensor>,", "}) to it.", "See x"])
    'Cannot convert ({ 0: <tf.Tensor>, }) to it.'
    >>> first_sentence(["CUDA error: device-side assert triggered", "Compile with"])
    'CUDA error: device-side assert triggered'
    """
    said = " ".join(" ".join(lines[: num_lines(lines)]).split())
    if len(said) <= _LENGTH:
        return said
    return f"{said[: _LENGTH - _END_LENGTH]} ... {said[-_END_LENGTH:]}"


def num_lines(lines: Sequence[str]) -> int:
    """Return after how many lines what was begun is said; 1 where it never is."""
    said = ""
    for number, line in enumerate(lines[:_MAX_LINES], start=1):
        said = f"{said} {line}".rstrip()
        opened, closed = (sum(map(said.count, signs)) for signs in ("([{", ")]}"))
        if re.search(r"\w", said) and said[-1] not in ":," and opened <= closed:
            return number
    return 1
