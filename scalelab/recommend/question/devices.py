"""Kinds of devices: what is compared in one answer, each with laws of its own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from scalelab.inputs.document import Scalar
from scalelab.laws.rows import cells

DEVICE_COLUMNS = ("node_group", "device_name", "device_type")


def has_value(frame: pd.DataFrame, name: str, value: Scalar) -> pd.Series:
    """Tell in which rows a column has a value, as text; a missing one has none."""
    return frame[name].astype("string").eq(str(value)).fillna(False)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceKind:
    """Devices of one type and model in one node group; empty: the rows do not say."""

    node_group: str = ""
    device_name: str = ""
    device_type: str = ""
    label: str = ""  # by which it is told from the others of an answer

    @property
    def names(self) -> tuple[str, ...]:
        """All that it may be called."""
        usual = {"cuda": "gpu"}.get(self.device_type, "")
        return (self.node_group, self.device_name, self.device_type, usual)

    def closeness(self, *wanted_words: str) -> int | None:
        """Return by how many words it is named; None: something else is named."""
        wanted = [_words(name) for name in wanted_words if name]
        known = [*map(_words, self.names)]
        if all(
            words_wanted and any(words_wanted <= words for words in known)
            for words_wanted in wanted
        ):
            return len(set().union(*wanted))
        return None

    def columns(self) -> dict[str, str]:
        """Return the columns that tell its rows, with their values."""
        return {n: getattr(self, n) for n in DEVICE_COLUMNS if getattr(self, n)}

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of these devices, and those that do not say of which."""
        for name, value in self.columns().items():
            frame = frame[frame[name].isna() | has_value(frame, name, value)]
        return frame


def _words(name: str) -> set[str]:
    return {*re.findall(r"[a-z0-9.]+", name.lower())}


def kinds_of(frame: pd.DataFrame) -> tuple[DeviceKind, ...]:
    """Return the kinds of devices of some rows, sorted by what they are called.

    Rows that say less belong to all that say the same and more.
    """
    columns = [cells(frame, name) for name in DEVICE_COLUMNS]
    named = {
        tuple("" if pd.isna(value) else str(value) for value in row)
        for row in zip(*columns, strict=True)
    }
    named = named or {("",) * len(columns)}
    full = [names for names in named if not any(_adds(other, names) for other in named)]
    return _labelled(sorted(full))


def _adds(other: Sequence[str], one: Sequence[str]) -> bool:
    """Tell whether one says the same as another, but less."""
    pairs = [*zip(one, other, strict=True)]
    return one != other and all(mine in ("", theirs) for mine, theirs in pairs)


def _labelled(named: Sequence[Sequence[str]]) -> tuple[DeviceKind, ...]:
    labels = [" ".join(filter(None, names)) for names in named]
    for names in map(list, zip(*named, strict=True)):
        if all(names) and len({*names}) == len(names):
            labels = names
            break
    return tuple(
        DeviceKind(**dict(zip(DEVICE_COLUMNS, names, strict=True)), label=label)
        for names, label in zip(named, labels, strict=True)
    )
