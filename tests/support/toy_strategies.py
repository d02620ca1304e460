"""Strategies that only tests know, registered as if they were built in."""

from collections.abc import Mapping

import pytest

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.kinds.strategies import STRATEGIES, Strategy, TrialSizes


def half_of_them(world_size: int, options: Mapping[str, Scalar]) -> int:
    if world_size % 2:
        raise SpecError(f"parallelism=pairs needs two devices each, not {world_size}.")
    return world_size // 2


def more_than_one_sample(sizes: TrialSizes) -> None:
    if sizes.local_batch_size < 2:
        raise SpecError("parallelism=pairs needs local_batch_size=2 or more.")


PAIRS = Strategy(
    name="pairs",
    data_parallel_size=half_of_them,
    options=("depth",),
    check=more_than_one_sample,
)
STALE = Strategy(
    name="stale",
    is_synchronous=False,
    factorises=False,
)


def register(monkeypatch: pytest.MonkeyPatch, *rows: Strategy) -> None:
    """Let the registry know these rows until the test ends."""
    for row in rows:
        monkeypatch.setitem(STRATEGIES._built_in, row.name, row)
