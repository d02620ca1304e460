"""What is compared in an answer, in words: rows, devices, and limits with rows."""

from collections.abc import Mapping
from typing import Any

from scalelab.inputs.numerals import (
    Interval,
    counted,
    device_time,
    duration,
    duration_ends,
    number,
    percent,
    probability,
)
from scalelab.inputs.outcome import Support
from scalelab.kinds.resources import CARBON, ENERGY, MONEY, TIME

_FASTER = 1.05  # a factor that is written as 1.1 or more
_MOST_PROGRAMS = 4  # that are named with their times
_LEAST = {
    TIME.name: "Shortest deadline",
    MONEY.name: "Cheapest",
    ENERGY.name: "Least energy",
    CARBON.name: "Least carbon",
}


def slower(factor: float) -> str:
    """Say by which factor one is slower than another, or faster."""
    if factor > 1:
        return f"{factor:.2g} times slower"
    return f"{1 / factor:.2g} times faster"


def faster_for(speedup: float, cost_ratio: float) -> str:
    """Say what one row takes beside another, e.g. ``3.8 times faster for 4% more``."""
    more = "less" if cost_ratio < 1 else "more"
    pace = slower(1 / speedup) if max(speedup, 1 / speedup) >= _FASTER else "as fast"
    return f"{pace} for {percent(abs(cost_ratio - 1))} {more}"


def faster_device(values: Mapping[str, Any]) -> str:
    """Say what a row on another kind of device takes beside the chosen one."""
    what = f"{counted(values['world_size'], 'device')} of {values['name']}"
    gain = faster_for(values["speedup"], values["cost_ratio"])
    return f"{what} ({values['basis']}): {gain}."


def programs(times_s: Mapping[str, float], devices: str) -> str:
    """Say how long the job takes by each program, the fastest first."""
    fastest_first = sorted(times_s, key=times_s.__getitem__)
    taken = [f"{name} {duration(times_s[name])}" for name in fastest_first]
    if (left := len(taken) - _MOST_PROGRAMS) > 1:
        taken[_MOST_PROGRAMS:] = [f"and {left} more, up to {taken[-1]}"]
    return f"Programs on {devices}, each with its best batch: {', '.join(taken)}."


def nearest_limits(values: Mapping[str, Any], device_word: str) -> str:
    """Say which limits can be met where nothing meets those that were asked."""
    sentences_so_far = []
    for limit in values["limits"]:
        title = _LEAST.get(limit["resource"], f"Fewest {limit['resource']}")
        within = f" within {' and '.join(limit['within'])}" if limit["within"] else ""

        asked = f"{title.replace('_', '-')} at {percent(values['confidence'])}{within}"
        if limit["amount"] is None:
            most = probability(limit["most_likely"])
            what = "that is kept" if limit["within"] else "the target is reached"
            sentences_so_far.append(
                f"{asked}: none; {what} with a chance of {most} at most."
            )
            continue

        size, place = limit["world_size"], counted(limit["world_size"], device_word)
        if limit.get("device"):
            place = f"{counted(size, 'device')} of {limit['device']}"

        sentences_so_far.append(
            f"{asked}: {limit['needed']}, on {place} ({limit['allocation']})."
        )
    return " ".join(sentences_so_far)


def against_devices(values: Mapping[str, Any]) -> str:
    """Say how surely the chosen device is better than each other one."""
    words = [
        f"{word} than {', '.join(f'{n}: {probability(p)}' for n, p in by_name.items())}"
        for word, by_name in values["chances"].items()
    ]
    return f"Chance that {values['name']} is {'; '.join(words)}."


def campaign(values: Mapping[str, Any], device_word: str) -> str:
    """Say how to run many runs on a pool, beside the plans that come to mind first."""
    plan, limits = values["plan"], " and ".join(values["limits"])
    runs, pool = (
        counted(values["num_runs"], "run"),
        counted(values["pool"], device_word),
    )
    shares = "; ".join(_share(share, device_word) for share in plan["shares"])
    chance = ""
    if limits and values["holds"]:
        chance = f" Chance of meeting {limits}: {probability(plan['probability'])}."
    elif limits:
        chance = f" No plan surely meets {limits}; this one comes closest."
    return (
        f"Campaign of {runs} on {pool}: {shares}. {_takes(values, plan)}.{chance} "
        f"Instead, one after another on {_beside(values, 'one_after_another')}; as "
        f"many as fit, on {_beside(values, 'on_the_fewest')}. No plan takes less than "
        f"{duration(values['lower_bound_s'])}. All that follows is about one run."
    )


def _share(share: Mapping[str, Any], device_word: str) -> str:
    count, side_by_side = share["num_runs"], share["side_by_side"]
    how = f"{side_by_side} side by side"
    if side_by_side in (1, count):
        how = "one after another" if side_by_side < count else "at once"
    is_measured = share["basis"] == Support.MEASURED
    basis = "" if is_measured else f", which is {share['basis']}"
    size = counted(share["world_size"], device_word)
    return f"{count} on {size} each{basis}, {how}"


def _beside(values: Mapping[str, Any], name: str) -> str:
    (share,) = values[name]["shares"]
    return f"{share['world_size']}: {_takes(values, values[name])}"


def _takes(values: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    time = Interval(**plan["time_s"])
    hours = device_time(plan["gpu_hours"]["value"], values["hour_word"])
    words = f"{duration(time.value)} [{duration_ends(time)}], {hours}"
    if cost := plan.get(MONEY.field):
        words += f", {number(cost['value'])} {values['currency']}"
    return words
