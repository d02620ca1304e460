"""A proposed trial has all of its settings: a sweep plans to exactly that trial."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from made_up_runs import trial_row

from scalelab.experiment.job import Job
from scalelab.experiment.spec import Experiment
from scalelab.plan.expand import plan
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import NextTrial
from scalelab.records.columns import OPTION_PREFIX
from scalelab.records.observations import frame

JOB = Job(epochs=2, samples_per_epoch=200_000)
OF_THE_EXPERIMENT = ("parallelism", "precision")

# What the rows of a sweep varied, with what a step takes of the usual time
SWEEPS: dict[str, tuple[dict[str, Any], list[tuple[dict[str, Any], float]]]] = {
    "an option of the workload": (
        {"workload": "resnet_cifar"},
        [({"options.depth": 20}, 1.0), ({"options.depth": 8}, 0.9)],
    ),
    "strategies and number formats": (
        {"workload": "resnet_cifar"},
        [
            ({"parallelism": "ddp", "precision": "bf16"}, 1.0),
            ({"parallelism": "fsdp", "precision": "fp32"}, 0.9),
            (
                {
                    "parallelism": "local_sgd",
                    "precision": "bf16",
                    "options.averaging_period": 4,
                },
                0.8,
            ),
        ],
    ),
    "options of a command": (
        {
            "workload": "command",
            "program": {
                "command": "python train.py {local_batch_size} {split} {flash} "
                "{gradient_accumulation_steps}"
            },
        },
        [
            ({"options.split": 2, "options.flash": False}, 1.0),
            ({"options.split": 4, "options.flash": True}, 0.9),
        ],
    ),
}


def swept(varied: list[tuple[dict[str, Any], float]], workload: str) -> Any:
    """Rows on 1 to 8 devices; runs contradict each other, so one is proposed again."""
    return frame(
        [
            trial_row(
                size,
                64,
                **{**settings, "workload": workload},
                noise=factor * disturbance,
                repeat=repeat,
            )
            for settings, factor in varied
            for size in (1, 2, 4, 8)
            for repeat, disturbance in enumerate((1.0, 2.5))
        ]
    )


def experiment_of(proposed: NextTrial, asked: Mapping[str, Any]) -> Experiment:
    """Write the proposed trial down as a user would."""
    settings = dict(proposed.settings)
    own = {n: settings.pop(n) for n in OF_THE_EXPERIMENT if n in settings}
    workload = asked["workload"]
    program = asked.get("program", {"workload": workload})
    text = yaml.safe_dump(
        {
            "name": "proposed",
            **program,
            **own,
            "options": {name: [value] for name, value in settings.items()},
            "gpus": [proposed.world_size],
            "local_batch_size": [proposed.batch.local_batch_size],
            "gradient_accumulation_steps": proposed.batch.gradient_accumulation_steps,
            "site": {"device_type": "cuda", "nodes": 8, "gpus_per_node": 4},
        }
    )
    return Experiment.from_text(text, source="the test")


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_plans_to_exactly_the_proposed_trial(name: str) -> None:
    asked, varied = SWEEPS[name]
    answer = recommend(swept(varied, asked["workload"]), JOB)
    proposed = answer.next_trial
    assert proposed is not None
    names = {each for settings, _ in varied for each in settings}
    varies = {each.removeprefix(OPTION_PREFIX) for each in names}
    experiment = experiment_of(proposed, asked)
    trials = plan(experiment, experiment.resolve_site()).trials
    assert trials
    for trial in trials:
        assert str(trial.allocation) == proposed.allocation
        assert trial.local_batch_size == proposed.batch.local_batch_size
        assert trial.global_batch_size == proposed.batch.global_batch_size
        own = {name: getattr(trial, name) for name in OF_THE_EXPERIMENT}
        planned = {n: of for n, of in {**own, **trial.options}.items() if n in varies}
        assert planned == proposed.settings
