"""Price lists: what an hour of a device, a node or a core is charged."""

from datetime import date as Date
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from scalelab.errors import SpecError
from scalelab.inputs.document import paragraph, parse_list, read_document
from scalelab.inputs.fields import Currency, Price, Section, Text
from scalelab.inputs.money import USUAL, Money, Per
from scalelab.inputs.problems import validated
from scalelab.site.spot import Spot


class PriceEntry(Section):
    """What one kind of device is charged per hour."""

    device: Text | None = Field(
        default=None,
        description="Model of the device, or words of it, such as A100 or A100 80GB "
        "[default: any].",
    )
    node: Text | None = Field(
        default=None, description="Node group or type of the nodes [default: any]."
    )
    on_demand: Price = Field(description="The price, such as 0.39 or '0.39usd'.")
    spot: Spot | None = Field(
        default=None,
        description="The price of the same, but interruptible, or what else is known "
        "of that.",
    )
    per: Per = Field(
        default="device_hour", description="What is charged: a device, node or core."
    )
    currency: Currency | None = Field(
        default=None,
        description="The currency of both, such as eur [default: that of the price, "
        "else usd].",
    )
    minimum_s: Annotated[float, Field(strict=True, ge=0)] = Field(
        default=0.0, description="Seconds that are charged at least."
    )
    source: Text | None = Field(
        default=None, description="Where the price stands, such as an address."
    )
    date: Date | None = Field(
        default=None, description="The day on which it stood there, as 2026-11-01."
    )

    @model_validator(mode="after")
    def _has_one_currency(self) -> Self:
        if len(self._currencies) > 1:
            raise SpecError(
                f"on_demand={self.on_demand}, spot={self._spot} and currency="
                f"{self.currency} are of several currencies. Write one entry for each.",
                code="several_currencies",
            )
        return self

    @property
    def unit(self) -> str:
        """The currency of its amounts."""
        return next(iter(self._currencies), USUAL)

    @property
    def _currencies(self) -> set[str]:
        amounts = filter(None, [self.on_demand, self._spot])
        currencies = [self.currency, *(amount.currency for amount in amounts)]
        return {currency for currency in currencies if currency}

    @property
    def _spot(self) -> Money | None:
        return self.spot.price if self.spot else None


class PriceList(Section):
    """The entries of a price list."""

    prices: tuple[PriceEntry, ...]


def read_prices(path: Path) -> tuple[PriceEntry, ...]:
    """Read a price list: a YAML file that holds a list of entries."""
    entries = parse_list(read_document(path), source=str(path))
    if not entries:
        raise paragraph(
            f"{path} holds no price. Write a list of entries.", code="no_prices"
        )
    return validated(PriceList, {"prices": entries}, source=str(path)).prices
