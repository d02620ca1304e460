"""Cells, names and lines of a foreign table as messages show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SHOWN_TEXT = 60
_SHOWN_NAMES = 30
_SHOWN_LINES = 6


def shown(text: str) -> str:
    """Return a cell or a name as a message shows it: quoted, and not too long."""
    return repr(text if len(text) <= _SHOWN_TEXT else text[:_SHOWN_TEXT] + "...")


def listed(names: Sequence[str]) -> str:
    """Return names as a message lists them."""
    rest = len(names) - _SHOWN_NAMES
    more = f", ... ({rest} more)" if rest > 0 else ""
    return ", ".join(name[:_SHOWN_TEXT] for name in names[:_SHOWN_NAMES]) + more


def lines_listed(lines: Iterable[int]) -> str:
    """Return numbers of lines as a message lists them.

    >>> lines_listed([3]), lines_listed(range(2, 20))
    ('line 3', 'lines 2, 3, 4, 5, 6, 7 and 12 more')
    """
    every = list(lines)
    first, rest = every[:_SHOWN_LINES], len(every) - _SHOWN_LINES
    more = f" and {rest} more" if rest > 0 else ""
    return f"line{'s' * (len(every) > 1)} {', '.join(map(str, first))}{more}"
