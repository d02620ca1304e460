"""What a user says of a foreign table before it is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalelab.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportOptions:
    """What is said of a table besides what it says itself.

    Parameters
    ----------
    column
        The table's column for a column of the observations, e.g.
        ``{"step_time_s": "t_iter"}``; the name may have another unit, or be another
        well-known one (``step_time_ms``, ``tokens_per_s``).
    melt
        Our column that the names of further columns hold, and the one that their cells
        hold, e.g. ``{"world_size": "throughput_samples_per_s"}``.
    tokens_per_sample
        The throughput counts tokens, so many to a sample; None: it counts samples.
    """

    column: Mapping[str, str] = field(default_factory=dict)
    constant: Mapping[str, str] = field(default_factory=dict)
    axis: Sequence[str] = ()
    ignore: Sequence[str] = ()
    melt: Mapping[str, str] = field(default_factory=dict)
    per_device: bool = False
    tokens_per_sample: int | None = None
    accept_doubts: bool = False

    def __post_init__(self) -> None:
        """Refuse a number of tokens that is none, and more than one melting."""
        tokens = self.tokens_per_sample
        if tokens is not None and (isinstance(tokens, bool) or not tokens >= 1):
            raise SpecError(
                f"tokens_per_sample={tokens!r} must be a whole number from 1: how many "
                "tokens one sample has."
            )
        if len(self.melt) > 1:
            raise SpecError(
                f"melt names {len(self.melt)} columns, {', '.join(self.melt)}. The "
                "names of a wide table's columns hold one thing; name one."
            )
