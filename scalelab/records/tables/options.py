"""What the user adds to a table, and how messages list what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_SHOWN_NAME = 60
_SHOWN_NAMES = 30
_SHOWN_LINES = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportOptions:
    """The options of ``scalelab import``.

    Parameters
    ----------
    column
        The table's column for a column of the observations, e.g.
        ``{"step_time_s": "t_iter"}``; the name may have another unit, or be another
        well-known one (``step_time_ms``, ``tokens_per_s``).
    melt
        Our column that the names of further columns hold, and the one that their cells
        hold, e.g. ``{"world_size": "throughput_samples_per_s"}``.
    decimal
        The decimal sign, a point or a comma; None: as the numbers of the table tell.
    header_row
        The line with the names of the columns, from 1; None: the first that is filled.
    """

    column: Mapping[str, str] = field(default_factory=dict)
    constant: Mapping[str, str] = field(default_factory=dict)
    axis: Sequence[str] = ()
    ignore: Sequence[str] = ()
    melt: Mapping[str, str] = field(default_factory=dict)
    per_device: bool = False
    tokens_per_sample: int | None = None
    decimal: str | None = None
    header_row: int | None = None
    accept_doubts: bool = False


def listed(names: Sequence[str]) -> str:
    """Return names as a message lists them."""
    rest = len(names) - _SHOWN_NAMES
    more = f", ... ({rest} more)" if rest > 0 else ""
    return ", ".join(name[:_SHOWN_NAME] for name in names[:_SHOWN_NAMES]) + more


def lines_listed(lines: Iterable[int]) -> str:
    """Return numbers of lines as a message lists them.

    >>> lines_listed([3]), lines_listed(range(2, 20))
    ('line 3', 'lines 2, 3, 4, 5, 6, 7 and 12 more')
    """
    every = list(lines)
    first, rest = every[:_SHOWN_LINES], len(every) - _SHOWN_LINES
    more = f" and {rest} more" if rest > 0 else ""
    return f"line{'s' * (len(every) > 1)} {', '.join(map(str, first))}{more}"
