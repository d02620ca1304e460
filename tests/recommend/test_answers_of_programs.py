"""Answers over several programs: one is recommended, all are compared."""

from pathlib import Path

import pandas as pd
import pytest
from measured_runs import completed, failed, measured_run

from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.records.attempt import AttemptResult
from scalelab.session import Run, import_table, load

TEXT = """\
name: frameworks
program:
- name: torch
  command: python torch_train.py --batch {local_batch_size}
- name: jax
  command: .jax/bin/python jax_train.py --batch {local_batch_size} --at {coordinator}
  launcher: jax
  env: {XLA_FLAGS: --fast}
- name: broken
  command: python broken.py --batch {local_batch_size}
metrics: {regex: 'step (?P<step>[0-9]+)'}
job: {epochs: 90, samples_per_epoch: 100000}
gpus: [1, 2, 4]
local_batch_size: [16, 32]
site: {name: hpc, scheduler: slurm, device_type: cuda, gpus_per_node: 4}
"""
SLOWER = {"torch": 1.5, "jax": 1.0}


def ending(trial: Trial) -> AttemptResult:
    if trial.program not in SLOWER:
        return failed(trial)
    factor = SLOWER[trial.program]
    told = completed(trial).measurements
    times = ("step_time_s", "step_time_lo_s", "step_time_hi_s")
    slower = {name: factor * told[name] for name in times}
    rate = told["throughput_samples_per_s"] / factor
    return completed(trial, **slower, throughput_samples_per_s=rate)


def test_each_program_is_a_curve_of_its_own(tmp_path: Path) -> None:
    run = load(measured_run(tmp_path / "run", TEXT, ending).directory)
    curves = StepTimeLaw.fit(run.observations).curves
    assert sorted(dict(key)["options.program"] for key in curves) == ["jax", "torch"]


def test_the_answer_names_the_fastest_and_compares(tmp_path: Path) -> None:
    run = load(measured_run(tmp_path / "run", TEXT, ending).directory)
    answer = run.recommend()
    assert answer.chosen.settings["program"] == "jax"
    (said,) = [
        line for line in answer.said("why_not") if line.startswith("Programs on ")
    ]
    assert said.startswith(f"Programs on {answer.chosen.world_size} GPUs, each with")
    assert said.index("jax ") < said.index("torch ")
    assert "broken" not in said
    asked = run.recommend(select={"options.program": "torch"})
    assert asked.chosen.time_s.value > 1.3 * answer.chosen.time_s.value
    assert not [
        line for line in asked.said("why_not") if line.startswith("Programs on ")
    ]


@pytest.mark.slow
def test_the_job_script_starts_the_chosen_program(tmp_path: Path) -> None:
    run = load(measured_run(tmp_path / "run", TEXT, ending).directory)
    jax = job_script(run, "jax")
    assert ".jax/bin/python jax_train.py" in jax
    assert "XLA_FLAGS" in jax
    torch = job_script(run, "torch")
    assert "torch_train.py" in torch
    assert "XLA_FLAGS" not in torch


def job_script(run: Run, program: str) -> str:
    answer = run.recommend(select={"options.program": program})
    return run.job_script(answer)


@pytest.mark.slow
def test_an_imported_table_may_have_programs(tmp_path: Path) -> None:
    rows = [
        {"program": name, "gpus": gpus, "samples_per_s": speed * gpus**0.95, "bs": 32}
        for name, speed in (("torch", 400.0), ("jax", 600.0))
        for gpus in (1, 2, 4, 8)
    ]
    table = tmp_path / "table.csv"
    pd.DataFrame(rows).to_csv(table, index=False)
    run = import_table(
        table,
        tmp_path / "run",
        column={"local_batch_size": "bs"},
        constant={"num_nodes": 1},
        accept_doubts=True,
    )
    answer = run.recommend(job={"samples": 1_000_000})
    assert answer.chosen.settings["program"] == "jax"
    assert [line for line in answer.said("why_not") if line.startswith("Programs on ")]


TO_TARGET = TEXT.replace("epochs: 90", "target: val_acc >= 0.7, epochs: 90").replace(
    "metrics: {regex: 'step (?P<step>[0-9]+)'}",
    "metrics: {regex: 'step (?P<step>[0-9]+) val_acc (?P<val_acc>.+)'}\n"
    "measure: {kind: [throughput, convergence], batch_norm: false}",
)
TO_TARGET = TO_TARGET.replace("local_batch_size: [16, 32]", "local_batch_size: 16")
TO_TARGET = TO_TARGET.replace("{local_batch_size}", "{global_batch_size}")
SAMPLES = {"torch": 100_000, "jax": 300_000}


def ending_at_target(trial: Trial) -> AttemptResult:
    if trial.kind is TrialKind.THROUGHPUT or trial.program not in SAMPLES:
        return ending(trial)
    samples = SAMPLES[trial.program] + 100 * trial.global_batch_size
    told = {"samples_to_target": samples, "num_samples": samples}
    return AttemptResult(
        outcome=Outcome.COMPLETED,
        measurements={**told, "reached_target": True, "device_name": "A100"},
    )


@pytest.mark.slow
def test_each_program_needs_samples_of_its_own(tmp_path: Path) -> None:
    run = load(measured_run(tmp_path / "run", TO_TARGET, ending_at_target).directory)
    law = ConvergenceLaw.fit(run.observations)
    assert sorted(dict(key)["options.program"] for key in law.curves) == [
        "jax",
        "torch",
    ]
    # A step of jax takes two thirds of the time, but it needs three times as many.
    answer = run.recommend()
    assert answer.chosen.settings["program"] == "torch"
    assert 90_000 < answer.chosen.samples.value < 120_000
    (said,) = [
        line for line in answer.said("why_not") if line.startswith("Programs on ")
    ]
    assert said.index("torch ") < said.index("jax ")
    assert not [note for note in answer.notes if "not to depend on program" in note]
