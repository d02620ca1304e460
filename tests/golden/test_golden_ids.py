"""Trial ids are what runs are resumed by: they stay what they were when written here.

No id below is ever written anew. One that changes orphans the trials of every run.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from planned_trials import planned_trials

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial

DATA = Path(__file__).parent / "data"
TRIALS: list[dict[str, Any]] = json.loads((DATA / "trials.json").read_text())
EXPERIMENTS = sorted((DATA / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("golden", TRIALS, ids=lambda golden: golden["name"])
def test_a_configuration_keeps_its_id(golden: dict[str, Any]) -> None:
    trial = Trial.from_json(golden["trial"])
    assert trial.trial_id == golden["id"]
    assert Trial.from_json(trial.to_json()).trial_id == golden["id"]


def test_ids_differ_unless_only_words_or_measurement_do() -> None:
    shared = Counter(golden["id"] for golden in TRIALS)
    assert sorted(shared.values(), reverse=True)[:4] == [3, 2, 2, 1]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_keeps_its_trials_and_their_order(path: Path) -> None:
    asked = Experiment.from_text(path.read_text(), directory=path.parent)
    trials = planned_trials(asked)
    golden = path.with_suffix(".ids").read_text().split()
    assert [trial.trial_id for trial in trials] == golden


def test_the_experiments_hold_every_kind_and_canaries() -> None:
    assert len(EXPERIMENTS) == 3
    trials = [
        trial
        for path in EXPERIMENTS
        for asked in [Experiment.from_text(path.read_text())]
        for trial in planned_trials(asked)
    ]
    kinds = {"throughput", "convergence", "end_to_end"}
    assert {trial.kind.value for trial in trials} == kinds
    assert any(trial.canary_after is not None for trial in trials)
    assert any(len(set(t.allocation.devices_per_node)) > 1 for t in trials)
