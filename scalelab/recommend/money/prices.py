"""Prices: which of those that were said holds for a kind of device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date as Date
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.inputs.money import USUAL, Per
from scalelab.inputs.numerals import duration
from scalelab.inputs.problems import Option, one_of
from scalelab.site.prices import PriceEntry, read_prices
from scalelab.site.spot import Spot, joined_terms

if TYPE_CHECKING:
    import numpy as np

    from scalelab.recommend.money.history import PriceHistory
    from scalelab.recommend.question.devices import DeviceKind
    from scalelab.site.profile import Site

# Who says a price; of several that fit a device, the last one here counts
TABLE, SITE, FILE, GIVEN = range(4)
_LASTS_DAYS = 90
UNNAMED = "these devices"


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """An entry of a price list, and who says it."""

    entry: PriceEntry
    rank: int
    said_by: str

    def fit(self, device: DeviceKind) -> int | None:
        """Return how closely the entry names a device; None: it is of another one."""
        return device.closeness(self.entry.device or "", self.entry.node or "")


def quotes_in(path: Path) -> Iterator[Quote]:
    """Yield the prices of a list, which name it and their source."""
    for entry in read_prices(path.expanduser()):
        source = ", ".join(map(str, filter(None, (entry.source, entry.date))))
        whose = f" ({source})" if source else ""
        yield Quote(entry=entry, rank=FILE, said_by=f"by {path.name}{whose}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What a kind of device is charged per hour."""

    amount: float
    currency: str = USUAL
    per: Per = "device_hour"
    terms: Spot | None = None  # of the same, but interruptible
    history: PriceHistory | None = None  # what it was, and is taken to become
    minimum_s: float = 0.0  # that are charged at least
    said_by: str = "as given"
    date: Date | None = None
    cores_per_node: int | None = None  # None: a device is a core

    def per_hour(
        self, num_nodes: np.ndarray, allocated: np.ndarray, time_s: np.ndarray
    ) -> np.ndarray:
        """Return what allocations are charged per hour, shape (..., n_rows).

        Jobs of a length of ``time_s``, of that shape, pay what a history says.
        """
        amount = self.history.over(time_s) if self.history else self.amount
        charged = allocated
        if self.per == "node_hour":
            charged = num_nodes
        elif self.per == "core_hour" and self.cores_per_node is not None:
            charged = num_nodes * self.cores_per_node
        return charged * amount

    def in_words(self, device_hour_word: str) -> str:
        """Return the price, what it is charged for and who says it, in a sentence.

        >>> price = Price(amount=2.5, said_by="by the profile of site a")
        >>> price.in_words("GPU-h")
        '2.5 usd per GPU-h, by the profile of site a.'
        """
        unit = {"node_hour": "node-h", "core_hour": "core-h"}.get(self.per)
        parts = [f"{self.amount:.4g} {self.currency} per {unit or device_hour_word}"]
        if self.terms and self.terms.price is not None:
            parts[0] += f" on demand ({float(self.terms.price):g} on the spot market)"
        if self.minimum_s:
            parts.append(f"of at least {duration(self.minimum_s)}")
        return f"{', '.join([*parts, self.said_by])}."

    def age_days(self, today: Date | None) -> int | None:
        """Return how old the price is where that is too old, in days; else None."""
        if today is None or self.date is None:
            return None
        days = (today - self.date).days
        return days if days > _LASTS_DAYS else None


def price_of(
    device: DeviceKind, quotes: Iterable[Quote], site: Site | None
) -> Price | None:
    """Return the price of a kind of device: the closest of the first that say one.

    What is asked counts for more than a price list, that for more than the site's own
    price, and that for more than the columns of a table.
    """
    fitting = [
        (quote.rank, closeness, quote)
        for quote in [*quotes, *_of_site(site)]
        if (closeness := quote.fit(device)) is not None
    ]
    if not fitting:
        return None

    *best, quote = max(fitting, key=lambda fit: fit[:2])
    alike = [fit[2] for fit in fitting if [*fit[:2]] == best]
    if any(quote_alike.entry != quote.entry for quote_alike in alike):
        amounts = " and ".join(
            str(quote_alike.entry.on_demand) for quote_alike in alike
        )
        raise SpecError(
            f"{device.label or UNNAMED}: several prices are said, {amounts}, "
            f"{quote.said_by}. Keep one, or name the devices more closely.",
            code="several_prices",
        )

    entry, cores = quote.entry, getattr(site, "cores_per_node", None)
    if entry.per == "core_hour" and device.device_type != "cpu" and cores is None:
        raise SpecError(
            f"The price of {device.label}, {entry.on_demand}, is per core, and how "
            "many cores come with its devices is not known. Say cores_per_node in the "
            "site, or write the price per device_hour or node_hour.",
            code="cores_unknown",
        )

    return Price(
        amount=float(entry.on_demand),
        currency=entry.unit,
        per=entry.per,
        terms=joined_terms(site.spot if site else None, entry.spot),
        minimum_s=entry.minimum_s,
        said_by=quote.said_by,
        date=entry.date,
        cores_per_node=cores,
    )


def check_prices(
    prices: Mapping[str, Price],
    quotes: Iterable[Quote],
    known: Sequence[DeviceKind],
    currency: str,
) -> None:
    """Refuse prices that were asked of no device, and several currencies.

    ``currency`` is that of a limit of money; empty: it says none.
    """
    for quote in quotes:
        if quote.rank == GIVEN and (name := quote.entry.device):
            option_of_price = Option("price", str(quote.entry.on_demand), key=name)
            refuse_unmeasured(name, option_of_price, known)

    units = {f"the price of {n or UNNAMED}": prices[n].currency for n in prices}
    units |= {"the limit": currency} if currency and prices else {}
    if len({*units.values()}) > 1:
        listed = ", ".join(f"{name} in {unit}" for name, unit in units.items())
        raise SpecError(
            f"Money of several currencies is not compared: {listed}. Say all of it in "
            f"one: {Option('price', '2usd', key='DEVICE')}.",
            code="several_currencies",
        )


def refuse_unmeasured(
    name: str, option_of_price: Option, known: Sequence[DeviceKind]
) -> None:
    """Refuse what is said of a device that was not measured."""
    if all(kind.closeness(name) is None for kind in known):
        raise SpecError(
            f"{option_of_price}: nothing was measured on {name}. "
            f"{one_of([kind.label for kind in known], name)}",
            code="device_not_measured",
        )


def _of_site(site: Site | None) -> list[Quote]:
    if site is None:
        return []
    per: Per = "node_hour" if site.price_per_node_hour else "device_hour"
    amount = site.price_per_node_hour or site.price_per_gpu_hour
    said_by = f"by the profile of site {site.name}"

    return (
        [Quote(entry=PriceEntry(on_demand=amount, per=per), rank=SITE, said_by=said_by)]
        if amount
        else []
    )
