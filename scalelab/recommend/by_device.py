"""One answer where devices are of several kinds: each has laws of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from scalelab.errors import FitError, SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import DeviceWords
from scalelab.inputs.wording import Option
from scalelab.kinds.resources import DEVICE_HOURS, MONEY, RESOURCES, TIME, Resource
from scalelab.laws.convergence.rows import RULE
from scalelab.laws.rows import CONFIGURATION, FitRows, Observed, numbers, prepared
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.recommend.advice import Considered, consider
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.kept import Question
from scalelab.recommend.answer.recommendation import OutlookRow, Recommendation
from scalelab.recommend.comparison import LITTLE_MORE, MUCH_FASTER
from scalelab.recommend.knowledge import History, refuse_several, selected
from scalelab.recommend.money.prices import UNNAMED, Price, check_prices, price_of
from scalelab.recommend.prediction.nearest import nearest, nearest_of
from scalelab.recommend.prediction.outlook import Outlook
from scalelab.recommend.question.candidates import UntoldByProgram
from scalelab.recommend.question.devices import (
    DEVICE_COLUMNS,
    DeviceKind,
    has_value,
    kinds_of,
)
from scalelab.recommend.question.objective import (
    Choice,
    Constraints,
    RunSite,
    Spending,
    choose,
    pareto,
    unbeaten,
)
from scalelab.records.columns import OPTION_PREFIX

_SEED = 36  # of the order of draws


def answer(
    question: Question,
    observations: Observed,
    sites: Mapping[str | None, RunSite],
    history: History | None = None,
    untold: UntoldByProgram = MappingProxyType({}),
) -> Recommendation:
    """Answer for each kind of device that was measured, and choose among them all."""
    rows = prepared(observations)
    select = {n: of for n, of in question.select.items() if n not in DEVICE_COLUMNS}
    kinds = _kinds(rows.observations, question.select)
    if len(kinds) > 1:
        refuse_several(selected(rows.observations, select))
    prices = _prices(question, kinds, sites)
    every = _kinds(rows.observations, {})
    check_prices(prices, question.quotes, every, question.limits.currency)
    asked = replace(question, select=select)
    own = {kind: rows.take(kind.rows(rows.observations).index) for kind in kinds}
    informed = {kind for kind in kinds if history and history.informs(own[kind])}
    found: dict[str, Considered] = {}
    problems: dict[str, FitError | SpecError] = {}
    for kind in kinds:
        # that informs no kind is said by its own message, for every kind
        taught = history if kind in informed or not informed else None
        try:
            found[kind.label] = _consider(
                asked,
                rows,
                own[kind].observations,
                kind,
                sites.get(kind.node_group or None),
                prices.get(kind.label),
                taught,
                untold,
            )
        except (FitError, SpecError) as error:
            problems[kind.label] = error
    if not found:
        raise next(iter(problems.values()))
    old = _old_prices(question, prices)
    if len(kinds) == 1:
        (alone,) = found.values()
        return _with_facts(alone.recommendation(), old)
    _refuse_device_hours(question.limits, kinds)
    missing = [
        Fact.of("device_not_compared", name=label, why=str(problem))
        for label, problem in problems.items()
    ]
    return _with_facts(_joined(found, question.limits), [*old, *missing])


def _kinds(
    observations: pd.DataFrame, select: Mapping[str, Scalar]
) -> tuple[DeviceKind, ...]:
    """Return the kinds of devices on which what was selected was timed."""
    own = {name: of for name, of in select.items() if name in DEVICE_COLUMNS}
    frame = selected(observations, own)
    for name, value in select.items():
        column = name if name in frame.columns else OPTION_PREFIX + name
        if column in frame.columns and name not in (RULE, *CONFIGURATION, *own):
            is_chosen = has_value(frame, column, value)
            # what is nowhere is refused later, with what is there
            frame = frame[is_chosen] if is_chosen.any() else frame
    timed = frame[np.isfinite(numbers(frame, "world_size"))]
    return kinds_of(timed if len(timed) else frame)


def _consider(
    question: Question,
    rows: FitRows,
    own: pd.DataFrame,
    kind: DeviceKind,
    run_site: RunSite | None,
    price: Price | None,
    history: History | None,
    untold: UntoldByProgram,
) -> Considered:
    for name, value in question.select.items():
        if name in own.columns:
            own = own[has_value(own, name, value)]
    site, link = run_site.site if run_site else None, question.between_nodes
    on_node, within = site.gpus_per_node if site else None, None
    known = [*numbers(own, "gpus_per_node"), *numbers(own, "devices_of_node")]
    if (most := int(np.nanmax([1.0, *known]))) > 1:
        on_node = max(most, on_node or 1)
    if run_site and not question.gpus:
        within = run_site.machine(numbers(own, "world_size"))
    # only the default law asks for a link
    if not link and site and site.links and question.law == StepTimeLaw.name:
        link = site.links.between_nodes.link
    whole = site.devices_per_node if site and site.exclusive else None
    return consider(
        rows,
        question.job,
        constraints=replace(question.limits, price=price, devices_on_node=whole),
        batches=question.batches,
        gpus=question.gpus,
        select=question.select,
        law=question.law,
        within=within,
        devices_on_node=on_node,
        history=history,
        link=link,
        accept_unmeasured=question.accept_unmeasured,
        untold=untold,
        device=kind,
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
        )


def _select(kind: DeviceKind) -> Option:
    (name, value), *_ = (
        (name, value) for name, value in kind.columns().items() if value == kind.label
    ) or [*kind.columns().items()]
    return Option("select", value, key=name)


def _prices(
    question: Question,
    kinds: Sequence[DeviceKind],
    sites: Mapping[str | None, RunSite],
) -> dict[str, Price]:
    """Return the price of each kind that has one."""
    prices = {}
    for kind in kinds:
        known = sites.get(kind.node_group or None)
        price = price_of(kind, question.quotes, known.site if known else None)
        if price is not None:
            prices[kind.label] = price
    return prices


def _old_prices(question: Question, prices: Mapping[str, Price]) -> list[Fact]:
    return [
        Fact.of("old_price", name=label or UNNAMED, days=days, date=str(price.date))
        for label, price in prices.items()
        if (days := price.age_days(question.today))
    ]


def _with_facts(found: Recommendation, further: Sequence[Fact]) -> Recommendation:
    return replace(found, facts=(*found.facts, *further))


class _Joint:
    """The rows of several kinds of devices, one after another, and what they take."""

    def __init__(self, kinds: Mapping[str, Considered], limits: Constraints) -> None:
        self.kinds = dict(kinds)
        outlooks = [each.comparison.printed for each in kinds.values()]
        self._places = [
            (label, at)
            for label, outlook in zip(kinds, outlooks, strict=True)
            for at in range(len(outlook.sizes))
        ]
        self.spent = _side_by_side(outlooks)
        known = {n: of for n, of in limits.limits.items() if n in self.spent.amounts}
        self.limits = replace(limits, limits=known)
        eligible = np.concatenate([each.is_eligible for each in outlooks])
        accurate = np.concatenate([each.frame["is_accurate"] for each in outlooks])
        self._probability = np.concatenate([each.probability for each in outlooks])
        self._measured = np.concatenate([each.is_measured for each in outlooks])
        both = eligible & accurate.astype(bool)
        self._eligible = both if both.any() else eligible
        self.meets = self._eligible & (self._probability >= limits.confidence)

    def at(self, label: str) -> int:
        """Return the position of the row that was chosen of one kind."""
        return self._places.index((label, self.kinds[label].comparison.choice.index))

    def chosen(self) -> str:
        """Choose among all rows; return the kind, whose choice is this row then."""
        if self.limits.limited:
            found = choose(
                self.spent.medians(),
                self._probability,
                self._eligible,
                self._eligible,
                self._measured,
                self.limits,
                "device",
            )
        else:
            found = self._best_of_chosen()
        if self.has_money:
            index = unbeaten(self.spent, found.index, self.meets)
            if index != found.index:
                rule = "clearly faster or cheaper than what is best otherwise, and not "
                found = Choice(
                    index=index, meets=True, rule=f"{rule}worse in the other"
                )
        label, at = self._places[found.index]
        own = self.kinds[label].comparison.choice
        rule = f"{found.rule}; all devices are compared"
        if own.index == at:
            rule = f"{own.rule}; of the devices, {self._why(found)}"
        self.kinds[label] = self.kinds[label].choosing(
            Choice(index=at, meets=found.meets, rule=rule)
        )
        return label

    @property
    def has_money(self) -> bool:
        """Tell whether every kind has a price."""
        return MONEY in self.spent.known

    @property
    def _resource(self) -> Resource:
        return self.limits.minimised(self.spent.known)

    def _best_of_chosen(self) -> Choice:
        """Return the row that takes least, of those that each kind would have."""
        every = [self.at(label) for label in self.kinds]
        among = [at for at in every if self.meets[at]] or every
        amounts = self.spent.medians().of(self._resource)
        index = min(among, key=lambda at: float(amounts[at]))
        return Choice(index=index, meets=bool(self.meets[index]), rule="")

    def _why(self, found: Choice) -> str:
        if self.limits.limited and not found.meets:
            return "the closest to the limits"
        return f"the one that {self._resource.least}"

    def rows(
        self, answers: Mapping[str, Recommendation], best: str
    ) -> tuple[OutlookRow, ...]:
        """Return all rows; where all have prices, Pareto is of time and money."""
        rows = [row for each in answers.values() for row in each.rows]
        medians = self.spent.medians()
        is_front = np.array([row.is_pareto for row in rows])
        if self.has_money:
            is_front = pareto(medians.time_s, medians.of(MONEY))
        return tuple(
            replace(
                row,
                is_pareto=bool(is_front[at]),
                is_eligible=bool(self._eligible[at]),
                is_chosen=row.is_chosen and row.device == best,
            )
            for at, row in enumerate(rows)
        )

    def others(self, best: str) -> list[str]:
        """Return the other kinds of which a row may be chosen."""
        places = zip(self._places, self._eligible, strict=True)
        able = {label for (label, _), may_be in places if may_be}
        return [label for label in self.kinds if label in able - {best}]

    def notes(self, best: str) -> Iterator[Fact]:
        """Note how surely the choice is better than that of each other kind."""
        index = self.at(best)
        others = {label: self.at(label) for label in self.others(best)}
        chances = {
            word: {
                label: float((amounts[:, index] < amounts[:, at]).mean())
                for label, at in others.items()
            }
            for word, resource in (("faster", TIME), ("cheaper", MONEY))
            if (amounts := self.spent.amounts.get(resource.name)) is not None
        }
        if others:
            yield Fact.of("against_devices", name=best, chances=chances)
        medians = self.spent.medians()
        time_s, amount = medians.time_s, medians.of(self.spent.cost)
        is_elsewhere = np.array([label != best for label, _ in self._places])
        is_worth = self.meets & is_elsewhere & (MUCH_FASTER * time_s <= time_s[index])
        is_worth &= amount <= (1 + LITTLE_MORE) * amount[index]
        if self.has_money and self.meets[index] and is_worth.any():
            at = int(np.where(is_worth, time_s, np.inf).argmin())
            label, place = self._places[at]
            row = self.kinds[label].comparison.printed.frame.iloc[place]
            yield Fact.of(
                "faster_device",
                name=label,
                world_size=int(row["world_size"]),
                basis=str(row["support"]),
                speedup=float(time_s[index] / time_s[at]),
                cost_ratio=float(amount[at] / amount[index]),
            )

    def nearest(self, words: Mapping[str, DeviceWords]) -> Fact:
        """Note the nearest limits that can be met, on any of the devices."""
        found = [
            {**each, "device": label}
            for label, kind in self.kinds.items()
            for each in nearest(
                kind.comparison.every, kind.limits, kind.limits.units(words[label].hour)
            )
        ]
        return nearest_of(found, self.limits.confidence)


def _side_by_side(outlooks: Sequence[Outlook]) -> Spending:
    """Return draws of what can be compared, shape (n_draws, n_rows).

    Each kind has its draws in an order of its own: what is not known of one has nothing
    to do with what is not known of another.
    """
    names = [
        row.name
        for row in RESOURCES
        if row.compares_devices and all(row in each.spent.known for each in outlooks)
    ]
    orders = np.random.default_rng(_SEED)
    drawn = [
        each.spent.in_order(orders.permutation(len(each.held))) for each in outlooks
    ]
    return Spending({n: np.hstack([each.amounts[n] for each in drawn]) for n in names})


def _joined(found: Mapping[str, Considered], limits: Constraints) -> Recommendation:
    joint = _Joint(found, limits)
    best = joint.chosen()
    answers = {label: each.recommendation() for label, each in joint.kinds.items()}
    words = {
        label: DeviceWords(each.device_word, each.device_hour_word)
        for label, each in answers.items()
    }
    unpriced = [n for n, each in joint.kinds.items() if each.limits.price is None]
    chosen = answers[best]
    facts = [*joint.notes(best), *chosen.facts, *_accuracy(answers, best)]
    if len(answers) > 1:
        facts.append(Fact("efficiency_within"))
        facts += [Fact.of("by_time_alone", devices=unpriced)] if unpriced else []
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


def _accuracy(answers: Mapping[str, Recommendation], best: str) -> Iterator[Fact]:
    """Yield what is known of the accuracy of the ways to train on other devices."""
    alike: dict[str, tuple[Fact, list[str]]] = {}
    for label, each in answers.items():
        for fact in each.facts:
            if fact.kind in ("accuracy_gap", "ruled_out") and label != best:
                alike.setdefault(repr(fact), (fact, []))[1].append(label)
    for fact, names in alike.values():
        if fact.kind == "accuracy_gap":
            yield Fact.of("accuracy_elsewhere", **fact.values, names=names)
        else:
            yield Fact.of("ruled_out_elsewhere", **fact.values, names=names)
