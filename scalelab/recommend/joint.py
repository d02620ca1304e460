"""The rows of several kinds of devices in one table, and the choice among them all."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import DeviceWords
from scalelab.kinds.resources import MONEY, RESOURCES, TIME, Resource
from scalelab.laws.interval import NUM_DRAWS
from scalelab.recommend.advice import Considered, nearest, nearest_of
from scalelab.recommend.answer.facts import Fact, WhyNot
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.comparison import (
    LITTLE_MORE,
    MUCH_FASTER,
    choice_in_draws,
    least_of,
)
from scalelab.recommend.question.choice import Allocations, Choice, best_within
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import Spending, pareto, unbeaten

_SEED = 36  # of the order of draws


class Joint:
    """The rows of several kinds of devices, one after another, and what they take."""

    def __init__(self, kinds: Mapping[str, Considered], limits: Constraints) -> None:
        self.kinds = dict(kinds)
        outlooks = [considered.comparison.printed for considered in kinds.values()]
        self.are_alike = len({considered.kind for considered in kinds.values()}) == 1
        self._places = [
            (label, at)
            for label, outlook in zip(kinds, outlooks, strict=True)
            for at in range(len(outlook.sizes))
        ]
        self.spent = _side_by_side([*kinds.values()], are_alike=self.are_alike)
        known = {n: v for n, v in limits.limits.items() if n in self.spent.amounts}
        self.limits = replace(limits, limits=known)
        eligible = np.concatenate([outlook.is_eligible for outlook in outlooks])
        barred_by = np.concatenate([outlook.frame["barred_by"] for outlook in outlooks])
        probability = np.concatenate([outlook.probability for outlook in outlooks])
        both = eligible & (barred_by == "")
        self._eligible = both if both.any() else eligible
        self.meets = self._eligible & (probability >= limits.confidence)
        self._allocations = Allocations(
            spent=self.spent.medians(),
            probability=probability,
            is_eligible=self._eligible,
            is_measured=np.concatenate([outlook.is_measured for outlook in outlooks]),
        )

    def at(self, label: str) -> int:
        """Return the position of the row that was chosen of one kind."""
        return self._places.index((label, self.kinds[label].comparison.choice.index))

    def chosen(self) -> str:
        """Choose among all rows; return the kind, whose choice is this row then."""
        if self.limits.limited:
            found = best_within(self._allocations, self.limits)
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
        choice = self.kinds[label].comparison.choice

        rule = f"{found.rule}; all devices are compared"
        if choice.index == at:
            rule = f"{choice.rule}; of the devices, {self._why(found)}"

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
        rows = [row for answer in answers.values() for row in answer.rows]
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
        yield from self._in_draws(index)
        if others:
            yield self._why_not(best, others)
            yield Fact.of("against_devices", name=best, chances=chances)

        medians = self.spent.medians()
        time_s, amount = medians.time_s, medians.of(self.spent.cost)
        is_elsewhere = np.array([label != best for label, _ in self._places])
        is_worth = self.meets & is_elsewhere & (MUCH_FASTER * time_s <= time_s[index])

        is_worth &= amount <= (1 + LITTLE_MORE) * amount[index]
        if self.has_money and self.meets[index] and is_worth.any():
            at = int(np.where(is_worth, time_s, np.inf).argmin())
            row = self._row(at)
            yield Fact.of(
                "faster_device",
                name=self._places[at][0],
                world_size=int(row["world_size"]),
                basis=str(row["support"]),
                speedup=float(time_s[index] / time_s[at]),
                cost_ratio=float(amount[at] / amount[index]),
            )

    def _in_draws(self, index: int) -> Iterator[Fact]:
        """Note in how many draws the choice among all devices is the same."""
        among = self.meets
        if not self.limits.limited:
            chosen = [self.at(label) for label in self.kinds]
            among = among & np.isin(np.arange(len(among)), chosen)

        medians = least_of(self.spent.medians(), among, index, self.limits)
        if among[index] and (medians == index).all():
            places = [
                {"world_size": int(self._row(at)["world_size"]), "device": label}
                for at, (label, _) in enumerate(self._places)
            ]
            picked = least_of(self.spent, among, index, self.limits)
            yield choice_in_draws(picked, index, places)

    def _why_not(self, best: str, others: Mapping[str, int]) -> Fact:
        """Note what the best of the other kinds takes beside the chosen row."""
        medians, chosen = self.spent.medians(), self.at(best)
        least, cost = medians.of(self._resource), medians.of(self.spent.cost)
        label = min(others, key=lambda n: (not self.meets[others[n]], least[others[n]]))
        at = others[label]
        row, chosen_row = (self._row(place) for place in (at, chosen))
        limits = self.limits

        reason: WhyNot = "compared"
        if limits.limited and not self.meets[at]:
            reason = "unlikely"
        elif self.meets[at] and least[at] > least[chosen]:
            reason = "takes_more"

        units = limits.units(self.kinds[best].knowledge.subject.device_hour_word)
        spent = self.spent.cost if self.spent.cost.is_spent else None
        return Fact.of(
            "why_not",
            device=label,
            own_device=best,
            world_size=int(row["world_size"]),
            than=int(chosen_row["world_size"]),
            basis=str(row["support"]),
            time_s=float(medians.time_s[at]),
            speedup=float(medians.time_s[chosen] / medians.time_s[at]),
            cost_ratio=float(cost[at] / cost[chosen]),
            unit=spent and spent.unit(float(cost[chosen]), units)[1],
            reason=reason,
            needed=None,
            probability=float(self._allocations.probability[at]),
            limits=[*limits.in_words(units)],
        )

    def _row(self, at: int) -> pd.Series:
        label, place = self._places[at]
        return self.kinds[label].comparison.printed.frame.iloc[place]

    def nearest(self, words: Mapping[str, DeviceWords]) -> Fact:
        """Note the nearest limits that can be met, on any of the devices."""
        found = [
            {**miss, "device": label}
            for label, kind in self.kinds.items()
            for miss in nearest(
                kind.comparison.every, kind.limits, kind.limits.units(words[label].hour)
            )
        ]
        return nearest_of(found, self.limits.confidence)


def _side_by_side(kinds: Sequence[Considered], *, are_alike: bool) -> Spending:
    """Return draws of what can be compared, shape (n_draws, n_rows).

    Each kind of device has its draws in an order of its own: what is not known of one
    has nothing to do with what is not known of another.
    """
    spent = [considered.comparison.printed.spent for considered in kinds]
    names = [
        row.name
        for row in RESOURCES
        if (row.compares_devices or are_alike)
        and all(row in spending.known for spending in spent)
    ]

    rng = np.random.default_rng(_SEED)
    known = dict.fromkeys(considered.kind for considered in kinds)
    orders = {kind: rng.permutation(NUM_DRAWS) for kind in known}
    drawn = [
        spending.in_order(orders[considered.kind])
        for considered, spending in zip(kinds, spent, strict=True)
    ]
    return Spending(
        {n: np.hstack([spending.amounts[n] for spending in drawn]) for n in names},
        np.hstack([spending.is_mean for spending in drawn]),
    )
