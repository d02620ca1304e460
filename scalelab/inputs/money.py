"""Money and prices as users write them: ``20usd``, ``$2.50``, ``3eur/node-h``.

An amount keeps its currency, so that amounts of two currencies are never added.
"""

import re
from typing import Literal, NamedTuple, Self

from scalelab.errors import SpecError
from scalelab.inputs.problems import one_of
from scalelab.inputs.quantities import NUMBER

Per = Literal["device_hour", "node_hour", "core_hour"]
# ISO 4217, in small letters; credits are what a site charges in instead of money
CURRENCIES = (
    *("usd", "eur", "gbp", "chf", "cad", "aud", "nzd", "jpy", "cny", "inr", "krw"),
    *("twd", "sgd", "sek", "nok", "dkk", "pln", "czk", "huf", "ron", "brl", "mxn"),
    *("try", "zar", "ils", "credits"),
)
USUAL = "usd"
_SIGNS = {"$": "usd", "€": "eur", "£": "gbp"}
_PER: dict[str, Per] = {
    **dict.fromkeys(("device-h", "gpu-h", "tpu-h"), "device_hour"),
    "core-h": "core_hour",
    "node-h": "node_hour",
}
_MOST = 10**15
_AMOUNT = re.compile(rf"([$€£]?)\s*({NUMBER})\s*([a-z]*)")


class Money(float):
    """An amount of money, and its currency; empty: it is not said."""

    currency: str

    def __new__(cls, amount: float, currency: str = "") -> Self:
        """Return an amount in a currency."""
        money = super().__new__(cls, amount)
        money.currency = currency
        return money

    def __repr__(self) -> str:
        return f"Money({float(self)!r}, {self.currency!r})"

    def __str__(self) -> str:
        return f"{float(self):.15g}{self.currency}"


class Rate(NamedTuple):
    """A price: money for one device, node or core in one hour."""

    money: Money
    per: Per


def known_currency(name: str) -> str:
    """Return a currency in small letters; one that is not known is refused."""
    if name.lower() not in CURRENCIES:
        raise SpecError(
            f"the currency {name[:20]!r} is not known. {one_of(CURRENCIES, name)}",
            code="unknown_currency",
        )
    return name.lower()


def parse_money(text: str) -> Money:
    """Return an amount of money; a bare number has no currency.

    >>> parse_money("20usd"), parse_money("$2.50"), parse_money("1,200 EUR")
    (Money(20.0, 'usd'), Money(2.5, 'usd'), Money(1200.0, 'eur'))
    """
    found = _AMOUNT.fullmatch(text.strip().lower())
    if not found or (found[1] and found[3]):
        raise SpecError(
            f"{text[:60]!r} is not a price. Write a positive number and a currency, "
            "such as '20usd', '$2.50' or '3eur'.",
            code="not_a_price",
        )

    currency = _SIGNS.get(found[1], "")
    if found[3]:
        currency = known_currency(found[3])

    return positive_money(float(found[2].replace(",", "")), currency)


def positive_money(amount: float, currency: str = "") -> Money:
    """Return an amount of money; zero is refused: with it, all that costs is alike."""
    if not amount < _MOST:
        raise SpecError(
            f"{amount:g} is not a price: it must be less than {_MOST:.0e}.",
            code="price_out_of_range",
        )
    if not amount > 0:
        raise SpecError(
            f"{amount:g} is not a price: it must be greater than 0. Of nodes that are "
            "paid already, write what an hour of them is worth, such as 0.05usd for "
            "the electricity; or leave the price out and compare by time.",
            code="price_not_positive",
        )
    return Money(amount, currency)


def parse_rate(text: str) -> Rate:
    """Return a price per hour: of a device, unless it says of a node or a core.

    >>> parse_rate("2.5usd"), parse_rate("3eur/node-h").per
    (Rate(money=Money(2.5, 'usd'), per='device_hour'), 'node_hour')
    """
    amount, slash, unit = text.partition("/")
    per = _PER.get(unit.strip().lower(), "device_hour")
    if slash and unit.strip().lower() not in _PER:
        raise SpecError(
            f"{text[:60]!r}: nothing is charged per {unit.strip()[:20]!r}. "
            f"{one_of(_PER, unit)}",
            code="unknown_unit_of_price",
        )
    return Rate(parse_money(amount), per)
