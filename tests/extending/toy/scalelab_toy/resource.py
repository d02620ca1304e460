from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.kinds.resources import Resource, Usage

if TYPE_CHECKING:
    import numpy as np


def litres(text: str) -> float:
    try:
        amount = float(text.removesuffix("l"))
    except ValueError:
        amount = math.nan
    if not amount > 0:
        raise SpecError(f"{text!r} is no volume. Write litres: 20l.")
    return amount


def evaporated(usage: Usage) -> np.ndarray:
    litres_per_hour: np.ndarray = usage.world_size * 1.5
    return usage.hours * litres_per_hour


WATER = Resource(
    name="water",
    field="water_l",  # in --json, with the unit
    limit="max_water",  # --max-water 20l
    parse=litres,
    example="20l",
    help="Water for cooling.",
    amount=evaporated,  # None where it cannot be computed: then give missing=
    unit=lambda amount, units: (1.0, "l"),
    least="takes the least water",
)
