"""Searches that cannot tell what their settings change are refused."""

import pytest

from scalelab.experiment.spec import Experiment
from scalelab.inputs.target import MetricMode

TUNED = "{base: 0.1, at_batch: 32, rule: tuned}"
TUNE = "tune: {weight_decay: {log: [1.0e-5, 0.1]}}\n"
HEAD = """\
name: a
workload: digits_mlp
job: {epochs: 2, samples_per_epoch: 1437, target: val_acc >= 0.9}
"""
PLACE = "gpus: 1\nlocal_batch_size: 32\n"
MEASURE = "measure: {kind: convergence}\n"
ONE = HEAD + PLACE + MEASURE
COMMAND = ONE.replace("workload: digits_mlp", "command: python train.py")


def test_it_is_short_for_a_source() -> None:
    short = Experiment.from_text(f"{ONE}{TUNE}trials: 7\nobjective: val_loss\n")
    long = Experiment.from_text(
        f"{ONE}source: {{name: optuna, trials: 7, objective: val_loss, "
        "tune: {weight_decay: {log: [1.0e-5, 0.1]}}}\n"
    )
    assert short == long
    assert short.source.name == "optuna"
    assert short.num_trials == 7
    assert Experiment.from_text(ONE + TUNE).num_trials == 40


@pytest.mark.parametrize(
    ("objective", "mode"),
    [
        ("val_acc", "max"),
        ("val_loss", "min"),
        ("error", "min"),
        ("perplexity", "min"),
        ("time", "min"),
        ("{metric: loss, mode: max}", "max"),
    ],
)
def test_what_is_better_is_told_by_the_name(objective: str, mode: str) -> None:
    asked = Experiment.from_text(f"{ONE}{TUNE}objective: {objective}\n")
    assert asked.objectives(None)[0].mode is MetricMode(mode)


def test_what_is_best_is_the_metric_of_the_target_by_default() -> None:
    text = ONE.replace("val_acc >= 0.9", "distance <= 3") + TUNE
    asked = Experiment.from_text(text)
    assert asked.job is not None
    (objective,) = asked.objectives(asked.job.target)
    assert str(objective) == "distance (min)"


def test_a_command_takes_what_is_tuned_in_placeholders() -> None:
    asked = Experiment.from_text(
        COMMAND.replace("train.py", "train.py --lr {learning_rate} --wd {weight_decay}")
        + "tune: {learning_rate: {log: [0.01, 1]}, weight_decay: {float: [0, 0.1]}}"
    )
    assert asked.axes == {"weight_decay": (0.05,)}
    (rate,) = asked.rate_settings
    assert rate is not None
    assert rate.base == pytest.approx(0.1)


def test_a_tuned_rule_names_its_source() -> None:
    for rule in ("tuned", "[tuned]"):
        rates = f"learning_rate: {{base: 0.1, at_batch: 32, rule: {rule}}}\n"
        assert Experiment.from_text(ONE + rates).source.name == "tuned_rates"
