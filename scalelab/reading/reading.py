"""What was read of a text that somebody else wrote, how, and what speaks against it."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(Generic[Value]):
    """A value that was read, with its evidence and its doubt, in sentences or names."""

    value: Value
    evidence: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
