"""Rows that no law is fitted to."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, Self


class LeftOut(NamedTuple):
    """How many rows are unfit for a law, for the same reasons."""

    reasons: tuple[str, ...]
    num_rows: int

    @classmethod
    def counted(cls, reasons: Iterable[tuple[str, ...]]) -> tuple[Self, ...]:
        """Count rows by their reasons; without any a row is fit."""
        return tuple(cls(*found) for found in Counter(filter(None, reasons)).items())

    def __str__(self) -> str:
        return f"{self.num_rows} {', '.join(self.reasons)}"
