"""Searches without nodes: what a source proposes ends as a function says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.plan.source import Observation
from scalelab.search.tuned_trials import TunedTrials
from scalelab.site.choice import site_of

SITE = site_of({"device_type": "cpu", "gpus_per_node": 2})
SEARCH = """\
name: searched
workload: digits_mlp
measure: {kind: convergence}
job: {epochs: 4, samples_per_epoch: 1000, target: val_acc >= 0.9}
gpus: 1
local_batch_size: 32
"""
RANGES = """\
tune: {learning_rate: {log: [0.001, 1]}, weight_decay: {float: [0, 0.1]}}
trials: 12
"""

Ending = Callable[[Trial], dict[str, Any]]


def search(text: str = RANGES, directory: Path | None = None) -> TunedTrials:
    """Return the source of a search, with the run's directory if it is swept."""
    source = TunedTrials(Experiment.from_text(SEARCH + text), SITE)
    if directory is not None:
        source.begin(directory)
    return source


def completed(trial: Trial) -> dict[str, Any]:
    """Return the end of a trial whose accuracy is best at a rate of 0.1."""
    rate = trial.learning_rate.value if trial.learning_rate else 0.1
    decay = float(trial.options.get("weight_decay", 0.0))
    return reached(1 - abs(rate - 0.1) - decay)


def reached(accuracy: float, **columns: Any) -> dict[str, Any]:
    """Return the end of a trial by its accuracy."""
    metrics = json.dumps({"val_acc": accuracy, "val_loss": 1 - accuracy})
    return {"outcome": "completed", "final_metrics": metrics, **columns}


def row(trial: Trial, end: dict[str, Any]) -> Observation:
    """Return the row of a trial that has ended."""
    options = {f"options.{name}": value for name, value in trial.options.items()}
    rate = trial.learning_rate
    return {
        "trial_id": trial.trial_id,
        "repeat": trial.repeat,
        "attempt": 1,
        "world_size": trial.world_size,
        "learning_rate": rate.value if rate else None,
        **options,
        **end,
    }


def swept(
    source: TunedTrials, ending: Ending = completed, *, most: int = 1000
) -> list[Observation]:
    """Run a search as a driver does, at most so many trials; return their rows."""
    rows: list[Observation] = []
    under_way: list[Trial] = []
    while len(rows) < most:
        while (trial := source.ask()) is not None:
            under_way.append(trial)
        if not under_way:
            break
        ended = under_way.pop(0)
        rows.append(row(ended, ending(ended)))
        source.tell(rows[-1])
    return rows
