"""Resources: time, device-hours and whatever else a job takes and a user may limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

from scalelab.errors import SpecError
from scalelab.inputs.money import USUAL, Money, parse_money
from scalelab.inputs.numerals import (
    device_time_unit,
    duration_unit,
    largest_unit,
    number,
)
from scalelab.inputs.problems import Option, one_of, shown
from scalelab.inputs.quantities import (
    parse_duration,
    parse_energy,
    parse_gpu_hours,
    parse_mass,
)
from scalelab.kinds.registry import Registry

if TYPE_CHECKING:
    import numpy as np

PRICE_PER_HOUR = "price_per_hour"
POWER_W = "power_w"
CARBON_G_PER_KWH = "carbon_g_per_kwh"
MODELLED = "modelled"


class Units(NamedTuple):
    """The words for a device-hour (``GPU-h``, ``core-h``), and the currency.

    ``energy_source`` tells energy that is ``modelled`` from what counters measured.
    """

    device_hour: str
    currency: str = USUAL
    energy_source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """The devices and nodes that the job occupies on each allocation, and its time.

    Parameters
    ----------
    time_s : ndarray, shape (..., n_rows)
        Time of the job, usually many draws of it.
    world_size, num_nodes : ndarray, shape (n_rows,)
        Devices, and the nodes they are on.
    devices_on_node
        Devices of an exclusive node: a job holds them all; None: those that it uses.
    rates : mapping of ndarray, shape (n_rows,)
        What is known of the allocations, by name: ``price_per_hour`` where there is a
        price, ``power_w`` that their devices draw with what cools them, and
        ``carbon_g_per_kwh`` of the electricity.
    minimum_s
        Seconds that are charged at least.
    charged_s : ndarray, shape (..., n_rows)
        Seconds for which all its nodes together are charged; None: its time. They are
        fewer where nodes are taken away and waited for.
    """

    time_s: np.ndarray
    world_size: np.ndarray
    num_nodes: np.ndarray
    devices_on_node: int | None = None
    rates: Mapping[str, np.ndarray] = field(default_factory=dict)
    minimum_s: float = 0.0
    charged_s: np.ndarray | None = None

    @property
    def hours(self) -> np.ndarray:
        """Hours for which the job holds its nodes, shape (..., n_rows)."""
        return (self.time_s if self.charged_s is None else self.charged_s) / 3600

    @property
    def allocated(self) -> np.ndarray:
        """Devices that nobody else can use meanwhile, shape (n_rows,)."""
        whole = self.devices_on_node
        return self.world_size if whole is None else self.num_nodes * whole


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """Something that a job takes, that has a unit and may be limited.

    Parameters
    ----------
    name
        Name of the row, e.g. ``money``.
    field
        Name in the answer's JSON, with the unit: ``cost_usd``. ``max_cost_usd`` limits
        it from Python by a number in that unit. Where it names usd, the answer's own
        currency stands in its place.
    limit
        Name of the limit as text: ``max_cost`` is ``--max-cost 20usd`` on the command
        line and ``max_cost="20usd"`` in Python.
    parse
        Reads the text of a limit; raises ``SpecError``.
    exact
        Makes an amount of a number in the field's unit.
    example, help
        What the command line shows for the option.
    amount
        How much each allocation takes, shape of ``Usage.time_s``; None where it cannot
        be computed.
    missing
        What is missing then, after "max_cost='20 usd' needs": a noun, a full stop
        and what to do.
    unit
        The unit in which to write an amount: its size and its name, from the amount and
        the units of the answer.
    is_spent
        Used up by the job, as money is. Of what is not, which is time, users choose
        between more of it and more spending.
    also_called
        Another name of the limit: ``deadline`` for ``max_time``.
    weight
        Of the resources that are spent, the one of the largest weight whose amount is
        known is kept small where there is a limit on time; 0: never.
    compares_devices
        Amounts on devices of different kinds can be compared.
    bare_from
        A limit that is a number without a unit is in the field's unit from here on:
        4 as a time may be hours, 3,600 is seconds.
    least
        What is said of the allocation that takes least of it, e.g. ``costs least``.
    """

    name: str
    field: str
    limit: str
    parse: Callable[[str], float]
    example: str
    help: str
    amount: Callable[[Usage], np.ndarray | None]
    unit: Callable[[float, Units], tuple[float, str]]
    least: str
    exact: Callable[[float], float] = float
    bare_from: float = math.inf
    missing: str = ""
    is_spent: bool = True
    weight: int = 0
    also_called: str = ""
    compares_devices: bool = True

    @property
    def max_field(self) -> str:
        """Name of the limit as a number in the field's unit."""
        return f"max_{self.field}"

    def field_in(self, currency: str) -> str:
        """Return the name in JSON of an answer in some currency.

        >>> MONEY.field_in("eur"), TIME.field_in("eur")
        ('cost_eur', 'time_s')
        """
        return "_".join(currency if w == USUAL else w for w in self.field.split("_"))

    def in_words(self, amount: float, units: Units) -> str:
        """Write an amount with its unit.

        >>> MONEY.in_words(20, Units("GPU-h")), TIME.in_words(10440, Units("GPU-h"))
        ('20 usd', '2.9 h')
        """
        scale, unit = self.unit(amount, units)
        return f"{number(amount / scale)} {unit}"


def _charged(usage: Usage) -> np.ndarray | None:
    rate = usage.rates.get(PRICE_PER_HOUR)
    hours = usage.hours.clip(min=usage.minimum_s / 3600)
    return None if rate is None else hours * rate


