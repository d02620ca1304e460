"""Every process of a node, killed before and after each message of a gang's protocol.

``make test-faults`` tries every point, ``make test-all`` a fifteenth of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import counted_messages
import pytest
from command_specs import write_program
from counted_messages import Point, arm, found, is_idle
from fault_checks import SEEDS
from waiting import wait_until
from watching import is_running

from scalelab.cluster.local import LocalNodes
from scalelab.experiment.program import (
    METRICS_FILE,
    CommandProgram,
    MetricsSource,
    Program,
    WorkloadProgram,
)
from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.plan.source import Observation, TrialSource
from scalelab.records.attempt import AttemptFiles, read_spec
from scalelab.records.store import RunStore
from scalelab.scheduling.driver import Driver

RANKS = (1, 2)
STEPS = 20
# Each rank waits for all, as those do that form a group; rank 0 then reports steps.
PROGRAM = """
import json, os, sys, time
from pathlib import Path

directory, rank = Path(sys.argv[1]).parent, os.environ["RANK"]
(directory / f"pid-{os.getpid()}").touch()
(directory / f"ready-{rank}").touch()
while len(list(directory.glob("ready-*"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
(directory / f"ended-{rank}").touch()
if rank == "0":
    with open(os.environ["SCALELAB_METRICS"], "a", buffering=1) as metrics:
        for step in range(1, 100_000):  # until there are enough
            time.sleep(0.01)
            metrics.write(json.dumps({"step": step}) + "\\n")
"""


class OneTrial(TrialSource):
    """A source of one trial."""

    def __init__(self, trial: Trial) -> None:
        self._left = [trial]

    def ask(self) -> Trial | None:
        return self._left.pop() if self._left else None

    def tell(self, observation: Observation) -> None:
        pass


class Node:
    """One of the two nodes, as the test reaches into it."""

    def __init__(self, nodes: LocalNodes, name: str) -> None:
        self._client, self.name = nodes.client, name

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        (address,) = (
            address
            for address, known in self._client.scheduler_info()["workers"].items()
            if known["name"] == self.name
        )
        return self._client.run(function, *args, workers=[address])[address]

    def is_idle(self) -> bool:
        """Tell whether an attempt may start there; False while a worker is replaced."""
        with suppress(OSError, ValueError):
            return bool(self.run(is_idle))
        return False


class Attempts:
    """Runs one trial after the other on both nodes, and looks at how each ended."""

    def __init__(self, nodes: LocalNodes, directory: Path, program: Program) -> None:
        self.cluster, self.program = nodes, program
        self.nodes = [Node(nodes, f"node-{index}") for index in range(len(RANKS))]
        self.store = RunStore.create(
            directory / "run", experiment_text="", fingerprint={}
        )

    def run(self, seed: int, node: int = 0, point: Point | None = None) -> list[str]:
        """Run a trial; return the outcomes of its attempts."""
        self.cluster.client.wait_for_workers(len(RANKS), timeout=60)
        for index, each in enumerate(self.nodes):
            wait_until(each.is_idle, "the node is idle")
            each.run(arm, point if index == node else None)
        command = isinstance(self.program, CommandProgram)
        trial = Trial(
            kind=TrialKind.THROUGHPUT,
            workload="command" if command else "stand_in",
            allocation=Allocation(devices_per_node=RANKS),
            local_batch_size=1,
            seed=seed,
            measurement=Measurement(warmup_steps=2, steps=STEPS),
        )
        self.store = RunStore.open(self.store.directory)
        driver = Driver(
            OneTrial(trial),
            self.cluster,
            self.store,
            {None: self.program},
            estimate_duration=lambda trial, allocation: 1.0,
        )
        with self.store.lease():
            driver.run()
        directory = self.store.attempt_directory(trial.trial_id, 1)
        spec = read_spec(AttemptFiles(directory))
        assert spec is not None
        self.first_node = spec.placement.shares[0].node
        frame = self.store.observations()
        rows = frame[frame["trial_id"] == trial.trial_id]
        for row in rows.itertuples():
            print(seed, row.outcome, row.reason)
            self.check(self.store.attempt_directory(row.trial_id, row.attempt), row)
        return list(rows["outcome"])

    def check(self, directory: Path, row: Any) -> None:
        """Check that what is said to be completed was, and that nothing is left."""
        ended = len(list(directory.glob("ended-*")))
        if row.outcome == "completed":
            assert (ended, row.num_steps >= STEPS) == (sum(RANKS), True)
        pids = [int(path.name[4:]) for path in directory.glob("pid-*")]
        wait_until(
            lambda: not any(map(is_running, pids)), f"{directory} has no process"
        )


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    options = {
        "entry": "counted_messages:run_rank",
        "search_path": (str(Path(counted_messages.__file__).parent),),
    }
    with LocalNodes(2, 2, has_dashboard=False, **options) as nodes:
        yield nodes


def program_of(kind: str, directory: Path) -> Program:
    if kind == "workload":
        return WorkloadProgram(name="stand_in")
    return CommandProgram(
        command="python program.py {trial_dir}",
        launcher="torchrun",
        env={},
        metrics=MetricsSource(jsonl=METRICS_FILE),
        code_directory=str(write_program(directory / "code", PROGRAM).parent),
    )


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["workload", "command"])
def test_a_gang_killed_at_any_message_ends_in_what_is_true(
    nodes: LocalNodes, tmp_path: Path, kind: str
) -> None:
    attempts = Attempts(nodes, tmp_path, program_of(kind, tmp_path))
    assert attempts.run(0) == ["completed"]
    points = [
        (index, point)
        for index, node in enumerate(attempts.nodes)
        for point in node.run(found)
    ]
    if len(SEEDS) == 1:
        points = random.Random(kind).sample(points, len(points) // 15)
    for seed, (node, point) in enumerate(points, start=1):
        outcomes = attempts.run(seed, node, point)
        where = f"{outcomes} after {point} of node {node}"
        # The store, too, is the node's; a process of the program is the trial's own.
        # Where it dies before ranks have begun, their attempt may only be cancelled.
        is_first = attempts.nodes[node].name == attempts.first_node
        if point.victim in ("agent", "server"):
            assert {*outcomes[:-1]} <= {"node_fail"}, where
            assert outcomes[-1] == "completed", where
        elif is_first and point.victim == "child-0":
            assert {*outcomes[:-1]} <= {"node_fail", "cancelled"}, where
            assert outcomes[-1] == "completed", where
        else:
            assert {*outcomes} <= {"completed", "failed", "node_fail"}, where
