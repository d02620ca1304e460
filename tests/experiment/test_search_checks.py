"""Searches that cannot tell what their settings change are refused."""

import pytest

from scalelab.errors import SpecError
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


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        Experiment.from_text(text)
    return str(caught.value)


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            HEAD + MEASURE + TUNE + "gpus: [1, 2]\nlocal_batch_size: 32",
            "gpus: [1, 2] and tune cannot go together: a search compares trials of one "
            "allocation, one batch and one value of every other axis. Make two runs: "
            "one with tune and without gpus: [1, 2]; then one under another name, with "
            "gpus: [1, 2] and the weight_decay that was found, and without tune.",
        ),
        (
            HEAD + MEASURE + TUNE + "gpus: 1\nlocal_batch_size: [16, 32]",
            "local_batch_size: [16, 32] and tune cannot go together",
        ),
        (
            HEAD + MEASURE + TUNE + "gpus: 1\nlocal_batch_size: auto",
            "Make two runs: one without tune, under another name, which finds",
        ),
        (
            ONE + TUNE + "learning_rate: [0.1, 0.2]",
            "learning_rate.base: [0.1, 0.2] and tune cannot go together",
        ),
        (ONE + TUNE + "optimizer: [sgd, adamw]", "optimizer: [sgd, adamw] and tune"),
        (ONE + TUNE + "seed: [1, 2]", "seed: [1, 2] and tune cannot go together"),
        (
            ONE + TUNE + "options: {dropout: [0.1, 0.2]}",
            "options.dropout: [0.1, 0.2] and tune cannot go together",
        ),
        (
            HEAD + PLACE + TUNE,
            "tune compares what training comes to, so it needs measure: {kind: "
            "convergence} and nothing else. Make two runs: one with tune and without "
            "measure.kind: [throughput]; then one under another name,",
        ),
        (
            ONE + TUNE + "source: planned",
            "tune and source: planned both propose trials, each its own. Make two runs",
        ),
        (ONE + "source: optuna", "source=optuna searches, and nothing says what. Add"),
        (
            ONE + TUNE + "source: {name: optuna, tune: {dropout: [0.1, 0.2]}}",
            "tune stands under source and beside it. Keep one of the two.",
        ),
        (
            ONE + TUNE + f"learning_rate: {TUNED}",
            "tune and rule: tuned both propose trials, each its own. Make two runs: "
            "one with tune and without rule: tuned; then one under another name, with "
            "rule: tuned and the weight_decay that was found, and without tune.",
        ),
        (
            ONE + f"learning_rate: {TUNED}\nsource: planned",
            "rule: tuned and source: planned both propose trials",
        ),
        (
            HEAD + PLACE + f"learning_rate: {TUNED}",
            "so it needs measure.kind: [throughput, convergence]. Make two runs: one "
            "with rule: tuned and without measure.kind: [throughput]; then one under",
        ),
        (
            HEAD + MEASURE + f"gpus: 1\nlocal_batch_size: auto\nlearning_rate: {TUNED}",
            "with local_batch_size: auto and the rate of each batch that was found,",
        ),
        (
            ONE + "learning_rate: {base: [1, 2], at_batch: 32, rule: tuned}",
            "rule=tuned searches the rate from one base, and the answer says what",
        ),
        (
            ONE + "learning_rate: {base: 0.1, rule: tuned}",
            "rule=tuned scales base from the batch it was tuned at. Add at_batch",
        ),
        (ONE + "trials: 3", "trials belongs to a search. Add what it chooses, such as"),
        (
            ONE + TUNE + "options: {weight_decay: 0.1}",
            "weight_decay stands under tune and under options. Keep it under tune to",
        ),
        (
            ONE + "tune: {learning_rate: {log: [0.1, 1]}}\nlearning_rate: 0.1",
            "learning_rate stands under tune and beside it.",
        ),
        (
            ONE + "tune: {global_batch_size: [32, 64]}",
            "tune.global_batch_size cannot be chosen: it says where or how a trial",
        ),
        (
            ONE + TUNE + "sampler: grid",
            "sampler=grid tries every combination, and tune.weight_decay is a range "
            "(1e-05 to 0.1, log). List its values, or use sampler: random.",
        ),
        (
            ONE + "tune: {dropout: [0.1, 0.2]}\nsampler: grid\ntrials: 3",
            "sampler=grid tries all 2 combinations; trials=3 says otherwise.",
        ),
        (
            ONE.replace(", target: val_acc >= 0.9", "") + TUNE,
            "tune does not say what is best. Add objective: val_acc, or another",
        ),
        (ONE + "tune: {dropout: {float: [0.5, 0.1]}}", "from 0.5 to 0.1 is no range."),
        (ONE + "tune: {dropout: {log: [0, 0.1]}}", "log: 0 has no logarithm. Begin"),
        (ONE + "tune: {dropout: [0.1]}", "0.1 is the only choice. Write at least two"),
        (ONE + "tune: {dropout: 0.1}", "0.1 is nothing to choose from. Write a list"),
        (
            ONE + "tune: {dropout: {float: [0, 1], int: [0, 1]}}",
            "must have exactly one of log, float, int and choices.",
        ),
        (ONE + "tune: {depth: {int: [1, 2.5]}}", "tune.depth.int[1]"),
        (
            COMMAND + TUNE,
            "tune.weight_decay would change nothing: the command does not use "
            "{weight_decay}.",
        ),
        (
            COMMAND + "tune: {learning_rate: [0.1, 0.2]}",
            "tune.learning_rate would change nothing",
        ),
        (
            COMMAND + "optimizer: sgd",
            "optimizer belongs to a workload. For a command write options:",
        ),
    ],
)
def test_an_error_says_what_to_run_instead(text: str, says: str) -> None:
    assert says in refusal(text)


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
