"""What is said of jobs that end before their work: by the spot market, or a limit."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.inputs.numerals import (
    Interval,
    counted,
    duration,
    duration_ends,
    number,
    percent,
    probability,
)
from scalelab.inputs.problems import Option
from scalelab.kinds.resources import TIME

_PARTS = {"checkpoint": "a checkpoint", "restart": "a restart", "wait": "a new node"}
_DOUBLED = {
    "interruptions": "interruptions twice as often",
    "checkpoint": "checkpoints twice as long",
    "restart": "restarts twice as long",
    "wait": "waits twice as long",
}


def beside(note: Mapping[str, Any]) -> str:
    """Say what one count of devices takes on demand and on the spot market."""
    count = counted(note["world_size"], note["device_word"])
    where = f" of {note['name']}" if note["name"] else ""
    every, currency = "", note["currency"]
    if note["is_gang"]:
        why = ", which loses least" if note["is_best_interval"] else ""
        interval = duration(note["checkpoint_every_s"])
        every = f", with a checkpoint every {interval}{why}"
    usual, spot = _takes(note["on_demand"], currency), _takes(note["spot"], currency)
    return f"{count}{where}: on demand {usual}; on spot {spot}{every}."


def _takes(amounts: Mapping[str, Any], currency: str) -> str:
    parts = []
    if "cost" in amounts:
        cost = Interval(**amounts["cost"])
        ends = f"{number(cost.lo)}-{number(cost.hi)}"
        parts.append(f"{number(cost.value)} {currency} [{ends}]")
    if "time_s" in amounts:
        time = Interval(**amounts["time_s"])
        parts.append(f"{duration(time.value)} [{duration_ends(time)}]")
    return ", ".join(parts or ["the job would not end"])


def pays(note: Mapping[str, Any]) -> str:
    """Say up to how many devices the spot market costs less, and how surely."""
    sentence = "; ".join(_pays(**kind) for kind in note["kinds"])
    return f"Spot pays (at least {percent(note['confidence'])} sure): {sentence}."


def _pays(
    name: str,
    device_word: str,
    currency: str,
    sizes: Sequence[int],
    chances: Sequence[float],
    up_to: int | None,
    never_ends: Sequence[int],
) -> str:
    if up_to is None:
        at, chance = counted(sizes[0], device_word), probability(chances[0])
        words = f"{name} on no count, on {at} its chance is {chance}"
    else:
        words = f"{name} up to {counted(up_to, device_word)}"

    if up_to == sizes[-1]:
        words += ", the most considered"
    elif up_to is not None:
        after = sizes.index(up_to) + 1
        # below what was asked, however it is rounded
        chance = probability(int(100 * chances[after]) / 100)
        words += f", on {sizes[after]:,} its chance is {chance}"

    if never_ends:
        words += f", on {counted(never_ends[0], device_word)} the job would not end"

    return words


def terms(note: Mapping[str, Any]) -> str:
    """Say how often nodes are interrupted, what that costs, and who says so."""
    sentence = " ".join(map(_terms, note["kinds"]))
    return (
        f"{sentence} With the first node that is lost, ranks that wait for one another "
        "all go back to the last checkpoint, and the other nodes are paid meanwhile; a "
        "worker that waits for no other is lost alone. Nodes on demand are taken to "
        "stay."
    )


def _terms(note: Mapping[str, Any]) -> str:
    parts = ", ".join(
        f"{words} takes {duration(note[f'{name}_s'])} ({note['sources'][name]})"
        for name, words in _PARTS.items()
    )
    return f"Spot on {', '.join(note['names'])}: {_how_often(note)}; {parts}."


def _how_often(note: Mapping[str, Any]) -> str:
    if note["every_s"] is not None:
        every_s = duration(note["every_s"])
        return f"a node is interrupted once in {every_s} on average, as given"
    seen = counted(note["num_seen"], "interruption")
    most, sure = number(note["at_most_per_hour"]), percent(note["at_most_sure"])
    return (
        f"{seen} in {number(note['node_hours'])} node-hours of this run, so a node "
        f"has at most {most} an hour ({sure})"
    )


def never_ends(note: Mapping[str, Any]) -> str:
    """Say why no job would end on the spot market."""
    where = f" on {note['name']}" if note["name"] else ""
    parts = ", ".join(
        f"{words} {duration(note[f'{name}_s'])}" for name, words in _PARTS.items()
    )
    how_often = note["every_s"] or 3600 / note["at_most_per_hour"]
    return (
        f"Spot{where} is not compared: the job would not end. A node is interrupted "
        f"every {duration(how_often)}, and {parts} take too long for that."
    )


def hangs_on(note: Mapping[str, Any]) -> str:
    """Say what doubling each of the terms would do."""
    parts = [
        f"{_DOUBLED[name]}, {_takes(amounts, note['currency'])}"
        for name, amounts in note["doubled"].items()
    ]
    least = percent(note["least"])
    if not parts:
        return f"None of these terms, doubled, changes time or cost by {least}."

    others = f"The others, doubled, change less than {least}."
    rest = f" {others}" if len(parts) < len(_DOUBLED) else ""
    return f"What spot takes hangs on: {'; '.join(parts)}.{rest}"


def chained(note: Mapping[str, Any]) -> str:
    """Say what a job's time limit makes of the training, for each kind of device."""
    return " ".join(
        f"{chain_terms(kind)} {smallest_in_one(kind)}" for kind in note["kinds"]
    )


def chain_terms(kind: Mapping[str, Any]) -> str:
    """Say the limit of a job, and what each job of a chain takes beside its work."""
    where = f" on {kind['name']}" if kind["name"] else ""
    start_up, checkpoint = (
        f"{duration(kind[f'{part}_s'])} ({kind['sources'][name]})"
        for part, name in (("start_up", "restart"), ("checkpoint", "checkpoint"))
    )
    return (
        f"Chained jobs of at most {duration(kind['limit_s'])}{where}: each starts up "
        f"in {start_up} and, but for the last, ends with a checkpoint of {checkpoint}; "
        "what they wait for in the queue is not in their times."
    )


def smallest_in_one(kind: Mapping[str, Any]) -> str:
    """Say the smallest count of devices on which one job surely suffices."""
    sure, word = percent(kind["confidence"]), kind["device_word"]
    if kind["smallest"] is None:
        return f"On no count that is listed does one job suffice ({sure} sure)."
    count = counted(kind["smallest"], word)
    return f"{count}: the fewest on which one job suffices ({sure} sure)."


def queue_wait(note: Mapping[str, Any], device_word: str) -> str:
    """Say what jobs like the chosen one waited in the queue."""
    started, count = note["num_started"], counted(note["world_size"], device_word)
    jobs = f"{counted(started, 'job') if started else 'no job'} of about {count}"
    if not started:
        largest = counted(note["largest"], device_word)
        known = f"has started, so its wait is not known (the largest had {largest})"
    elif note["median_s"] is None and note["most_s"] is None:
        waits = dict.fromkeys(map(duration, note["seen_s"]))
        known = f"waited {' to '.join(waits)}, too few to say more"
    else:
        half, most = (
            duration(note[name]) if note[name] is not None else "longer than any so far"
            for name in ("median_s", "most_s")
        )
        known = f"waited {half} (median), eight of ten at most {most}"

    limits = " of any time limit" if note["is_of_any_limit"] and started else ""
    limit = Option(TIME.limit)
    beside = f"; {limit} does not include that" if note["has_deadline"] else ""
    asked = f", as of {note['date']}" if note["date"] else ""
    return f"In the queue{asked}: {jobs}{limits} {known}{beside}."
