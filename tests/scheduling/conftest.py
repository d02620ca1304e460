import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import scripted_rank
from provision_scenes import Clock, Scene

from scalelab.cluster.local import LocalNodes
from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.plan.source import TrialSource
from scalelab.records.control.events import Event
from scalelab.records.control.lease import LEASE, Lease
from scalelab.records.open_run import OpenRun
from scalelab.records.store import RunStore
from scalelab.scheduling.driver import Driver


class Source(TrialSource):
    """Trials from a list; remembers what it was told."""

    def __init__(self, trials: list[Trial]) -> None:
        self.left = list(trials)
        self.told: list[Mapping[str, Any]] = []

    def ask(self) -> Trial | None:
        return self.left.pop(0) if self.left else None

    def tell(self, observation: Mapping[str, Any]) -> None:
        self.told.append(observation)

    @property
    def outcomes(self) -> list[str]:
        return [observation["outcome"] for observation in self.told]


def trial(number: int, *devices: int, repeat: int = 0, **options: Any) -> Trial:
    return Trial(
        kind=TrialKind.THROUGHPUT,
        workload="emulated",  # ranks only wait, so that they need no cores
        allocation=Allocation(devices_per_node=devices or (1,)),
        local_batch_size=1,
        seed=number,
        repeat=repeat,
        options=options,
    )


class Sweep:
    """One run directory, driven as often as a test likes."""

    def __init__(self, cluster: LocalNodes, directory: Path) -> None:
        self.cluster = cluster
        self.store = RunStore.create(directory, experiment_text="", fingerprint={})
        self.events: list[Event] = []

    def driver(
        self, source: Source, *, retry_failed: bool = False, **options: Any
    ) -> Driver:
        self.store = RunStore.open(self.store.directory)
        lease = Lease(self.store.directory / LEASE)
        options.setdefault("estimate_duration", lambda trial, allocation: 1.0)
        return Driver(
            source,
            self.cluster,
            OpenRun.recover(self.store, lease, retry_failed=retry_failed),
            {None: WorkloadProgram(name="scripted")},
            on_event=options.pop("on_event", self.events.append),
            **options,
        )

    def events_of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def trial_directories(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.store.directory / "trials"))
            for path in (self.store.directory / "trials").glob("*/*")
        )


@pytest.fixture(scope="module")
def shared_nodes() -> Iterator[LocalNodes]:
    """Nodes that are closed before other modules set the clock of this process."""
    with LocalNodes(
        2,
        2,
        entry="scripted_rank:run_rank",
        search_path=(str(Path(scripted_rank.__file__).parent),),
    ) as nodes:
        yield nodes


@pytest.fixture
def nodes(shared_nodes: LocalNodes) -> LocalNodes:
    """Two nodes of two devices, all up again should a test have killed one."""
    shared_nodes.client.wait_for_workers(2, timeout=60)
    return shared_nodes


@pytest.fixture
def sweep(nodes: LocalNodes, tmp_path: Path) -> Sweep:
    return Sweep(nodes, tmp_path / "run")


@pytest.fixture
def make_trial(request: pytest.FixtureRequest) -> Callable[..., Trial]:
    # Nodes know attempts by trial and number: no two tests share a trial.
    return functools.partial(trial, test=request.node.name)


@pytest.fixture
def make_source() -> Callable[..., Source]:
    return Source


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


@pytest.fixture
def scene(clock: Clock, make_trial: Callable[..., Trial]) -> Callable[..., Scene]:
    return lambda **site: Scene(clock, make_trial, **site)
