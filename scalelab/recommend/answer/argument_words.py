"""The argument of an answer in words: why not the next row, and what it rests on."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalelab.experiment.trial import PROGRAM
from scalelab.inputs.numerals import (
    counted,
    duration,
    number,
    percent,
    probability,
)
from scalelab.inputs.outcome import Support
from scalelab.inputs.problems import Command, Option
from scalelab.plan.first_check import BOUNDS, UNEXPLAINED
from scalelab.recommend.answer.comparing_words import slower
from scalelab.recommend.answer.facts import Fact

State = Literal["contradicted", "marked", "open", "confirmed"]
STATES: tuple[State, ...] = ("contradicted", "marked", "open", "confirmed")
_STABLE = 0.9  # of the draws, in which the choice is the same
_AS_FAST = 1.05  # a smaller factor is no difference
_AGREE = 0.1  # from their median, by which runs confirm one another
_LEAST_APART = 0.001  # what is closer is written as this
_WRITTEN = 0.005  # a smaller share is written as 0%


@dataclass(frozen=True, kw_only=True, slots=True)
class Ground:
    """Something that an answer rests on: whether it was confirmed, and a phrase."""

    kind: str  # of the fact that says it
    state: State
    text: str


def why_not(values: Mapping[str, Any], device_word: str) -> str:
    """Say what the runner-up takes beside the chosen row, and why not it."""
    than, other = counted(values["than"], device_word), f"{values['world_size']:,}"
    if "device" in values:
        than, other = f"{values['than']:,} {values['own_device']}", _other(values)
    because = _because(values, than)
    return f"Why {than} and not {other}: {_beside(values)}{because}."


def _other(values: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (f"{values['world_size']:,}", values.get("device"))))


def _beside(values: Mapping[str, Any]) -> str:
    speedup, ratio, unit = (values[name] for name in ("speedup", "cost_ratio", "unit"))
    is_one, other = values["world_size"] == 1, _other(values)
    if speedup >= _AS_FAST:
        verb = "is" if is_one else "are"
        pace = f"{verb} {_factor(speedup, values['needed'])} times as fast"
    else:
        verb = "takes" if is_one else "take"
        times = f"{_factor(1 / speedup)} times " if 1 / speedup >= _AS_FAST else ""
        pace = f"{verb} {times}as long"

    share = abs(ratio - 1)
    if unit is None:
        return f"{other} {pace}"
    if share < _WRITTEN:
        return f"{other} {pace} for as much {unit}"

    more = "more" if ratio > 1 else "less"
    return f"{other} {pace} for {percent(share)} {more} {unit}"


def _factor(factor: float, needed: float | None = None) -> str:
    """Write a factor; with a third decimal where the second does not tell it apart."""
    if factor >= 10:
        return number(factor)
    is_alike = needed is not None and f"{factor:.2f}" == f"{needed:.2f}"
    return f"{factor:.3f}" if is_alike else f"{factor:.2f}"


# By the reason why a row is not chosen; ``compared``: the figures say it
_REASONS: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {
    "batch_too_large": lambda values, _: _beyond(values),
    "not_measured_here": lambda values, _: (
        ", but rest on what was not measured here "
        f"({Option('accept_unmeasured', True)})"
    ),
    "not_accepted": lambda values, _: (
        f", but may not be chosen ({values['barred_by']})"
    ),
    "unlikely": lambda values, _: (
        f", and {_meets(values, values['world_size'])} with a chance of "
        f"{probability(values['probability'])}"
    ),
    "pays_too_little": lambda values, _: _pays_too_little(values),
    "not_measured": lambda values, _: "; they would pay, but were not measured",
    "more_pay": lambda values, _: "; more of them still pay",
    "takes_more": lambda values, chosen: (
        f"; {chosen} {_meets(values, values['than'])} already"
        if values["limits"] and values["speedup"] > 1
        else ""
    ),
}


def _because(values: Mapping[str, Any], chosen: str) -> str:
    reason = _REASONS.get(values["reason"])
    return reason(values, chosen) if reason else ""


def _pays_too_little(values: Mapping[str, Any]) -> str:
    is_doubling = values["world_size"] == 2 * values["than"]
    what = "a doubling pays" if is_doubling else "they would pay"
    return f"; {what} from {_factor(values['needed'], values['speedup'])} times on"


def _beyond(values: Mapping[str, Any]) -> str:
    batch, largest = values["global_batch_size"], values["largest"]
    allowed = f" ({Option('max_batch', batch)})" if values["may_ask"] else ""
    why = values["why_largest"]
    return f", but at batch {batch:,}, above {largest:,}, {why}{allowed}"


def _meets(values: Mapping[str, Any], count: int) -> str:
    verb = "meets" if count == 1 else "meet"
    return f"{verb} {' and '.join(values['limits']) or 'the target'}"


def command_of(values: Mapping[str, Any]) -> str:
    """Return the command of the next step; empty where there is none."""
    command = values["command"]
    if command is None:
        return ""
    name, subjects, options = command.values()
    return str(Command(name, tuple(subjects), options))


_STEPS = {
    "ask_what_can_be_met": "asks for what can be met",
    "ask_larger_batch": "lets {count} meet it with a larger batch",
    "measure": "{otherwise}{why}{takes}",
    "add_a_row": "with a row more, of {place}{takes}: {otherwise}{why}",
    "quiet": "measure again while no other program runs there",
    "mend": "mend the program where it is contradicted, then measure again",
    "elsewhere": "measure {count} on a site that has so many (sweep --site)",
    "train": "one run to the target tells whether the samples suffice",
    "submit": "{nothing}: print its job script",
    "nothing": "{nothing}",
}


def why_next(values: Mapping[str, Any], device_word: str) -> str:
    """Say what the next step is for."""
    drawn, otherwise = values.get("drawn"), ""
    nothing = "no trial was found that would change the answer"
    if drawn is not None and is_stable(drawn):
        nothing = "no measurement of step times would change the answer"
    elif drawn is not None:
        otherwise = f"{_draw_otherwise(drawn, device_word)}, and "
        nothing = f"{otherwise}no single trial settles it"

    return _STEPS[values["step"]].format(
        count=counted(values.get("world_size", 1), device_word),
        place=_place(values, device_word) if "allocation" in values else "",
        why=values.get("why"),
        takes=f", {values['takes']}" if values.get("takes") else "",
        otherwise=otherwise,
        nothing=nothing,
    )


def next_step(values: Mapping[str, Any], device_word: str) -> str:
    """Say what to do next."""
    command, why = command_of(values), why_next(values, device_word)
    return f"Next: {command} ({why})." if command else f"Next: {why}."


def _place(values: Mapping[str, Any], device_word: str) -> str:
    place = f"{counted(values['world_size'], device_word)} ({values['allocation']})"
    passes = values["gradient_accumulation_steps"]
    times = f" x {passes}" if passes > 1 else ""
    return f"{place}, local batch {values['local_batch_size']:,}{times}"


def _step_time(values: Mapping[str, Any], _: str) -> tuple[State, str]:
    count, apart = values["num_runs"], values["apart"]
    measured = "declared" if values["is_emulated"] else "measured"
    if values["is_contradicted"]:
        others = "runs" if count > 1 else "rows"
        return "contradicted", f"the step time of the choice, by other {others}"
    if values["basis"] != Support.MEASURED:
        return "open", f"step time {values['basis']}"
    if count < 2:
        return "open", f"step time {measured} once"

    state: State = "confirmed" if apart <= _AGREE else "open"
    within = max(apart, _LEAST_APART)
    return state, f"step time {measured}, {count:,} runs within {within:.1%}"


def _in_draws(values: Mapping[str, Any], _: str) -> tuple[State, str]:
    same, draws = values["num_same"], values["num_draws"]
    state: State = "confirmed" if is_stable(values) else "open"
    return state, f"the same choice in {same:,} of {draws:,} draws"


def is_stable(drawn: Mapping[str, Any]) -> bool:
    """Tell whether nearly all draws choose the same."""
    return bool(drawn["num_same"] >= _STABLE * drawn["num_draws"])


def _draw_otherwise(drawn: Mapping[str, Any], device_word: str) -> str:
    """Say how many draws choose another row, and which."""
    instead = drawn["instead"]
    count = counted(instead["world_size"], device_word)
    if "device" in instead:
        count = f"{instead['world_size']:,} {instead['device']}"
    is_alone = drawn["num_others"] == 1
    which = f"{count} instead" if is_alone else f"otherwise, mostly {count}"
    return f"{drawn['num_otherwise']:,} of {drawn['num_draws']:,} draws choose {which}"


def _submit_now(values: Mapping[str, Any], device_word: str) -> tuple[State, str]:
    place, takes = _place(values, device_word), duration(values["time_s"])
    return "open", f"submit now what was measured: {place}, {takes}"


def _reached(values: Mapping[str, Any], _: str) -> tuple[State, str]:
    runs, target = values["num_runs"], values["target"]
    reached, batch = values["num_reached"], values["global_batch_size"]
    if not runs:
        return "open", f"samples to {target} at batch {batch:,}, between measured ones"
    state: State = "confirmed" if reached == runs else "open"
    tried = f"{counted(runs, 'run')} at batch {batch:,}"
    return state, f"{reached:,} of {tried} reached {target}"


def _times(values: Mapping[str, Any], _: str) -> tuple[State, str]:
    if values["not_in"]:
        return "open", f"times leave out {', '.join(values['not_in'])}"
    held = ["steps", *values["beside_s"]]
    return "confirmed", f"times hold {', '.join(held)}"


def _failed(values: Mapping[str, Any], _: str) -> tuple[State, str]:
    failed = values["num_failed"] + values["num_unfitting"]
    return "open", f"{failed:,} of {counted(values['num_trials'], 'trial')} failed"


def left_out(values: Mapping[str, Any], device_word: str) -> str:
    """Say which row is doubted, by how much, and that the row was left out."""
    count, pace = counted(values["world_size"], device_word), slower(values["factor"])
    if values["num_runs"] > 1:
        place = f"{count}{_of_curve(values)}"
        return f"a run on {place} was {pace} than others; it was left out"

    were = "was" if values["world_size"] == 1 else "were"
    known = " and ".join(f"{size:,}" for size in values["neighbours"])
    than = f"{known or 'the other rows'} suggest"
    once = f"{count}{_of_curve(values)} {were} measured once, {pace} than {than}"
    return f"{once}; that row was left out"


def _of_curve(values: Mapping[str, Any]) -> str:
    return f" ({values['curve']})" if values["curve"] else ""


def bound(values: Mapping[str, Any], device_word: str) -> str:
    """Say the step time that an unsettled trial ended with, as a bound."""
    limit, step_time = BOUNDS.get(values["bound"], "about"), values["step_time_s"]
    place = counted(values["world_size"], device_word)
    return f"{limit} {duration(step_time)} a step on {place}"


def _uneven(values: Mapping[str, Any], device_word: str) -> tuple[State, str]:
    place = f"{counted(values['world_size'], device_word)}{_of_curve(values)}"
    if values["is_between"]:
        return "contradicted", f"{place} do not fit between their neighbours"

    whose = "each" if values["is_of_one"] else "together"
    less = 1 - values["samples_per_s"] / values["other_samples_per_s"]
    pace = f"{percent(abs(less))} {'less' if less > 0 else 'more'}"
    than = f"{values['other_world_size']:,}, measured once"
    return "open", f"{place} did {pace} {whose} than {than}"


def _contradicting(values: Mapping[str, Any], _: str) -> tuple[State, str]:
    count = values["num_configurations"]
    scatter = f"{'scatters' if count == 1 else 'scatter'} up to {values['factor']:.2g}"
    return "contradicted", f"{counted(count, 'configuration')} {scatter}-fold"


def _accepted(values: Mapping[str, Any], _: str) -> tuple[State, str]:
    judged, accepted = values["num_judged"], values["num_accepted"]
    state: State = "confirmed" if judged == accepted > 0 else "open"
    return state, f"{accepted:,} of {counted(judged, 'trained model')} accepted"


def _gap(values: Mapping[str, Any], _: str) -> tuple[State, str]:
    pairs = counted(values["count"], "pair")
    gap = f"{values['metric']} {values['mean']:+.3f}"
    return "confirmed", f"gap to one process: {gap} over {pairs}"


def _always(
    state: State, phrase: Callable[[Mapping[str, Any]], str]
) -> Callable[[Mapping[str, Any], str], tuple[State, str]]:
    return lambda values, _: (state, phrase(values))


# By the kind of a note, in order of weight: its state and its phrase, of its values and
# the word for a device
_PHRASES: Mapping[str, Callable[[Mapping[str, Any], str], tuple[State, str]]] = {
    "ruled_out": _always(
        "contradicted",
        lambda values: ", ".join(
            f"{way} ({why})" for way, why in values["reasons"].items()
        ),
    ),
    "accepted": _accepted,
    "to_submit_now": _submit_now,
    "batch_not_shared": lambda values, word: (
        "open",
        f"no row for {counted(values['world_sizes'][-1], word)}: {values['batches']} "
        "cannot be shared evenly",
    ),
    "replicas_not_divided": lambda values, word: (
        "open",
        f"no row for {counted(values['world_sizes'][-1], word)}: not divided by the "
        f"{values['replica_sizes'][0]:g} devices of a replica",
    ),
    "beyond_the_site": _always(
        "open",
        lambda values: (
            f"{values['allocation']} is more than the site has, {values['site']}"
        ),
    ),
    "nothing_measured": lambda values, word: (
        "open",
        f"nothing measured meets {' and '.join(values['limits']) or 'the target'}; "
        f"{counted(values['world_size'], word)} are a prediction",
    ),
    "step_time": _step_time,
    "choice_in_draws": _in_draws,
    "on_the_edge": lambda values, word: (
        "open",
        f"{counted(values['world_size'], word)} at a confidence of "
        f"{percent(values['probability'])}",
    ),
    "doubted": lambda values, word: ("contradicted", left_out(values, word)),
    "contradicting": _contradicting,
    "uneven": _uneven,
    "equal_losses": _always(
        "contradicted",
        lambda values: (
            f"batches {' and '.join(values['batches'])} print the same losses"
        ),
    ),
    "same_data": _always("contradicted", lambda _: "ranks train on the same batches"),
    "ranks_alone": _always("contradicted", lambda _: "each rank trains a model alone"),
    "samples_unexplained": _always(
        "contradicted", lambda _: "the samples asked for, by those drawn"
    ),
    "later_differs": lambda values, _: (
        ("contradicted", "how long later steps take")
        if values["why"] == UNEXPLAINED
        else ("confirmed", "later steps, by a long trial")
    ),
    "whole_data": lambda values, _: (
        "contradicted" if values["in_epochs"] else "open",
        f"each rank walks the whole {'' if values['in_epochs'] else 'of its '}data set",
    ),
    "own_rate_differs": _always(
        "contradicted",
        lambda values: (
            f"the program's own rate in {counted(values['num_trials'], 'trial')}"
        ),
    ),
    "import_doubted": _always("contradicted", lambda _: "the import doubted the table"),
    "target_not_reached": _always(
        "contradicted",
        lambda values: f"{values['target']}, by {counted(values['num_runs'], 'run')}",
    ),
    "target_reached": _reached,
    "accuracy_gap": _gap,
    "accuracy_not_measured": _always(
        "open",
        lambda values: (
            f"accuracy at batch {values['global_batch_size']:,} (assumes "
            f"{values['amount']})"
        ),
    ),
    "target_not_measured": _always(
        "open",
        lambda values: f"samples to {values['target']} (assumes {values['amount']})",
    ),
    "times_contain": _times,
    "believed": _always(
        "open", lambda values: f"believed: {' and '.join(values['beliefs'])}"
    ),
    "no_repeats": _always("open", lambda _: "nothing was measured twice"),
    "few_readings": _always(
        "open", lambda values: f"how far {counted(values['num_runs'], 'run')} scatter"
    ),
    "not_settled": lambda values, word: (
        "marked",
        f"{counted(values['count'], 'trial')} had not settled, {bound(values, word)}",
    ),
    "ended_early": _always(
        "open",
        lambda values: (
            f"steps beyond {values['num_steps']} of {values['asked_steps']}, where the "
            "program ended"
        ),
    ),
    "not_witnessed": _always("marked", lambda _: "whether the ranks work together"),
    "samples_not_witnessed": _always("marked", lambda _: "the samples of a step"),
    "incomplete_sweep": _always(
        "open", lambda values: f"{counted(values['num_trials'], 'trial')} to come"
    ),
    "failures": _failed,
    "one_process": _always("open", lambda _: "how several processes would do"),
    "learned_from": _always(
        "open", lambda values: f"step times learned from {', '.join(values['runs'])}"
    ),
}


def phrase(fact: Fact, device_word: str) -> tuple[State, str]:
    """Return the state of what a note is about, and a phrase that says it."""
    state, text = _PHRASES[fact.kind](fact.values, device_word)
    named = f" ({fact.values[PROGRAM]})" if PROGRAM in fact.values else ""
    return state, f"{text}{named}"


def ground(kind: str, values: Mapping[str, Any], device_word: str) -> str:
    """Say in a sentence what a note has confirmed, contradicted or left open."""
    state, text = phrase(Fact(kind, values), device_word)
    return f"{state.capitalize()}: {text}."


def grounds(
    facts: Sequence[Fact], device_word: str, trials: str, *, is_whole: bool
) -> tuple[Ground, ...]:
    """Return what an answer rests on: contradicted first, then open, then confirmed.

    Of several notes of one kind the first stands for all. ``trials`` says how many were
    ignored; none, if ``is_whole``.
    """
    found = [*_of_facts(facts, device_word)]
    # both say that some are
    is_said = any(ground.kind in ("failures", "doubted") for ground in found)
    if not (is_whole and is_said):
        state: State = "confirmed" if is_whole else "open"
        found.append(Ground(kind="ignored", state=state, text=trials))
    return tuple(sorted(found, key=lambda ground: STATES.index(ground.state)))


def _of_facts(facts: Sequence[Fact], device_word: str) -> Iterator[Ground]:
    """Yield a ground for each kind of fact. Of other programs contradictions count."""
    by_kind: dict[str, list[Fact]] = {}
    for fact in facts:
        if PROGRAM not in fact.values or (
            fact.kind in _PHRASES and phrase(fact, device_word)[0] == STATES[0]
        ):
            by_kind.setdefault(fact.kind, []).append(fact)

    if any(f.values["basis"] == Support.MEASURED for f in by_kind.get("step_time", ())):
        by_kind.pop("to_submit_now", None)  # it is the choice itself

    for kind in _PHRASES:
        if alike := by_kind.get(kind):
            state, text = phrase(alike[0], device_word)
            unnamed = [fact.values["count"] for fact in by_kind.get(f"more_{kind}", [])]
            more = len(alike) - 1 + sum(unnamed)
            others = f", and {more:,} more" if more else ""
            yield Ground(kind=kind, state=state, text=f"{text}{others}")


def answers_held(note: Mapping[str, Any]) -> str:
    """Say how often answers held for the jobs that were followed."""
    jobs, moved = counted(note["num_jobs"], "job"), note["widened_by"]
    changed = "as the laws have them"
    if moved:
        where = "outwards" if moved > 0 else "inwards"
        changed = f"moved {where} by {percent(math.expm1(abs(moved)))} at both ends"
    were, mass = "was" if note["num_jobs"] == 1 else "were", percent(note["mass"])
    return (
        f"Of {jobs} that {were} followed on such devices, {note['num_held']:,} had a "
        f"step time within the {mass} interval of the answer; intervals of step times "
        f"are {changed}."
    )
