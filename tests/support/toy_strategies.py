"""Strategies that only tests know, registered as if they were built in."""

import pytest

from scalelab.errors import SpecError
from scalelab.kinds.strategies import STRATEGIES
from scalelab.kinds.strategy import Strategy, TrialOptions, TrialSizes


class Pairs(Strategy):
    name = "pairs"

    class Options(Strategy.Options):
        depth: int = 1

    def data_parallel_size(self, world_size: int, options: TrialOptions) -> int:
        if world_size % 2:
            message = f"parallelism=pairs needs two devices each, not {world_size}."
            raise SpecError(message)
        return world_size // 2

    def check(self, sizes: TrialSizes) -> None:
        if sizes.local_batch_size < 2:
            raise SpecError("parallelism=pairs needs local_batch_size=2 or more.")


class Stale(Strategy):
    name = "stale"
    is_synchronous = False
    factorises = False


PAIRS, STALE = Pairs(), Stale()


def register(monkeypatch: pytest.MonkeyPatch, *rows: Strategy) -> None:
    """Let the registry know these rows until the test ends."""
    for row in rows:
        monkeypatch.setitem(STRATEGIES._built_in, row.name, row)
