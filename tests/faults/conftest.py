"""A sweep to do harm to, and how long one takes that nothing happens to."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_checks import check_complete, check_gone
from swept import ONE_NODE, TWO_NODES, Sweep, sweep_in

PATIENCE = 10.0
"""A sweep with a fault may take this many times as long as one without."""


@pytest.fixture(scope="session")
def control_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Return how long a sweep takes when nothing happens."""
    with sweep_in(tmp_path_factory.mktemp("control")) as sweep:
        sweep.start()
        ended = sweep.end(within_s=400)
        assert ended.status == 0, ended.said
        assert set(sweep.observations()["attempt"]) == {1}
        check_complete(sweep)
        check_gone(sweep, ended.took_s)
        return ended.took_s


@pytest.fixture
def rng(request: pytest.FixtureRequest, seed: int) -> random.Random:
    return random.Random(f"{request.function.__name__} {seed}")


@pytest.fixture
def sweep(request: pytest.FixtureRequest, seed: int, tmp_path: Path) -> Iterator[Sweep]:
    """A sweep on the test's own number of nodes for even seeds, the other for odd."""
    sites = [ONE_NODE, TWO_NODES]
    if request.node.get_closest_marker("two_nodes"):
        sites.reverse()
    with sweep_in(tmp_path, sites[seed % 2]) as sweep:
        yield sweep


@pytest.fixture
def patience_s(control_s: float) -> float:
    return PATIENCE * control_s
