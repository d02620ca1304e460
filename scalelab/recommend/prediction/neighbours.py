"""Do allocations fit between their neighbours? A row of a typing error does not."""

from collections import Counter
from typing import Any

import pandas as pd

from scalelab.laws.rows import FitRows, curve_name
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.question.candidates import allocation_label

_UNEVEN = 1.1  # factor between rates beyond which a neighbour is far away
_BATCH = ["local_batch_size", "gradient_accumulation_steps"]


def uneven(rows: FitRows, doubted: pd.DataFrame) -> dict[Any, Fact]:
    """Note allocations measured once that do not fit between their neighbours.

    At the same local batch, each device did clearly more on a larger allocation, or all
    devices together did on a smaller one. Where one is far above several others, it is
    the one that is named. Doubted rows are left out; notes are by the index of the row.
    """
    frame = rows.frame.drop(index=doubted.index)
    frame = frame.assign(rate=frame["global_batch_size"] / frame["step_time_s"])
    found: dict[Any, Fact] = {}
    for key, curve in rows.curves.items():
        places = _places(frame.loc[frame.index.intersection(curve.index)])
        places = places.assign(curve=curve_name(key, rows.curves))
        for _, alike in places.groupby(_BATCH):
            found |= _among([*alike.itertuples(index=False)])
    return found


def _places(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for the runs of a local batch on each number of devices.

    It is the first of them, with the median of their rates.
    """
    runs = rows.assign(row=rows.index).groupby([*_BATCH, "world_size"])
    found = runs[["row", "num_nodes"]].first().reset_index()
    rate, num_runs = runs["rate"].median(), runs["rate"].size()
    found = found.assign(rate=rate.to_numpy(), num_runs=num_runs.to_numpy())
    return found.assign(of_one=found["rate"] / found["world_size"])


def _among(places: list[Any]) -> dict[Any, Fact]:
    low: list[tuple[Any, Any, bool]] = []
    for at, place in enumerate(places):
        larger = max(places[at:], key=lambda neighbour: neighbour.of_one)
        smaller = max(places[: at + 1], key=lambda neighbour: neighbour.rate)
        if larger.of_one > _UNEVEN * place.of_one:
            low.append((place, larger, True))
        elif smaller.rate > _UNEVEN * place.rate:
            low.append((place, smaller, False))

    above = Counter(larger.world_size for _, larger, is_of_one in low if is_of_one)
    named = [
        (larger, place, True) if above[larger.world_size] > 1 else (place, larger, kind)
        for place, larger, kind in low
    ]
    ends = {places[0].world_size, places[-1].world_size}
    return {
        place.row: _fact(place, *rest, is_between=place.world_size not in ends)
        for place, *rest in named
        if place.num_runs == 1
    }


def _fact(place: Any, other: Any, is_of_one: bool, *, is_between: bool) -> Fact:
    rates = [
        neighbour.of_one if is_of_one else neighbour.rate
        for neighbour in (place, other)
    ]
    size = int(place.world_size)
    return Fact.of(
        "uneven",
        world_size=size,
        allocation=allocation_label(size, int(place.num_nodes)),
        local_batch_size=int(place.local_batch_size),
        gradient_accumulation_steps=int(place.gradient_accumulation_steps),
        samples_per_s=float(rates[0]),
        other_world_size=int(other.world_size),
        other_samples_per_s=float(rates[1]),
        is_of_one=is_of_one,
        is_between=is_between,
        curve=place.curve,
    )
