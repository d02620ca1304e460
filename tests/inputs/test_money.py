import doctest

import pytest
from sentences import refused

from scalelab.inputs import money
from scalelab.inputs.money import Money, parse_money, parse_rate


def test_the_examples_hold() -> None:
    assert doctest.testmod(money).failed == 0


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        ("20usd", 20, "usd"),
        ("$2.50", 2.5, "usd"),
        ("1.5", 1.5, ""),
        ("1,234 usd", 1234, "usd"),
        ("$1,000", 1e3, "usd"),
        ("3 EUR", 3, "eur"),
        ("120credits", 120, "credits"),
    ],
)
def test_an_amount_keeps_its_currency(text: str, amount: float, currency: str) -> None:
    found = parse_money(text)
    assert (found, found.currency) == (amount, currency)


@pytest.mark.parametrize("text", ["", "usd", "-2usd", "$", "$2usd", "two", "1,2usd"])
def test_what_is_no_money_is_refused(text: str) -> None:
    with refused("not_a_price", "'20usd'", "'$2.50'"):
        parse_money(text)


def test_an_unknown_currency_is_refused_with_those_that_are_known() -> None:
    with refused("unknown_currency", "'eru'", "'eur'"):
        parse_money("2eru")


def test_a_price_of_zero_says_what_to_write_instead() -> None:
    with refused("price_not_positive"):
        parse_money("0usd")


@pytest.mark.parametrize(
    ("text", "per"),
    [
        ("2usd", "device_hour"),
        ("2usd/gpu-h", "device_hour"),
        ("2usd / node-h", "node_hour"),
        ("2usd/core-h", "core_hour"),
    ],
)
def test_a_price_is_of_a_device_a_node_or_a_core(text: str, per: str) -> None:
    assert parse_rate(text) == (Money(2.0), per)


def test_a_price_of_something_else_is_refused() -> None:
    with refused("unknown_unit_of_price", "'week'", "device"):
        parse_rate("2usd/week")
