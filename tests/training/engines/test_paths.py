import pytest

from scalelab.kinds.registry import imported
from scalelab.kinds.strategies import STRATEGIES
from scalelab.training.engines.paths import engine_path


@pytest.mark.parametrize("name", [row.name for row in STRATEGIES.built_in])
def test_the_engine_of_a_built_in_strategy_takes_steps(name: str) -> None:
    engine = imported(engine_path(name))
    assert {"begin", "step", "evaluate", "state", "restore"} <= set(dir(engine))