def _energy(usage: Usage) -> np.ndarray | None:
    power_w = usage.rates.get(POWER_W)
    return None if power_w is None else usage.hours * power_w / 1000


def _carbon(usage: Usage) -> np.ndarray | None:
    kilowatt_hours = _energy(usage)
    rate = usage.rates.get(CARBON_G_PER_KWH)
    return None if rate is None or kilowatt_hours is None else kilowatt_hours * rate


def _energy_unit(amount: float, units: Units) -> tuple[float, str]:
    scale, name = largest_unit(amount, ((1.0, "kWh"), (1e3, "MWh")))
    is_modelled = units.energy_source == MODELLED
    return scale, f"{name} ({MODELLED})" if is_modelled else name


TIME = Resource(
    name="time",
    field="time_s",
    limit="max_time",
    parse=parse_duration,
    example="4h",
    help="The deadline.",
    also_called="deadline",
    amount=lambda usage: usage.time_s,
    unit=lambda amount, _: duration_unit(amount),
    bare_from=600.0,
    least="is fastest",
    is_spent=False,
)
DEVICE_HOURS = Resource(
    name="device_hours",
    field="gpu_hours",
    limit="max_gpu_hours",
    parse=parse_gpu_hours,
    example="50gpu-h",
    help="Device time.",
    amount=lambda usage: usage.hours * usage.allocated,
    unit=lambda amount, units: device_time_unit(amount, units.device_hour),
    least="takes the fewest device-hours",
    weight=1,
    compares_devices=False,
)
MONEY = Resource(
    name="money",
    field="cost_usd",
    limit="max_cost",
    parse=parse_money,
    example="20usd",
    help="Money; needs a price.",
    also_called="budget",
    amount=_charged,
    unit=lambda _, units: (1.0, units.currency),
    least="costs least",
    missing="a price. Say price (--price on the command line), or write "
    "price_per_gpu_hour or price_per_node_hour in the site.",
    exact=lambda amount: Money(amount, USUAL),
    weight=2,
)
_POWER = (
    "a power. Say power (--power on the command line), or write power_w in the site."
)
ENERGY = Resource(
    name="energy",
    field="energy_kwh",
    limit="max_energy",
    parse=parse_energy,
    example="20kWh",
    help="Energy; needs a power, measured or said.",
    amount=_energy,
    unit=_energy_unit,
    least="takes least energy",
    missing=_POWER,
)
CARBON = Resource(
    name="carbon",
    field="carbon_g",
    limit="max_carbon",
    parse=parse_mass,
    example="2kg",
    help="Carbon; needs a power and carbon_g_per_kwh.",
    amount=_carbon,
    unit=lambda amount, _: largest_unit(
        amount, ((1.0, "g CO2e"), (1e3, "kg CO2e"), (1e6, "t CO2e"))
    ),
    least="emits least carbon",
    missing="carbon_g_per_kwh of the electricity, as an argument or in the site, and "
    f"{_POWER}",
)


RESOURCES = Registry(
    "scalelab.resources",
    Resource,
    key="resource",
    built_in=(TIME, DEVICE_HOURS, MONEY, ENERGY, CARBON),
)


def weighed_most(known: Iterable[Resource]) -> Resource:
    """Return the resource that is spent and has the largest weight; time: none has."""
    weighed = [row for row in known if row.is_spent and row.weight]
    return max(weighed, key=lambda row: row.weight, default=TIME)


def read_limits(
    given: Mapping[str, str | float | None], *, others: Iterable[str] = ()
) -> dict[str, float]:
    """Return limits by the resource's name, in the unit of its field.

    What is given is text by ``Resource.limit`` or its other name, a number by
    ``Resource.max_field``, or None, no limit; ``others`` are arguments one of which may
    have been meant.

    Examples
    --------
    >>> read_limits({"max_time": "4h", "max_cost_usd": 20, "max_gpu_hours": None})
    {'time': 14400.0, 'money': Money(20.0, 'usd')}
    """
    limits: dict[str, float] = {}
    for key, value in given.items():
        resource = _limited_by(key, others)
        if value is None:
            continue
        if resource.name in limits:
            raise SpecError(
                f"{Option(key, value)}: {resource.name} is limited twice.",
                code="limit_said_twice",
            )
        limits[resource.name] = _limit(resource, key, value)
    return limits


def _limit(resource: Resource, key: str, value: object) -> float:
    """Return the limit that an argument of this name says."""
    if isinstance(value, str):
        try:
            return resource.parse(value)
        except SpecError as error:
            raise SpecError(f"{Option(key)}: {error}", code=error.code) from error

    is_number = isinstance(value, Real) and not isinstance(value, bool)
    amount = float(value) if is_number else math.nan  # type: ignore[arg-type]
    if is_number and (key == resource.max_field or amount >= resource.bare_from):
        return resource.exact(amount)

    problem = "has no unit" if is_number else "is neither text nor a number"
    number_of = f"{resource.max_field}={shown(value) if is_number else 20}"
    raise SpecError(
        f"{Option(key)}={shown(value)} {problem}. Write {key}={resource.example!r} or "
        f"{number_of}.",
        code="not_a_limit",
    )


def _limited_by(key: str, others: Iterable[str]) -> Resource:
    for resource in chain(RESOURCES.built_in, RESOURCES):
        if key in (resource.limit, resource.max_field, resource.also_called):
            return resource
    limits = [resource.limit for resource in RESOURCES]
    raise SpecError(
        f"{key} limits no resource. {one_of([*limits, *others], key)}",
        code="unknown_limit",
    )
