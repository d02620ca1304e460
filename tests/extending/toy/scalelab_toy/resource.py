"""A resource: water for cooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.kinds.resources import Resource, Usage

if TYPE_CHECKING:
    import numpy as np

LITRES_PER_DEVICE_HOUR = 1.5


def litres(text: str) -> float:
    """Read a volume such as ``20l``."""
    try:
        return float(text.removesuffix("l"))
    except ValueError:
        raise SpecError(f"{text!r} is no volume. Write litres: 20l.") from None


def evaporated(usage: Usage) -> np.ndarray:
    """Return what the devices of each allocation evaporate, in litres."""
    return usage.hours * usage.world_size * LITRES_PER_DEVICE_HOUR


WATER = Resource(
    name="water",
    field="water_l",
    limit="max_water",
    parse=litres,
    example="20l",
    help="Limit: water for cooling.",
    amount=evaporated,
    unit=lambda amount, hour_word: (1.0, "l"),
    least="takes the least water",
)
