from dataclasses import replace

import pytest

from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.plan.source import TrialSource
from scalelab.plan.tracked import UNKNOWN_S, Durations, TrackedSource


def trial(local: int = 8, *devices: int, **fields: object) -> Trial:
    return Trial(
        kind=TrialKind.THROUGHPUT,
        workload="emulated",
        allocation=Allocation(devices_per_node=devices or (1,)),
        local_batch_size=local,
        **fields,  # type: ignore[arg-type]
    )


def row(of: Trial, seconds: float | None, outcome: str = "completed") -> dict:
    return {
        "trial_id": of.trial_id,
        "outcome": outcome,
        "kind": of.kind.value,
        "world_size": of.world_size,
        "num_nodes": of.allocation.num_nodes,
        "local_batch_size": of.local_batch_size,
        "gradient_accumulation_steps": of.gradient_accumulation_steps,
        "precision": of.precision,
        "parallelism": of.parallelism,
        "allocated_gpu_s": None if seconds is None else seconds * of.world_size,
    }


def test_nothing_is_known_before_a_trial_of_the_kind_has_ended() -> None:
    durations = Durations()
    assert durations.estimate(trial()) is None
    assert durations.times([trial()]) is None
    assert durations.times([]) == []
    convergence = replace(trial(), kind=TrialKind.CONVERGENCE)
    durations.learn(row(convergence, 60))
    assert durations.estimate(trial()) is None
    assert durations.times([convergence, trial()]) is None


def test_equal_trials_take_equally_long_whatever_their_seed() -> None:
    durations = Durations([row(trial(8), 10), row(trial(16), 20)])
    assert durations.estimate(trial(16, seed=7, repeat=2)) == 20
    asked = [trial(8), trial(16)]
    known = durations.times(asked)
    assert known is not None
    assert [each for each, _ in known] == asked
    assert sum(s * t.world_size for t, s in known) == pytest.approx(30)


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (trial(32), 2.0),  # one doubling from the batch of 16
        (trial(8, 4), 3.0),  # one doubling from 2 devices
        (trial(8, 1, 1), 3.0),  # as many devices on more nodes
        (trial(8, gradient_accumulation_steps=2), 1.0),
        (trial(256, precision="bf16"), 4.0),  # precision matters more than sizes
    ],
)
def test_the_most_similar_trial_stands_for_one_that_never_ran(
    asked: Trial, seconds: float
) -> None:
    durations = Durations(
        [
            row(trial(8), 1.0),
            row(trial(16), 2.0),
            row(trial(8, 2), 3.0),
            row(trial(8, precision="bf16"), 4.0),
        ]
    )
    assert durations.estimate(asked) == seconds


def test_trials_that_measured_nothing_teach_nothing() -> None:
    durations = Durations(
        [row(trial(), 99, "failed"), row(trial(), None), row(trial(), 99, "node_fail")]
    )
    assert durations.estimate(trial()) is None
    durations.learn(row(trial(), 3, "out_of_memory"))
    assert durations.estimate(trial()) == 3


class Source(TrialSource):
    def __init__(self) -> None:
        self.told: list[object] = []

    def ask(self) -> Trial | None:
        return trial()

    def tell(self, observation: object) -> None:
        self.told.append(observation)


def test_a_timed_source_learns_while_it_is_told() -> None:
    inner = Source()
    source = TrackedSource("inner", inner)
    assert source.ask() == trial()
    assert source.estimate(trial(), trial().allocation) == UNKNOWN_S
    source.tell(row(trial(), 5))
    assert source.estimate(trial(), trial().allocation) == 5
    assert len(inner.told) == 1


def test_a_pruned_trial_does_not_say_how_long_a_whole_one_takes() -> None:
    assert Durations([row(trial(), 3, "pruned")]).estimate(trial()) is None
