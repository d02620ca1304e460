"""Columns of prices in a foreign table: on demand and on the spot market."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from scalelab.errors import SpecError
from scalelab.inputs.money import CURRENCIES, USUAL, Money, Per, parse_money
from scalelab.inputs.problems import shown
from scalelab.reading.tables.curves import ImportedRow
from scalelab.reading.tables.names import plain

_PER: Mapping[str, Per] = {
    **dict.fromkeys(("node", "instance", "machine"), "node_hour"),
    "core": "core_hour",
}
_PRICES = {"price", "demand", "ondemand", "spot"}
_OTHERS = {"on", "cost", "per", "hour", "h", "hourly", "gpu", "device", "worker"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TablePrices:
    """The prices that a table gives for its devices, as entries of a price list."""

    entries: tuple[Mapping[str, Any], ...] = ()
    columns: tuple[str, ...] = ()  # that they were read from
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str], rows: Sequence[ImportedRow]) -> Self:
        """Read the price columns among some names.

        A column is passed over where a device has several prices, or no number.
        """
        read: dict[str, tuple[str, Mapping[str | None, Money]]] = {}
        notes = []
        for name in names:
            kind = _kind(name)
            if kind is None or kind in read:
                continue
            try:
                read[kind] = name, _by_device(name, rows)
            except SpecError as error:
                notes.append(f"Not read as a price: {shown(name)}, {error}")

        if "on_demand" not in read:
            return cls(notes=tuple(notes))

        column, amounts = read["on_demand"]
        _, spot = read.get("spot", ("", {}))
        entries = tuple(
            _entry(column, device, amount, spot.get(device))
            for device, amount in amounts.items()
        )
        columns = tuple(name for name, _ in read.values())
        words = (
            f"{entry['device'] or 'all'} {entry['on_demand']}" for entry in entries
        )
        notes.append(
            f"Prices from {', '.join(map(shown, columns))}: {', '.join(words)}."
        )
        return cls(entries=entries, columns=columns, notes=tuple(notes))


def _entry(
    column: str, device: str | None, amount: Money, spot: Money | None
) -> dict[str, Any]:
    """Return an entry of a price list; the column's name may tell what it is per."""
    words = plain(column).split("_")
    entry: dict[str, Any] = {"device": device, "on_demand": str(amount)}
    entry["per"] = next((_PER[word] for word in words if word in _PER), "device_hour")
    if spot is not None:
        entry["spot"] = str(spot)
    if not amount.currency:
        entry["currency"] = next((w for w in words if w in CURRENCIES), USUAL)
    return entry


def _kind(name: str) -> str | None:
    """Return what a column of this name may be: on_demand or spot; None: no price.

    >>> [_kind(n) for n in ("on demand", "Spot price (usd/h)", "price", "cost", "x")]
    ['on_demand', 'spot', 'on_demand', None, None]
    """
    words = {*plain(name).split("_")}
    if not words & _PRICES or words - _PRICES - _OTHERS - {*_PER, *CURRENCIES}:
        return None
    return "spot" if "spot" in words else "on_demand"


def _by_device(name: str, rows: Sequence[ImportedRow]) -> dict[str | None, Money]:
    """Return the only price of each device; several, or none, are refused."""
    found: dict[str | None, Money] = {}
    for row in rows:
        if cell := row.cells[name]:
            device = row.values.get("device_name") or row.values.get("device_type")
            amount = parse_money(cell)
            if found.setdefault(device, amount) != amount:
                raise SpecError(
                    f"for {device or 'one device'} has several: {found[device]} and "
                    f"{amount}.",
                    code="several_prices",
                )
    return found
