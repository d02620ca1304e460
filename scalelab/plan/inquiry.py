"""What a source of trials is to find out: how far it is, and what is next, in facts."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from scalelab.inputs.numerals import DeviceWords, counted, device_time, percent


class Purpose(StrEnum):
    """What a trial is for."""

    FIRST = "first"  # nothing is known before it
    DECIDES = "decides"  # it changes the decision most, for what it costs
    BEYOND = "beyond"  # at twice the devices of the pick, where a law may be wrong
    CONFIRMS = "confirms"  # of the pick itself
    CONTRADICTS = "contradicts"  # of what, as it was measured, would beat the pick


class Ending(StrEnum):
    """Why no further trial is planned."""

    KNOWN = "known"
    NOT_WORTH = "not_worth"  # the next trial costs more than all knowledge would save
    SPENT = "spent"  # nothing that would help fits into what is left of the budget
    EXHAUSTED = "exhausted"  # all was measured that could be told apart


@dataclass(frozen=True, kw_only=True, slots=True)
class NextProbe:
    """The trial that is next, or that a little more budget would buy."""

    allocation: str  # nodes x devices
    world_size: int
    local_batch_size: int
    num_steps: int  # at most
    gpu_hours: float | None  # None: not known before it has run
    purpose: Purpose
    settles: float | None  # share of what is open that it is expected to settle
    settings: str = ""  # empty: all candidates have the same


@dataclass(frozen=True, kw_only=True, slots=True)
class Inquiry:
    """What is being decided, how sure that is, and what is next.

    Parameters
    ----------
    likely
        The numbers of devices that may be best, the likeliest first.
    pick
        The number of devices that would be chosen now; None: nothing is known yet.
    surety
        The probability that the pick is at most 5% worse than the best.
    following
        The next trial; where the budget has ended the plan, what a little more of it
        would buy.
    also
        Trials that are next, too: the first ones of other settings.
    asks_for_link
        The next trial is the first on several nodes, and nothing tells the speed of
        the link between them.
    spent_gpu_hours, grid_gpu_hours
        Device-hours of the trials so far, and of measuring all candidates as often as
        the experiment says; None: not known yet.
    """

    likely: tuple[int, ...] = ()
    pick: int | None = None
    surety: float | None = None
    following: NextProbe | None = None
    ending: Ending | None = None
    also: tuple[NextProbe, ...] = ()
    asks_for_link: bool = False
    spent_gpu_hours: float = 0.0
    grid_gpu_hours: float | None = None


_PURPOSES = {
    Purpose.FIRST: "to begin with",
    Purpose.BEYOND: "to see whether times jump at twice the devices of the pick",
    Purpose.CONFIRMS: "to confirm the pick",
    Purpose.CONTRADICTS: "again, since what it showed contradicts the pick",
}
_ENDINGS = {
    Ending.KNOWN: "known",
    Ending.NOT_WORTH: "a further trial would cost more than it could save one job",
    Ending.SPENT: "the budget is spent",
    Ending.EXHAUSTED: "all that could be told apart was measured",
}


def in_a_line(inquiry: Inquiry, words: DeviceWords) -> str:
    """Say in one line what is open and what is next, or how it ended."""
    open_ = _open(inquiry, words)
    if inquiry.ending is not None:
        return f"{open_}: {_ENDINGS[inquiry.ending]}"
    if inquiry.following is None:
        return f"{open_}: waiting for trials that run"
    return f"{open_}: {_probe(inquiry.following, words)}"


def in_lines(inquiry: Inquiry, words: DeviceWords) -> Iterator[str]:
    """Yield sentences: what is open, what is next and why, and what was saved."""
    line = in_a_line(inquiry, words)
    yield f"{line[:1].upper()}{line[1:]}."

    if inquiry.pick is not None and inquiry.surety is not None:
        yield (
            f"P({counted(inquiry.pick, words.device)}: at most 5% worse than the best) "
            f"= {percent(inquiry.surety)}."
        )
    if inquiry.ending is Ending.SPENT and inquiry.following:
        yield f"A little more would buy {_probe(inquiry.following, words)}."

    for probe in inquiry.also:
        yield f"Also {_probe(probe, words)}."
    if inquiry.asks_for_link:
        yield (
            "It is the first on several nodes, and nothing tells how fast the link "
            "between them is. Where you know it, say so before: between_nodes under "
            "question, or links in the site's profile."
        )
    if inquiry.grid_gpu_hours is not None:
        spent = device_time(inquiry.spent_gpu_hours, words.hour)
        grid = device_time(inquiry.grid_gpu_hours, words.hour)
        yield f"Trials took {spent}; the whole grid would take about {grid}."


def _open(inquiry: Inquiry, words: DeviceWords) -> str:
    if not inquiry.likely:
        return "nothing is known yet"
    *others, last = inquiry.likely
    return " or ".join([*map(str, others), counted(last, words.device)])


def _probe(probe: NextProbe, words: DeviceWords) -> str:
    what = f"{probe.allocation} with local batch {probe.local_batch_size}"
    if probe.settings:
        what += f", {probe.settings}"
    if probe.gpu_hours is not None:
        what += f", {device_time(probe.gpu_hours, words.hour)}"
    else:
        devices = counted(probe.world_size, words.device)
        what += f", a start-up and {probe.num_steps} steps of {devices}"
    if probe.settles is not None:
        return f"{what}, would settle {percent(probe.settles)} of what is open"
    return f"{what}, {_PURPOSES.get(probe.purpose, 'is next')}"
