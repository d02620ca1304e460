"""The answer in sentences, made once for the terminal and for the report."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.inputs.numerals import (
    counted,
    device_time,
    duration,
    duration_ends,
    percent,
    probability,
)
from scalelab.kinds.resources import RESOURCES, Units
from scalelab.laws.left_out import LeftOut
from scalelab.plan.memory_limits import limits_in_words
from scalelab.recommend.answer.comparing_words import faster_for
from scalelab.recommend.answer.evidence import BASELINE, WayRow
from scalelab.recommend.answer.note_words import (
    judged_times,
    setting_in_words,
    settings_in_words,
)
from scalelab.recommend.answer.reasons import how_many_ignored
from scalelab.recommend.answer.recommendation import Knee, NextTrial, Recommendation
from scalelab.recommend.answer.rows import OutlookRow

_CERTAIN = 0.995  # chance that is not said
_LIKELY = 0.5  # chance of meeting the limits that is named


def sentences(result: Recommendation) -> dict[str, list[str]]:
    """Return all that the answer says apart from its table, by subject, in order."""
    row, knee, trial = result.chosen, result.knee, result.next_trial
    time = f"{duration(row.time_s.value)} [{duration_ends(row.time_s)}]"
    given = f" if {result.condition}" if result.condition else ""
    chance = _chance(result, row)
    emulated = "Emulated: times are declared, nothing here was measured."
    hours, word = result.sweep_gpu_hours, result.hour_of_all
    besides = ", ".join(["", *spent_in_words(result.sweep_spent, result.units(row))])
    spent = f"Sweep cost {device_time(hours or 0, word)}{besides}."
    now = next((f.values for f in result.facts if f.kind == "to_submit_now"), {})
    proposal = [] if trial is None else [_proposal(result, trial, now)]

    return {
        "campaign": [*result.said("campaign")],
        "unmet": _unmet(result),
        "nearest": [*result.said("nearest")],
        "use": _use(result),
        "settings": _settings(result),
        "takes": [f"{time}, {_spent(result, row)}"] * (not result.chooses_none),
        "chance": [f"{chance}{given}."] if chance else [],
        "failed": [*result.said("failed"), *limits_in_words(result.memory_limits)],
        "choice": [*result.said("choice"), *(proposal if now else [])],
        "emulated": [emulated] if result.is_emulated else [],
        "knee": [] if knee is None else [_knee(result, knee)],
        "granting": [*result.said("granting")],
        "elsewhere": [
            _elsewhere(result, *named_row) for named_row in result.elsewhere.items()
        ],
        "price": [result.price] if result.price else [],
        "spot": [*result.said("spot")],
        "electricity": [*result.said("electricity")],
        "machine": [*result.said("machine")],
        "batches": [*result.said("batches")],
        "queue": [*result.said("queue")],
        "chained": [*result.said("chained")],
        "accuracy": [*result.said("accuracy")],
        "why_not": [*result.said("why_not")],
        "next_step": [*result.said("next_step")],
        "rests_on": [
            f"{ground.state.capitalize()}: {ground.text}." for ground in result.grounds
        ],
        "rule": [f"Rule: {result.objective}."],
        "efficiency": [*result.said("efficiency")],
        "ideal": [*result.said("ideal")],
        "rates": [*result.said("rates")],
        "assumption": [*result.said("assumption")],
        "unanswered": [*result.said("unanswered")],
        "next_trial": [] if now else proposal,
        "ignored": [
            *_ignored(result, "", result.left_out),
            *_ignored(result, " for samples to target", result.left_out_of_convergence),
        ],
        "sweep_cost": [] if hours is None else [spent],
    }


def spent_in_words(spent: Mapping[str, float], units: Units) -> list[str]:
    """Write amounts of resources by name."""
    return [RESOURCES[name].in_words(amount, units) for name, amount in spent.items()]


def texts(by_subject: Mapping[str, list[str]], *subjects: str) -> list[str]:
    """Return the sentences on some subjects."""
    return [text for subject in subjects for text in by_subject[subject]]


def _use(result: Recommendation) -> list[str]:
    if result.chooses_none:
        return []
    is_limited = result.limits or result.conditions
    verb = "Use" if result.meets_constraints or not is_limited else "Closest:"
    return [f"{verb} {allocated(result, result.chosen)}"]


def what_times_hold(result: Recommendation) -> list[str]:
    """Return what its times hold or leave out; empty where nothing is known of it."""
    return [ground.text for ground in result.grounds if ground.kind == "times_contain"]


def allocated(result: Recommendation, row: OutlookRow) -> str:
    """Return the devices and the batch of a row in words."""
    kind = f"{result.node_group} node" if result.node_group else "node"
    _, devices = row.allocation.split("x")

    count = _count(result, row)
    if result.device_name and result.device_word in ("GPU", "TPU"):
        count = f"{row.world_size:,} {result.device_name}"
    elif result.devices and result.device_name and not result.node_group:
        count = f"{count} of {result.device_name}"

    nodes = f"{counted(row.num_nodes, kind)} x {devices}"
    if row.is_interruptible:
        count += " on the spot market"

    return f"{count} ({nodes}), {row.batch}"


def _unmet(result: Recommendation) -> list[str]:
    if result.meets_constraints or result.chooses_none:
        return [*result.said("unmet")]
    asked = " and ".join((*result.limits, *result.conditions))
    is_likely = _LIKELY <= (result.chosen.probability or 0) < result.confidence
    sure = f" with a chance of {percent(result.confidence)}" if is_likely else ""
    unsure = f"No time is sure at {percent(result.confidence)}."
    return [f"Nothing meets {asked}{sure}." if asked else unsure]


def _settings(result: Recommendation) -> list[str]:
    if result.chooses_none:
        return []
    settings = {**result.chosen.settings}
    several = settings.pop("lr_rule", None)
    details = settings_in_words(settings)
    if rate := result.learning_rate:
        is_said = several or rate.rule != "none"
        rule = f" (rule: {rate.rule})" if is_said else ""
        details.append(f"learning rate {rate.value:.4g}{rule}")
    return [", ".join(details)] if details else []


def _spent(result: Recommendation, row: OutlookRow) -> str:
    units = result.units(row)
    return ", ".join(
        resource.in_words(amount.value, units) for resource, amount in row.spent.items()
    )


def _chance(result: Recommendation, row: OutlookRow) -> str:
    if row.probability is None or result.chooses_none:
        return ""
    limits, chance = " and ".join(result.limits), probability(row.probability)
    if not result.limited:  # a target alone
        return f"{limits} is reached with a chance of {chance}"
    facts = (fact for fact in result.facts if fact.kind == "times_contain")
    judged = "".join(judged_times(fact.values) for fact in facts)
    return f"Chance of meeting {limits}{judged}: {chance}"


def _count(result: Recommendation, row: OutlookRow) -> str:
    return counted(row.world_size, result.words(row).device)


def _many(result: Recommendation, count: int) -> str:
    return counted(count, result.device_word)


def _elsewhere(result: Recommendation, device: str, row: OutlookRow) -> str:
    chance = _chance(result, row)
    return (
        f"On {device} instead: {_count(result, row)} ({row.allocation}), "
        f"{duration(row.time_s.value)} [{duration_ends(row.time_s)}], "
        f"{_spent(result, row)}.{f' {chance}.' if chance else ''}"
    )


def _knee(result: Recommendation, knee: Knee) -> str:
    last, most = result.alike[-1].world_size, knee.largest_measured
    measured = f"Nothing measured, up to {_many(result, most)}, shows diminishing"
    if knee.lo is None:
        beyond = f"; {last:,} are extrapolated" if last > most else ""
        return f"{measured} returns{beyond}."

    if knee.hi is None:
        where = f"somewhere above {_many(result, knee.lo)}"
    elif knee.hi == knee.lo:
        where = f"at {_many(result, knee.lo)}"
    else:
        where = f"between {knee.lo:,} and {_many(result, knee.hi)}"

    chance = knee.probability_in_range
    if chance is None:
        unseen = " (none were measured)" if knee.hi is None else ""
        return f"Where doubling stops paying is open: {where}{unseen}."

    if knee.term is None:
        is_open = knee.lo > result.alike[0].world_size
        then = f", not before {knee.lo:,}" if is_open else ""
        return (
            f"{measured} returns. Chance that they diminish by {last:,}: "
            f"{probability(chance)}{then}."
        )

    sure = "" if chance >= _CERTAIN else f" ({percent(chance)} sure)"
    return f"Doubling stops paying {where}{sure}: {knee.term}."


def what_diminishing_means(result: Recommendation) -> list[str]:
    """Say from where on returns are called diminishing."""
    if result.knee is None:
        return []
    return [
        "Doubling stops paying where neither twice as many devices nor any larger "
        f"number give {percent(result.knee.marginal_return)} of the ideal gain."
    ]


def what_gaps_mean(rows: Sequence[WayRow]) -> list[str]:
    """Say what the accuracy gaps of a table of ways to train are against."""
    if not any(row.accuracy_gap for row in rows):
        return []
    return [
        f"Accuracy gap: final metric minus that of {BASELINE}; mean and range over "
        "the seeds that have such a pair."
    ]


def what_rates_say(result: Recommendation) -> list[str]:
    """Say what the cells of a table of runs to the target are."""
    caps = {row.within_samples for row in result.rates}
    within = "".join(f" within {cap:,} samples" for cap in caps if cap)
    names = dict.fromkeys(name for row in result.rates for name in row.settings)
    by = " and ".join(setting_in_words(name) for name in names)
    return [
        f"Runs to the target by {by}: median samples, runs that reached it, chance "
        f"that one more does{within if len(caps) == 1 else ''}, final metric."
    ]


def _proposal(result: Recommendation, trial: NextTrial, now: Mapping[str, Any]) -> str:
    hours, word, saved = trial.gpu_hours, result.device_hour_word, ""
    cost = "" if hours is None else f", {device_time(hours, word)}"
    title = "To measure first" if now else "The trial that would change the answer most"

    if now and trial.world_size == now["than"] != now["world_size"]:
        gain = faster_for(1 / now["speedup"], 1 / now["cost_ratio"])
        saved = f"; if its row holds, the job is {gain}"

    return (
        f"{title}: {_many(result, trial.world_size)} ({trial.allocation}), "
        f"{', '.join([str(trial.batch), *settings_in_words(trial.settings)])}, "
        f"{counted(trial.steps, 'step')}{cost}: {trial.why}{saved}."
    )


def _ignored(
    result: Recommendation, purpose: str, left_out: Sequence[LeftOut]
) -> list[str]:
    total, emulated = result.num_observations, result.is_emulated
    sentence = how_many_ignored(left_out, total, purpose, is_emulated=emulated)
    return [f"{sentence}."] if left_out else []
