"""The first picture of the page: time against spending, one point for each row.

The page draws it by itself (``picture.js``); here are the points, the limits, and the
axes with their ticks.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from scalelab.inputs.numerals import duration, duration_ends, number, percent
from scalelab.inputs.outcome import Support
from scalelab.kinds.resources import (
    DEVICE_HOURS,
    MONEY,
    TIME,
    Resource,
    weighed_most,
)
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.report.style import duration_axis, quantity_axis

_LOOKS = {
    Support.MEASURED: "measured",
    Support.INTERPOLATED: "predicted",
    Support.EXTRAPOLATED: "predicted",
    Support.NOT_MEASURED: "believed",
}
_AXIS = ("type", "range", "tickvals", "ticktext")


def picture(result: Recommendation) -> Mapping[str, Any] | None:
    """Return the points and axes; None where no time is known.

    Spending is money where all rows have a price, else device-hours of the chosen
    device: those of others are not to be compared with them.
    """
    chosen, are_priced = result.chosen, all(row.cost for row in result.rows)
    spent = weighed_most([MONEY, DEVICE_HOURS][not are_priced :])
    comparable = result.rows if are_priced else result.alike

    rows = [row for row in comparable if math.isfinite(row.time_s.value)]
    if not rows:
        return None

    scale, unit = spent.unit(chosen.spent[spent].value, result.units(chosen))
    named = are_priced and bool(result.devices)
    points = [_point(row, spent, scale, unit, names_device=named) for row in rows]
    for row, point in zip(rows, [*points], strict=True):
        points += _left_out(result, row, point)

    most_time, most_spent = (
        result.limited.get(resource.name) for resource in (TIME, spent)
    )
    if most_spent is not None:
        most_spent /= scale

    amounts = [point["x"] for point in points]
    return {
        "x": _axis(quantity_axis(_with_limit(amounts, most_spent), unit)),
        "y": _axis(duration_axis(_with_limit(_times(points), most_time), "time")),
        "unit": unit,
        "scale": scale,
        "resource": spent.name,
        "looks": _LOOKS,
        "badge": "EMULATED" if result.is_emulated else "",
        "points": points,
        "most_time": most_time,
        "most_spent": most_spent,
        "interval": percent(result.interval),
    }


def _times(points: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return times, and the ends of intervals but for those of beliefs.

    A belief may be so wide that its interval would leave no room for the others.
    """
    solid = [point for point in points if point["look"] != "believed"] or points
    ends = [point[end] for point in solid for end in ("lo", "hi")]
    return [point["y"] for point in points] + ends


def _point(
    row: OutlookRow, spent: Resource, scale: float, unit: str, *, names_device: bool
) -> dict[str, Any]:
    amount, time = row.spent[spent].value / scale, row.time_s
    label = f"{row.world_size:,} {row.device if names_device else ''}".rstrip()
    return {
        "x": amount,
        "y": time.value,
        "lo": time.lo,
        "hi": time.hi,
        "name": label,
        "look": _LOOKS[Support(row.basis)],
        "is_front": row.is_pareto,
        "is_chosen": row.is_chosen and row.barred_by != "contradicted",
        "title": f"{label}: {duration(time.value)} [{duration_ends(time)}], "
        f"{number(amount)} {unit}, {row.basis}",
    }


def _left_out(
    result: Recommendation, row: OutlookRow, point: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield a point for each run of a row that was measured and left out."""
    place = {"allocation": row.allocation, **asdict(row.batch)}
    doubted = (fact.values for fact in result.facts if fact.kind == "doubted")
    for values in doubted:
        if all(values[name] == place[name] for name in values.keys() & place.keys()):
            time_s, name = values["factor"] * point["y"], f"{point['name']} left out"
            yield {
                **point,
                **dict.fromkeys(("y", "lo", "hi"), time_s),
                **dict.fromkeys(("is_front", "is_chosen"), False),
                "x": values["factor"] * point["x"],
                "name": name,
                "look": "doubted",
                "title": f"{name}: {duration(time_s)} as measured",
            }


def _with_limit(values: Iterable[float], limit: float | None) -> list[float]:
    """Return the finite values, with a limit that is not far from them."""
    known = [value for value in values if math.isfinite(value) and value > 0]
    if limit is not None and min(known) / 4 < limit < 4 * max(known):
        known.append(limit)
    return known


def _axis(layout: Mapping[str, Any]) -> dict[str, Any]:
    return {name: layout[name] for name in _AXIS}
