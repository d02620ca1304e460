"""One answer where devices are of several kinds: each has laws of its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from scalelab.errors import FitError, SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import DeviceWords
from scalelab.inputs.problems import Option
from scalelab.kinds.resources import DEVICE_HOURS, MONEY
from scalelab.laws.convergence.rows import RATE_SETTINGS
from scalelab.laws.rows import CONFIGURATION, FitRows, Observed, numbers, prepared
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.recommend.advice import Considered, consider
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.kept import Question
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.chained import campaign_of, chained
from scalelab.recommend.joint import Joint
from scalelab.recommend.knowledge import History, refuse_several, selected
from scalelab.recommend.money.power import power_of
from scalelab.recommend.money.prices import (
    UNNAMED,
    Price,
    check_prices,
    price_of,
    refuse_unmeasured,
)
from scalelab.recommend.money.trials import in_all, trials_take
from scalelab.recommend.on_spot import OnSpot, beside_each_other, spot_facts
from scalelab.recommend.question.candidates import UntoldByProgram
from scalelab.recommend.question.devices import (
    DEVICE_COLUMNS,
    DeviceKind,
    has_value,
    kinds_of,
)
from scalelab.recommend.question.objective import Constraints, RunSite
from scalelab.recommend.scaling import scaling_series
from scalelab.recommend.what_if import what_if
from scalelab.records.afterwards.followed import KeptJob
from scalelab.records.columns import OPTION_PREFIX
from scalelab.site.profile import Site
from scalelab.site.spot import AskedSpot


@pd.option_context("mode.string_storage", "python")  # faster in short columns
def answer(
    question: Question,
    observations: Observed,
    sites: Mapping[str | None, RunSite],
    history: History | None = None,
    untold: UntoldByProgram = MappingProxyType({}),
    followed: Sequence[KeptJob] = (),
) -> Recommendation:
    """Answer for each kind of device that was measured, and choose among them all.

    Of a campaign the limits are those of all runs together; one run has none then.
    """
    question, of_campaign = question.of_one_run(), question.limits.limits
    rows = prepared(observations)
    select = {n: v for n, v in question.select.items() if n not in DEVICE_COLUMNS}

    kinds = _kinds(rows.observations, question.select)
    if len(kinds) > 1:
        refuse_several(selected(rows.observations, select))

    places = {kind.label: sites.get(kind.node_group or None) for kind in kinds}
    known = {n: place.site if place else None for n, place in places.items()}
    limits = {
        kind.label: limits_of(question, kind, rows.observations, known[kind.label])
        for kind in kinds
    }
    prices = {
        n: limits_of_kind.price
        for n, limits_of_kind in limits.items()
        if limits_of_kind.price
    }
    every = _kinds(rows.observations, {})
    check_prices(prices, question.quotes, every, question.limits.currency)

    for name, watts in question.power:
        refuse_unmeasured(name, Option("power", f"{watts:g}W", key=name), every)

    _check_spot(question.spot, kinds)
    found, problems = _considered(
        replace(question, select=select),
        rows,
        limits,
        places,
        kinds,
        history,
        untold,
        followed,
    )
    terms = {label: site.spot if site else None for label, site in known.items()}
    terms |= {label: price.terms for label, price in prices.items()}
    compared, pairs, not_compared = beside_each_other(found, terms, question.spot)

    further = [*_old_prices(question, prices), *_electricity(found), *not_compared]
    further += chained(
        found,
        known,
        walltime_s=question.walltime_s,
        checkpoint_s=question.checkpoint_s,
    )
    if len(kinds) == 1 and not pairs:
        (alone,) = compared.values()
        answered = alone.recommendation()
        if question.asks_what_if:
            answered = replace(answered, what_if=what_if(alone, answered))
    else:
        _refuse_device_hours(question.limits, kinds)
        answered = _joined(compared, pairs, question.limits)
        further += [
            Fact.of("device_not_compared", name=label, why=str(problem))
            for label, problem in problems.items()
        ]

    further += _campaign(question, compared, answered.chosen.device, of_campaign)
    if question.asks_scaling:
        answered = _with_scaling(answered, compared)

    facts = (*answered.facts, *further)
    return replace(answered, facts=facts, sweep_spent=_by_the_sweep(found))


def _check_spot(spot: AskedSpot | None, kinds: Sequence[DeviceKind]) -> None:
    """Refuse a device that was not measured, and a history of several devices."""
    if spot and (name := spot.device):
        refuse_unmeasured(name, Option("spot", name, key="device"), kinds)
    elif spot and spot.history and len(kinds) > 1:
        raise SpecError(
            f"{Option('spot', spot.history, key='history')} prices one device, and "
            f"several were measured: {', '.join(kind.label for kind in kinds)}.",
            f"Say which it is of: {Option('spot', kinds[0].label, key='device')}.",
            code="spot_of_several_devices",
        )


def _considered(
    question: Question,
    rows: FitRows,
    limits: Mapping[str, Constraints],
    places: Mapping[str, RunSite | None],
    kinds: Sequence[DeviceKind],
    history: History | None,
    untold: UntoldByProgram,
    followed: Sequence[KeptJob],
) -> tuple[dict[str, Considered], dict[str, FitError | SpecError]]:
    """Consider each kind of device, and return why some have no answer.

    Raises
    ------
    FitError, SpecError
        If none of them has one.
    """
    rows_of_kind = {
        kind: rows.take(kind.rows(rows.observations).index) for kind in kinds
    }
    informed = {
        kind for kind in kinds if history and history.informs(rows_of_kind[kind])
    }
    found: dict[str, Considered] = {}

    problems: dict[str, FitError | SpecError] = {}
    for kind in kinds:
        # that informs no kind is said by its own message, for every kind
        taught = history if kind in informed or not informed else None
        try:
            found[kind.label] = consider_kind(
                replace(question, limits=limits[kind.label]),
                rows,
                rows_of_kind[kind].observations,
                kind,
                places[kind.label],
                taught,
                untold,
                followed,
            )
        except (FitError, SpecError) as error:
            problems[kind.label] = error

    if not found:
        raise next(iter(problems.values()))

    return found, problems


def _campaign(
    question: Question,
    compared: Mapping[str, Considered],
    device: str,
    limits: Mapping[str, float],
) -> Iterator[Fact]:
    """Note how many runs of the job share a pool of the chosen devices, if asked."""
    if question.runs is not None and question.pool is not None:
        chosen = compared.get(device, next(iter(compared.values())))
        yield campaign_of(chosen, question.runs, question.pool, limits)


def _with_scaling(
    answered: Recommendation, compared: Mapping[str, Considered]
) -> Recommendation:
    """Return an answer with strong and weak scaling on its devices."""
    device = answered.chosen.device
    considered = compared.get(device, next(iter(compared.values())))
    alike = [row for row in answered.rows if row.device == device]
    return replace(answered, scaling=scaling_series(considered, alike))


def _kinds(
    observations: pd.DataFrame, select: Mapping[str, Scalar]
) -> tuple[DeviceKind, ...]:
    """Return the kinds of devices on which what was selected was timed."""
    chosen_kind = {name: v for name, v in select.items() if name in DEVICE_COLUMNS}
    frame = selected(observations, chosen_kind)

    of_no_device = {*RATE_SETTINGS, *CONFIGURATION, *chosen_kind}
    for name, value in select.items():
        column = name if name in frame.columns else OPTION_PREFIX + name
        if column in frame.columns and name not in of_no_device:
            is_chosen = has_value(frame, column, value)
            # what is nowhere is refused later, with what is there
            frame = frame[is_chosen] if is_chosen.any() else frame

    timed = frame[np.isfinite(numbers(frame, "world_size"))]
    return kinds_of(timed if len(timed) else frame)


def consider_kind(
    question: Question,
    rows: FitRows,
    frame: pd.DataFrame,
    kind: DeviceKind,
    run_site: RunSite | None,
    history: History | None,
    untold: UntoldByProgram = MappingProxyType({}),
    followed: Sequence[KeptJob] = (),
) -> Considered:
    """Consider one kind of device, of which ``frame`` has the rows."""
    for name, value in question.select.items():
        if name in frame.columns:
            frame = frame[has_value(frame, name, value)]

    site, link = run_site.site if run_site else None, question.between_nodes
    within, room = None, None
    if run_site:
        measured = numbers(frame, "world_size")
        room = run_site.room(measured)
        within = None if question.gpus else run_site.machine(measured)
    # only the default law asks for a link
    if not link and run_site and question.law == StepTimeLaw.name:
        links = run_site.site.links
        link = links.between_nodes.link if links else run_site.logged_link

    return consider(
        rows,
        question.job,
        constraints=question.limits,
        batches=question.batches,
        gpus=question.gpus,
        select=question.select,
        law=question.law,
        within=within,
        room=room,
        devices_on_node=_devices_on_node(frame, site),
        history=history,
        link=link,
        accept_unmeasured=question.accept_unmeasured,
        untold=untold,
        device=kind,
        followed=[job for job in followed if job.device_name in kind.names],
    )


def _devices_on_node(frame: pd.DataFrame, site: Site | None) -> int | None:
    """Return the devices of a node: the most that were used, or that are declared."""
    on_node = site.gpus_per_node if site else None
    declared = numbers(frame, "devices_of_node")
    most = int(np.nanmax([1.0, *numbers(frame, "gpus_per_node"), *declared]))
    # where one device of a node was used, it may have more
    is_told = most > 1 or bool(np.isfinite(declared).any())
    return max(most, on_node or 1) if is_told else on_node


def limits_of(
    question: Question, kind: DeviceKind, rows: pd.DataFrame, site: Site | None
) -> Constraints:
    """Return the limits with what a kind of device costs, draws and emits."""
    whole, pue, carbon = None, question.pue, question.carbon_g_per_kwh
    if site is not None:
        whole = site.devices_per_node if site.exclusive else None
        pue = site.pue if pue is None else pue
        carbon = site.carbon_g_per_kwh if carbon is None else carbon

    return replace(
        question.limits,
        price=price_of(kind, question.quotes, site),
        devices_on_node=whole,
        power=power_of(kind, kind.rows(rows), question.power, site),
        pue=pue or 1.0,
        carbon_g_per_kwh=carbon,
    )


def _refuse_device_hours(limits: Constraints, kinds: Sequence[DeviceKind]) -> None:
    models = {(kind.device_type, kind.device_name) for kind in kinds}
    if DEVICE_HOURS.name in limits.limits and len(models) > 1:
        limit = limits.limits[DEVICE_HOURS.name]
        raise SpecError(
            f"{Option(DEVICE_HOURS.limit)} {limit:g}: an hour of one device is not an "
            f"hour of another, and several were measured: "
            f"{', '.join(kind.label for kind in kinds)}.",
            f"Limit money, {Option(MONEY.limit, MONEY.example)}, or choose a device: "
            f"{_select(kinds[0])}.",
            code="device_hours_of_several",
        )


def _select(kind: DeviceKind) -> Option:
    (name, value), *_ = (
        (name, value) for name, value in kind.columns().items() if value == kind.label
    ) or [*kind.columns().items()]
    return Option("select", value, key=name)


def _electricity(kinds: Mapping[str, Considered]) -> Iterator[Fact]:
    """Note what energy and carbon are made of, once for devices that are alike."""
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for label, kind in kinds.items():
        limits, word = kind.limits, kind.knowledge.subject.device_word
        if power := limits.power:
            key = power.source, power.said_by, limits.pue, limits.carbon_g_per_kwh
            ends = np.quantile(np.concatenate([*power.by_size.values()]), [0, 1])
            alike.setdefault(key, []).append(
                {"name": label, "device_word": word, "watts": ends.tolist()}
            )

    for (source, said_by, pue, carbon), devices in alike.items():
        yield Fact.of(
            "electricity",
            source=source,
            said_by=said_by,
            pue=pue,
            carbon_g_per_kwh=carbon,
            devices=devices,
        )


def _old_prices(question: Question, prices: Mapping[str, Price]) -> list[Fact]:
    return [
        Fact.of("old_price", name=label or UNNAMED, days=days, date=str(price.date))
        for label, price in prices.items()
        if (days := price.age_days(question.today))
    ]


def _by_the_sweep(kinds: Mapping[str, Considered]) -> dict[str, float]:
    """Return what all measured trials took, but for device-hours."""
    parts, counted = [], pd.Index([])
    for kind in kinds.values():
        rows_of_kind = kind.knowledge.subject.frame
        rows_of_kind = rows_of_kind.drop(rows_of_kind.index.intersection(counted))
        counted = counted.union(rows_of_kind.index)
        held_s, sizes, nodes = (
            numbers(rows_of_kind, n)
            for n in ("allocated_gpu_s", "world_size", "num_nodes")
        )
        parts.append(trials_take(kind.limits, held_s / sizes, sizes, nodes))
    return in_all(parts)


def _joined(
    found: Mapping[str, Considered], pairs: Sequence[OnSpot], limits: Constraints
) -> Recommendation:
    joint = Joint(found, limits)
    best = joint.chosen()
    answers = {
        label: considered_kind.recommendation()
        for label, considered_kind in joint.kinds.items()
    }
    words = {
        label: DeviceWords(answer_of_kind.device_word, answer_of_kind.device_hour_word)
        for label, answer_of_kind in answers.items()
    }
    unpriced = [
        n
        for n, considered_kind in joint.kinds.items()
        if considered_kind.limits.price is None
    ]
    chosen = answers[best]
    facts = _least_stable([*joint.notes(best), *chosen.facts])

    facts += spot_facts(pairs, best, chosen.chosen.world_size)
    if not joint.are_alike:
        facts += [*_accuracy(joint, answers, best), Fact("efficiency_within")]
    if len(answers) > 1 and unpriced:
        facts.append(Fact.of("by_time_alone", devices=unpriced))
    if any(fact.kind == "nearest" for fact in facts):
        facts = [joint.nearest(words), *(f for f in facts if f.kind != "nearest")]

    return replace(
        chosen,
        rows=joint.rows(answers, best),
        elsewhere={n: answers[n].chosen for n in joint.others(best)},
        devices=words,
        price=" ".join(_charges(joint.kinds, words)) or None,
        facts=tuple(facts),
    )


def _least_stable(facts: Sequence[Fact]) -> list[Fact]:
    """Return the notes, with the least stable of two notes on draws.

    One note is about the chosen devices, the other about all. A single note is left
    out, since it does not cover both.
    """
    drawn = sorted(
        (fact for fact in facts if fact.kind == "choice_in_draws"),
        key=lambda fact: fact.values["num_same"],
    )
    rest = [fact for fact in facts if fact.kind != "choice_in_draws"]
    return [*drawn[: len(drawn) - 1], *rest]


def _charges(
    kinds: Mapping[str, Considered], words: Mapping[str, DeviceWords]
) -> Iterator[str]:
    """Yield what an hour is charged, once for all devices of which it is the same."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for label, kind in kinds.items():
        limits, hour = kind.limits, words[label].hour
        if limits.price:
            key = limits.price, limits.devices_on_node, hour
            alike.setdefault(key, []).append(label)
    for (*_, hour), labels in alike.items():
        yield kinds[labels[0]].limits.charges_in_words(hour, ", ".join(labels))


def _accuracy(
    joint: Joint, answers: Mapping[str, Recommendation], best: str
) -> Iterator[Fact]:
    """Yield what is known of the accuracy of the ways to train on other devices."""
    alike: dict[str, tuple[Fact, list[str]]] = {}
    for label, answer_of_kind in answers.items():
        is_same = joint.kinds[label].kind == joint.kinds[best].kind
        if is_same or answer_of_kind.chosen.is_interruptible:
            continue
        for fact in answer_of_kind.facts:
            if fact.kind in ("accuracy_gap", "ruled_out"):
                alike.setdefault(repr(fact), (fact, []))[1].append(label)

    for fact, names in alike.values():
        if fact.kind == "accuracy_gap":
            yield Fact.of("accuracy_elsewhere", **fact.values, names=names)
        else:
            yield Fact.of("ruled_out_elsewhere", **fact.values, names=names)
