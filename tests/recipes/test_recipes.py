"""Every recipe is swept for real; what is recorded is what its framework says."""

from __future__ import annotations

import re

import numpy as np
import pytest
from swept_recipes import STEPS, WARMUP, Recorded, SweepRecipe

pytestmark = [pytest.mark.slow, pytest.mark.recipes, pytest.mark.timeout(600)]
NEAR = 0.05
# The environment of each recipe, and the samples of a step on one rank.
SWEPT = {
    "nanogpt": ("torch", 24),
    "imagenet": ("torch", 64),
    "hf_accelerate": ("common", 256),
    "mpi4py_allreduce": ("common", 2048),
    "jax_distributed": ("jax", 128),
    "tensorflow_workers": ("tensorflow", 128),
    "tensorflow_servers": ("tensorflow", 128),
    "deepspeed_zero": ("deepspeed", 256),
}
WITNESSED = {
    "hf_trainer": ("common", "of_trainer.py", 32),
    "lightning_fit": ("common", "of_lightning.py", 256),
}
# What programs print of their batches: an expression, and what it finds on one rank and
# on two.
SAID = {
    "nanogpt": (r"^tokens per iteration will be: (\S+)$", "1,536", "3,072"),
    "imagenet": (r"^Epoch: \[0\]\[ *1/(\d+)\]", "32", "16"),
    "hf_accelerate": (r"^Num processes: (\d+)$", "1", "2"),
}
# How programs print the seconds of a step themselves.
TIMES = {
    "nanogpt": (r"^iter \d+: .* time (\S+)ms", 1e-3),
    "imagenet": (r"^Epoch: .*Time +(\S+) ", 1.0),
}


def assert_batches(trials: list[Recorded], of_one_rank: int) -> None:
    """One and two ranks took whole steps of the right numbers of samples."""
    assert [trial.row["world_size"] for trial in trials] == [1, 2]
    for trial, ranks in zip(trials, (1, 2), strict=True):
        steps = trial.steps()
        assert trial.row["num_steps"] >= STEPS - 10, trial.row
        assert trial.row["global_batch_size"] == of_one_rank * ranks
        assert steps.index.is_monotonic_increasing
        assert steps.index[-1] >= WARMUP + STEPS
        assert (steps["samples"] == steps.index * of_one_rank * ranks).all()


def losses(trial: Recorded) -> np.ndarray:
    found = trial.steps()
    name = "train_loss" if "train_loss" in found else "loss"
    return found[name].dropna().to_numpy()


def assert_it_learns(trial: Recorded) -> None:
    found = losses(trial)
    assert found[-10:].mean() < 0.98 * found[:10].mean(), found


@pytest.mark.parametrize("name", SWEPT)
def test_steps_batches_and_losses_are_read(
    name: str, sweep_recipe: SweepRecipe
) -> None:
    environment, of_one_rank = SWEPT[name]
    trials = sweep_recipe(name, environment)
    assert_batches(trials, of_one_rank)
    for trial in trials:
        assert_it_learns(trial)
        if name in SAID:
            pattern, *said = SAID[name]
            found = re.findall(pattern, trial.printed(), re.M)
            assert found == [said[trial.row["world_size"] - 1]]
        if name in TIMES:
            pattern, unit_s = TIMES[name]
            printed = re.findall(pattern, trial.printed(), re.M)
            told_s = unit_s * np.median([float(each) for each in printed][WARMUP:])
            read_s = trial.steps()["step_time_s"][WARMUP:].median()
            assert read_s == pytest.approx(told_s, rel=NEAR)


@pytest.mark.parametrize("name", WITNESSED)
def test_throughput_is_what_the_framework_counts(
    name: str, sweep_recipe: SweepRecipe
) -> None:
    environment, witness, of_one_rank = WITNESSED[name]
    trials = sweep_recipe(name, environment, witness)
    assert_batches(trials, of_one_rank)
    for trial in trials:
        assert_it_learns(trial)
        told = trial.witnessed()
        assert (told["samples"] == told.index * trial.row["global_batch_size"]).all()
        assert trial.row["throughput_samples_per_s"] == pytest.approx(
            throughput(trial), rel=NEAR
        )
        assert is_among(losses(trial), trial.witnessed_losses())


def throughput(trial: Recorded) -> float:
    """Return what the framework's own clock says of the steps that were measured."""
    told = trial.witnessed()
    first, last = measured_steps(trial)
    return float(
        (told["samples"][last] - told["samples"][first])
        / (told["t"][last] - told["t"][first])
    )


def measured_steps(trial: Recorded) -> tuple[int, int]:
    """Return the first and the last measured step that the framework told of, too.

    A program is ended as soon as its last step is read, be that told of or not.
    """
    read = trial.steps().index
    both = trial.witnessed().index.intersection(read[read >= WARMUP])
    return int(both.min()), int(both.max())


def is_among(read: np.ndarray, told: list[float]) -> bool:
    """Whether each loss is one that the framework logged, up to its rounding."""
    return bool(
        (np.abs(read[:, None] - np.array(told)).min(axis=1) < 1e-2 * read).all()
    )


def test_steps_of_fit_are_those_of_its_callbacks(sweep_recipe: SweepRecipe) -> None:
    """Keras: one process takes the global batch, whatever the devices."""
    trials = sweep_recipe("keras_fit", "keras", "of_keras.py")
    for trial, ranks in zip(trials, (1, 2), strict=True):
        assert trial.row["world_size"] == ranks
        assert trial.row["global_batch_size"] == 256
        told = trial.witnessed()
        first, last = measured_steps(trial)
        told_s = (told["t"][last] - told["t"][first]) / (last - first)
        assert trial.row["step_time_s"] == pytest.approx(told_s, rel=NEAR)
        assert is_among(losses(trial), trial.witnessed_losses())
        assert_it_learns(trial)
