"""First trials run alone, smallest first, and hold back what is not worth its cost."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.plan.first_check import FirstTrials
from scalelab.plan.source import Observation, TrialSource
from scalelab.plan.tracked import TrackedSource, source_of
from scalelab.records.columns import COLUMNS
from scalelab.site.choice import site_of

MISSING: dict[str, Any] = {column.name: None for column in COLUMNS}
SITE = site_of({"device_type": "cpu", "nodes": 2, "gpus_per_node": 4})
ONE = """\
name: a
command: python train.py {local_batch_size}
metrics: {regex: 'step (?P<step>[0-9]+)'}
gpus: [4, 2, 1]
local_batch_size: [16, 8]
measure: {long_trial: none, repeats: 2, canary_every: 0}
"""
TWO = ONE.replace(
    "command: python train.py {local_batch_size}\n",
    "program:\n"
    "- {name: x, command: 'python x.py {local_batch_size}'}\n"
    "- {name: y, command: 'python y.py {local_batch_size}'}\n",
)


def row(trial: Trial, outcome: str = "completed", **values: object) -> Observation:
    program = {"options.program": trial.program} if trial.program else {}
    return {
        **MISSING,
        "trial_id": trial.trial_id,
        "outcome": outcome,
        "kind": str(trial.kind),
        "device_ids": ["0"] * trial.world_size,
        "world_size": trial.world_size,
        "local_batch_size": trial.local_batch_size,
        "gradient_accumulation_steps": trial.gradient_accumulation_steps,
        "global_batch_size": trial.global_batch_size,
        "step_time_s": 0.1,
        **program,
        **values,
    }


def gate(text: str = ONE) -> FirstTrials:
    asked = Experiment.from_text(text)
    return FirstTrials(source_of(asked, SITE), asked.by_program())


def asked_now(source: TrialSource) -> list[Trial]:
    return list(iter(source.ask, None))


def sizes(trials: list[Trial]) -> list[tuple[int, int]]:
    return [(trial.world_size, trial.local_batch_size) for trial in trials]


def test_the_smallest_runs_alone_then_the_smallest_of_several_ranks() -> None:
    trials = gate()
    (first,) = asked_now(trials)
    trials.tell(row(first))
    (second,) = asked_now(trials)
    trials.tell(row(second))
    assert sizes([first, second]) == [(1, 8), (2, 8)]
    rest = asked_now(trials)
    assert len({trial.trial_id for trial in [first, second, *rest]}) == 12
    assert len(rest) == 10, "nothing is proposed twice"


def test_a_canary_that_is_due_first_is_the_first_trial() -> None:
    trials = gate(ONE.replace("canary_every: 0", "canary_every: 4"))
    (first,) = asked_now(trials)
    assert first.canary_after == 0
    assert sizes([first]) == [(1, 8)]


def test_nothing_follows_a_first_trial_that_fails() -> None:
    trials = gate()
    (first,) = asked_now(trials)
    trials.tell(row(first, "failed"))
    assert asked_now(trials) == []
    assert trials.has_stopped
    assert len(trials.withheld()) == 11


def test_nothing_follows_a_first_trial_that_completed_and_was_read_wrongly() -> None:
    trials = gate()
    (first,) = asked_now(trials)
    trials.tell(row(first, reported_step_time_s=0.8))
    assert asked_now(trials) == []
    (unsound,) = trials.failures.values()
    assert unsound["trial_id"] == first.trial_id


def test_memory_that_does_not_suffice_is_no_failure() -> None:
    trials = gate()
    (first,) = asked_now(trials)
    trials.tell(row(first, "out_of_memory", step_time_s=None))
    (several,) = asked_now(trials)
    trials.tell(row(several, "out_of_memory", step_time_s=None))
    assert len(asked_now(trials)) == 10


def test_a_lost_node_leaves_the_check_to_the_next_smallest() -> None:
    trials = gate()
    (first,) = asked_now(trials)
    trials.tell(row(first, "node_fail"))
    (again,) = asked_now(trials)
    assert sizes([again]) == [(1, 8)]
    assert again.trial_id != first.trial_id


def test_what_was_measured_well_before_is_not_checked_again() -> None:
    before = {(t.world_size, t.repeat): t for t in asked_now(gate_open())}
    trials = gate()
    trials.tell(row(before[1, 0]))
    (of_several,) = asked_now(trials)
    assert of_several.world_size == 2

    trials = gate()
    trials.tell(row(before[4, 0]))
    assert len(asked_now(trials)) == 11, "who works with four ranks works with one"

    trials = gate()
    trials.tell(row(before[4, 0], "failed"))
    assert len(asked_now(trials)) == 1, "a failure shows nothing"


def gate_open() -> TrackedSource:
    return source_of(Experiment.from_text(ONE), SITE)


def test_of_several_programs_one_that_fails_ends_its_own_trials_alone() -> None:
    trials = gate(TWO)
    (of_x,) = asked_now(trials)
    trials.tell(row(of_x, "refused"))
    (of_y,) = asked_now(trials)
    trials.tell(row(of_y))
    assert (of_x.program, of_y.program) == ("x", "y")
    (several,) = asked_now(trials)
    assert (several.program, several.world_size) == ("y", 2)
    trials.tell(row(several))
    assert {trial.program for trial in asked_now(trials)} == {"y"}
    assert not trials.has_stopped
    assert {trial.program for trial in trials.withheld()} == {"x"}


def test_a_long_trial_holds_the_others_back_until_its_first_step_only() -> None:
    long = gate(
        ONE.replace("repeats: 2,", "kind: convergence,")
        .replace(
            "python train.py",
            "python train.py {learning_rate} {seed} {global_batch_size}",
        )
        .replace("metrics: {regex: 'step (?P<step>[0-9]+)'}\n", "")
        + "learning_rate: 0.1\nseed: [0, 1]\n"
        "job: {target: 'val_acc >= 0.9', epochs: 9, samples_per_epoch: 100}\n"
    )
    (first,) = asked_now(long)
    assert first.kind is TrialKind.CONVERGENCE
    assert long.wants_progress
    assert asked_now(long) == []
    long.tell_progress(first, 1, {})
    assert not long.wants_progress
    others = asked_now(long)
    assert others
    assert first.trial_id not in {trial.trial_id for trial in others}
    long.tell(row(first, "failed"))
    assert long.failures.keys() == {None}


class Toy(TrialSource):
    """Knows its next trial only."""

    def __init__(self, trials: list[Trial]) -> None:
        self._waiting = deque(trials)
        self.told: list[str] = []

    def ask(self) -> Trial | None:
        return self._waiting.popleft() if self._waiting else None

    def tell(self, observation: Observation) -> None:
        self.told.append(observation["trial_id"])


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_a_source_that_knows_no_trials_beforehand_has_its_own_first(
    outcome: str,
) -> None:
    planned = [trial for trial in asked_now(gate_open()) if trial.world_size == 1]
    toy = Toy(planned)
    trials = FirstTrials(TrackedSource("toy", toy))
    (first,) = asked_now(trials)
    assert first is planned[0]
    trials.tell(row(first, outcome))
    assert toy.told == [first.trial_id]
    rest = asked_now(trials)
    assert rest == (planned[1:] if outcome == "completed" else [])
    assert trials.has_stopped == (outcome == "failed")
