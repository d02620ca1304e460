"""Dispatch: no-op trials through the driver against a bare Dask loop.

The peer is the least one could write: a pinned submit per task, `as_completed`, the
same number in flight, the same fsynced write per task. Lines: at most 1.5 times the
peer; per trial at 10,000 trials at most 1.2 times that at 1,000.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path

from comparison import Comparison, interleave
from distributed import as_completed

from scalelab.cluster.local import LocalNodes
from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.outcome import Outcome
from scalelab.plan.source import Observation, TrialSource
from scalelab.records.attempt import (
    AttemptFiles,
    AttemptResult,
    AttemptSpec,
    write_result,
)
from scalelab.records.open_run import OpenRun
from scalelab.records.store import RunStore
from scalelab.scheduling.driver import Driver
from scalelab.training.trainer import TRAINER

NUM_NODES, DEVICES_PER_NODE = 2, 32
COMPLETED = AttemptResult(outcome=Outcome.COMPLETED)


class Trials(TrialSource):
    """So many trials of one device."""

    def __init__(self, number: int) -> None:
        self._numbers = iter(range(number))

    def ask(self) -> Trial | None:
        """Return the next one."""
        number = next(self._numbers, None)
        return None if number is None else trial(number)

    def tell(self, observation: Observation) -> None:
        """Learn nothing."""


def trial(number: int) -> Trial:
    return Trial(
        kind=TrialKind.THROUGHPUT,
        workload="emulated",
        allocation=Allocation(devices_per_node=(1,)),
        local_batch_size=1,
        seed=number,
    )


def no_trial(spec_json: str, node_rank: int, rendezvous: str | None) -> str:
    """Stand in for a node that has nothing to do but to record the result."""
    spec = AttemptSpec.from_json(json.loads(spec_json))
    write_result(spec.files, COMPLETED)
    return json.dumps(COMPLETED.to_json())


def no_task(directory: str) -> str:
    """Do as much without ScaleLab: one durable file."""
    write_result(AttemptFiles(Path(directory)), COMPLETED)
    return directory


def ours(cluster: LocalNodes, number: int, task: object) -> float:
    """Return the seconds per trial of a sweep of so many."""
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore.create(
            Path(folder) / "run", experiment_text="", fingerprint={}
        )
        with store.lease() as lease:
            driver = Driver(
                Trials(number),
                cluster,
                OpenRun.recover(store, lease),
                {None: WorkloadProgram(name="emulated")},
                estimate_duration=lambda trial, allocation: 1.0,
                task=task,
            )
            started = time.perf_counter()
            summary = driver.run()
            seconds = time.perf_counter() - started
    assert summary.outcomes == {Outcome.COMPLETED: number}
    return seconds / number


def bare(cluster: LocalNodes, number: int, task: object) -> float:
    """Return the seconds per task of a bare loop over so many."""
    client = cluster.client
    addresses = itertools.cycle([node.address for node in cluster.nodes()])

    def submit(index: int) -> object:
        directory = Path(folder) / str(index)
        directory.mkdir()
        return client.submit(
            task, str(directory), workers=[next(addresses)], pure=False, retries=0
        )

    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        indices = iter(range(number))
        window = NUM_NODES * DEVICES_PER_NODE
        running = as_completed(
            [submit(index) for index in itertools.islice(indices, window)],
            loop=client.loop,
            with_results=True,
        )
        for _ in running:
            for index in itertools.islice(indices, 1):
                running.add(submit(index))
        seconds = time.perf_counter() - started
    return seconds / number


def main() -> None:
    # By this name, not as __main__'s, so that tasks travel as a reference.
    from dispatch import no_task, no_trial

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    per_trial: dict[int, Comparison] = {}
    with LocalNodes(NUM_NODES, DEVICES_PER_NODE, entry=TRAINER.entry) as cluster:
        ours(cluster, 100, no_trial), bare(cluster, 100, no_task)
        for number in options.trials:
            per_trial[number] = interleave(
                lambda number=number: ours(cluster, number, no_trial),
                lambda number=number: bare(cluster, number, no_task),
                options.repeats,
            )
            print(
                per_trial[number].line(
                    f"dispatch of {number:,} trials, each", limit=1.5
                )
            )
    few, many = min(options.trials), max(options.trials)
    growth = statistics.median(per_trial[many].ours_s) / statistics.median(
        per_trial[few].ours_s
    )
    print(f"per trial at {many:,} over {few:,}: {growth:.2f}, line <= 1.2")


if __name__ == "__main__":
    main()
