"""Do allocations fit between their neighbours? A row of a typing error does not."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

import pandas as pd

from scalelab.laws.rows import FitRows
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.question.candidates import allocation_label

_UNEVEN = 1.1  # factor between rates beyond which a neighbour is far away
_BATCH = ["local_batch_size", "gradient_accumulation_steps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """The runs on one number of devices with one local batch."""

    index: Any
    world_size: int
    num_nodes: int
    samples_per_s: float
    count: int
    batch: dict[str, int]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> Self:
        first = rows.iloc[0]
        return cls(
            index=first.name,
            world_size=int(first["world_size"]),
            num_nodes=int(first["num_nodes"]),
            samples_per_s=float(rows["rate"].median()),
            count=len(rows),
            batch={name: int(first[name]) for name in _BATCH},
        )

    @property
    def of_one(self) -> float:
        return self.samples_per_s / self.world_size


def uneven(rows: FitRows, doubted: pd.DataFrame) -> dict[Any, Fact]:
    """Note allocations measured once that do not fit between their neighbours.

    At the same local batch, each device did clearly more on a larger allocation, or all
    devices together did on a smaller one. Where one is far above several others, it is
    the one that is named. Doubted rows are left out; notes are by the index of the row.
    """
    frame = rows.frame.drop(index=doubted.index)
    frame = frame.assign(rate=frame["global_batch_size"] / frame["step_time_s"])
    found: dict[Any, Fact] = {}
    for curve in rows.curves.values():
        known = frame.loc[frame.index.intersection(curve.index)]
        for _, alike in known.groupby(_BATCH):
            by_size = alike.groupby("world_size")
            found |= _among([_Place.of(each) for _, each in by_size])
    return found


def _among(places: list[_Place]) -> dict[Any, Fact]:
    low: list[tuple[_Place, _Place, bool]] = []
    for at, place in enumerate(places):
        larger = max(places[at:], key=lambda each: each.of_one)
        smaller = max(places[: at + 1], key=lambda each: each.samples_per_s)
        if larger.of_one > _UNEVEN * place.of_one:
            low.append((place, larger, True))
        elif smaller.samples_per_s > _UNEVEN * place.samples_per_s:
            low.append((place, smaller, False))
    above = Counter(larger.world_size for _, larger, is_of_one in low if is_of_one)
    named = [
        (larger, place, True) if above[larger.world_size] > 1 else (place, larger, kind)
        for place, larger, kind in low
    ]
    return {each[0].index: _fact(*each) for each in named if each[0].count == 1}


def _fact(place: _Place, other: _Place, is_of_one: bool) -> Fact:
    rates = [p.of_one if is_of_one else p.samples_per_s for p in (place, other)]
    return Fact.of(
        "uneven",
        world_size=place.world_size,
        allocation=allocation_label(place.world_size, place.num_nodes),
        **place.batch,
        samples_per_s=rates[0],
        other_world_size=other.world_size,
        other_samples_per_s=rates[1],
        is_of_one=is_of_one,
    )
