"""A strategy in which two ranks at a time see the same samples."""

from collections.abc import Mapping

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.kinds.strategies import Strategy


def pairs(world_size: int, options: Mapping[str, Scalar]) -> int:
    """Return the number of pairs."""
    if world_size % 2:
        raise SpecError(
            f"parallelism=paired needs an even number of devices, not {world_size}. "
            "Use 2, 4, ..."
        )
    return world_size // 2


PAIRED = Strategy(name="paired", data_parallel_size=pairs)
