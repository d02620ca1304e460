"""The spot market beside the same nodes on demand: what it takes, and where it pays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from scalelab.errors import SpecError
from scalelab.kinds.resources import MONEY, TIME
from scalelab.laws.rows import strategies
from scalelab.recommend.advice import Considered
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.note_words import in_words
from scalelab.recommend.money.prices import UNNAMED
from scalelab.recommend.money.spot import SeenInterruptions, SpotMarket
from scalelab.recommend.prediction.outlook import Outlook, interrupted
from scalelab.recommend.question.objective import Constraints
from scalelab.site.spot import AskedSpot, Spot, joined_terms

ON_DEMAND, SPOT = "on demand", "spot"
_MATTERS = 0.05  # a change of time or cost that is said
_DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OnSpot:
    """A kind of device on demand and on the spot market."""

    on_demand: Considered
    spot: Considered
    market: SpotMarket

    @property
    def names(self) -> tuple[str, str]:
        """What both are called."""
        usual, spot = self.on_demand.knowledge.subject, self.spot.knowledge.subject
        return usual.device, spot.device

    @property
    def about(self) -> dict[str, str]:
        """What all notes on it say: what its devices are called, and the currency."""
        subject = self.on_demand.knowledge.subject
        return {
            "name": subject.device,
            "device_word": subject.device_word,
            "currency": self.spot.limits.units("").currency,
        }

    def of_choice(self, size: int) -> Iterator[Fact]:
        """Note what both take on as many devices, and what that hangs on."""
        outlooks = [
            considered.comparison.printed for considered in (self.on_demand, self.spot)
        ]
        if all(size in outlook.sizes for outlook in outlooks):
            usual, row = (_row_of(outlook, size) for outlook in outlooks)
            nodes = row.frame["num_nodes"].to_numpy(float)
            terms = self.market.interruptions
            (way,) = strategies(row.frame)
            yield Fact.of(
                "spot_beside",
                **self.about,
                world_size=size,
                on_demand=_taken(usual, self.on_demand),
                spot=_taken(row, self.spot),
                checkpoint_every_s=float(terms.intervals(nodes)[0]),
                is_best_interval=terms.interval_s is None,
                is_gang=way.is_synchronous,
            )
            yield from self._hangs_on(row)

    def history(self) -> Iterator[Fact]:
        """Note how steady a history of prices was."""
        price, usual = self.market.price, self.on_demand.limits.price
        if price and price.history:
            history, hours = price.history, price.history.hours()
            lo, hi = np.quantile(hours, [0.1, 0.9])
            above = 0.0 if usual is None else float((hours > usual.amount).mean())
            yield Fact.of(
                "spot_history",
                **self.about,
                file=history.name,
                days=float(history.times_s[-1]) / _DAY_S,
                mean=history.mean,
                lo=float(lo),
                hi=float(hi),
                most=float(history.amounts.max()),
                variation=float(hours.std() / history.mean),
                has_price=usual is not None,
                share_above=above,
            )

    def pays(self) -> dict[str, Any]:
        """Return up to how many devices the spot market surely costs less."""
        one, other = self.on_demand.comparison.printed, self.spot.comparison.printed
        sizes = [int(size) for size in one.sizes if size in other.sizes]
        ends = {*self.spot.comparison.every.sizes}

        sure, chances = self.on_demand.limits.confidence, []
        for size in sizes:
            costs = [_row_of(outlook, size).spent.of(MONEY) for outlook in (one, other)]
            chances.append(float((costs[1] < costs[0]).mean()))

        does_pay = [chance >= sure for chance in chances]
        count = does_pay.index(False) if False in does_pay else len(does_pay)
        return {
            **self.about,
            "sizes": sizes,
            "chances": chances,
            "up_to": sizes[count - 1] if count else None,
            "never_ends": [int(size) for size in one.sizes if size not in ends],
        }

    def _hangs_on(self, row: Outlook) -> Iterator[Fact]:
        """Note what the time and cost become with each of the terms doubled."""
        terms = self.market.interruptions
        known = _taken(row, self.spot)
        doubled = {
            "interruptions": replace(terms, per_second=2 * terms.per_second),
            "checkpoint": replace(terms, checkpoint_s=2 * terms.checkpoint_s),
            "restart": replace(terms, restart_s=2 * terms.restart_s),
            "wait": replace(terms, wait_s=2 * terms.wait_s),
        }

        changed: dict[str, Any] = {}
        for name, others in doubled.items():
            taken = _taken(interrupted(row, self.spot.limits, others), self.spot)
            grown = {
                title: amount
                for title, amount in taken.items()
                if amount["value"] >= (1 + _MATTERS) * known[title]["value"]
            }
            if grown or not taken:  # nothing is taken by what would not end
                changed[name] = grown

        yield Fact.of("spot_hangs_on", **self.about, least=_MATTERS, doubled=changed)


def _row_of(outlook: Outlook, size: float) -> Outlook:
    return outlook.take(outlook.sizes == size)


def _taken(row: Outlook, considered: Considered) -> dict[str, Any]:
    """Return time and cost of one row, with their intervals; of no row, nothing."""
    mass = considered.limits.interval
    return {
        name: asdict(row.between(resource, mass)[0])
        for name, resource in (("time_s", TIME), ("cost", MONEY))
        if resource in row.spent.known and len(row.sizes)
    }


def spot_facts(pairs: Sequence[OnSpot], best: str, size: int) -> Iterator[Fact]:
    """Note what the spot market takes beside the same nodes, where, and why."""
    priced = [p for p in pairs if p.market.price and p.on_demand.limits.price]
    kinds = [kind for kind in (pair.pays() for pair in priced) if kind["sizes"]]
    if kinds:
        limits = pairs[0].on_demand.limits
        yield Fact.of("spot_pays", confidence=limits.confidence, kinds=kinds)

    alike: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for pair in pairs:
        terms = pair.market.terms
        alike.setdefault(repr(terms), (terms, []))[1].append(pair.names[0])

    if alike:
        yield Fact.of(
            "spot_terms",
            kinds=[
                {**terms_alike, "names": names} for terms_alike, names in alike.values()
            ],
        )

    for pair in pairs:
        if best in pair.names:
            yield from pair.of_choice(size)

    for pair in pairs:
        yield from pair.history()


def beside_each_other(
    kinds: Mapping[str, Considered],
    terms: Mapping[str, Spot | None],
    asked: AskedSpot | None,
) -> tuple[dict[str, Considered], list[OnSpot], list[Fact]]:
    """Put the spot market beside each kind of device whose terms are known.

    ``terms`` are those of prices and sites, by the kind's label; those ``asked`` count
    for more.

    Raises
    ------
    SpecError
        If it is asked for, and nothing says how often nodes are interrupted, or what
        they cost where money is limited.
    """
    found, pairs, facts = dict[str, Considered](), list[OnSpot](), list[Fact]()
    unknown: dict[str, list[str]] = {}
    for label, considered in kinds.items():
        found[label] = considered
        asked_of_it = asked and asked.on(label)
        if (joined := joined_terms(terms.get(label), asked_of_it)) is None:
            continue

        seen = SeenInterruptions.of(considered.knowledge.subject.frame)
        if missing := _missing(joined, seen, considered.limits, is_asked=bool(asked)):
            unknown.setdefault(missing, []).append(label or UNNAMED)
            continue

        comparison, price = considered.comparison, considered.limits.price
        chosen = comparison.printed.frame.iloc[comparison.choice.index].to_dict()
        market = SpotMarket.of(
            joined,
            price,
            seen,
            considered.knowledge.overhead.start_up_of(chosen),
            is_asked="price" in (asked_of_it or Spot()).model_fields_set,
        )

        spot = considered.on_spot(f"{label} {SPOT}".strip(), market)
        if spot is None:
            facts.append(Fact.of("spot_never_ends", name=label, **market.terms))
            continue

        del found[label]
        usual = considered.called(
            label or ON_DEMAND, price and replace(price, terms=None)
        )
        found |= {
            considered.knowledge.subject.device: considered
            for considered in (usual, spot)
        }
        pairs.append(OnSpot(on_demand=usual, spot=spot, market=market))

    for missing, names in unknown.items():
        fact = Fact.of("spot_not_compared", names=names, is_price=missing == "price")
        if asked and not pairs:
            raise SpecError(in_words(fact, ""), code=fact.kind)
        facts.append(fact)

    return found, pairs, facts


def _missing(
    asked: Spot, seen: SeenInterruptions, limits: Constraints, *, is_asked: bool
) -> str:
    """Return the key of the terms without which there is nothing to compare."""
    is_meant = is_asked or not asked.model_fields_set <= {"price"}
    if asked.interrupted_every is None and not (is_meant and seen.node_hours):
        return "interrupted_every"
    has_price = asked.price is not None or asked.history is not None
    return "" if has_price or MONEY.name not in limits.limits else "price"
