"""A declared machine is measured, fitted and judged, and the truth is known."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planned_trials import planned_trials

from scalelab import session
from scalelab.experiment.job import Job
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.prediction.knee import last_paying
from scalelab.recommend.question.objective import Constraints
from scalelab.training.workloads.declared_machine import (
    DeclaredMachine,
    declared_step_time,
)

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
FURTHEST = 4  # times the most devices measured: so far a recommendation looks
JOB = Job(epochs=90, samples_per_epoch=1_281_167)
SMALL = """\
name: four-nodes-of-four
workload:
  name: emulated
  sample_time_s: 0.75e-3
  fixed_time_s: 12.0e-3
  gradient_bytes: 100_000_000
  intra_latency_s: 80.0e-6
  intra_bandwidth_bytes_per_s: 12.5e9
  inter_latency_s: 1.5e-3
  inter_bandwidth_bytes_per_s: 2.5e9
  overlap: 0.7
  imbalance: 0.03
  noise: 0.005
measure: {warmup_steps: 2, steps: 60, relative_precision: 0.005, repeats: 2}
job: {epochs: 90, samples_per_epoch: 1281167}
gpus: [1, 2, 4, 8, 16]
global_batch_size: [64, 256, 512]
scaling: strong
site: {device_type: cpu, nodes: 4, gpus_per_node: 4}
"""


def machine_of(experiment: Experiment) -> DeclaredMachine:
    assert experiment.workload is not None
    declared = experiment.workload.parameters
    names = {field.name for field in fields(DeclaredMachine)} & set(declared)
    return DeclaredMachine(**{name: declared[name] for name in names})


def declared_terms(machine: DeclaredMachine, per_node: int) -> dict[str, float]:
    """What the parameters of the answer should say of a machine."""
    instant = replace(
        machine,
        intra_latency_s=0.0,
        inter_latency_s=0.0,
        intra_bandwidth_bytes_per_s=math.inf,
        inter_bandwidth_bytes_per_s=math.inf,
    )

    def exposed_s(num_nodes: int) -> float:
        with_it, without = (
            declared_step_time(
                each, local_batch_size=16, devices_per_node=[per_node] * num_nodes
            )
            for each in (machine, instant)
        )
        return with_it - without

    return {
        "compute_fixed": machine.fixed_time_s,
        "compute_per_sample": machine.sample_time_s,
        "intra_node_exchange": exposed_s(1),
        "inter_node_exchange": exposed_s(2) - exposed_s(1),
    }


def true_time(machine: DeclaredMachine, trial: Trial) -> float:
    return declared_step_time(
        machine,
        local_batch_size=trial.local_batch_size,
        gradient_accumulation_steps=trial.gradient_accumulation_steps,
        devices_per_node=trial.allocation.devices_per_node,
    )


def declared_knee(machine: DeclaredMachine, asked: Experiment) -> tuple[int, int]:
    """The world sizes around the knee, by the recommendation's own definition."""
    assert asked.gpus is not None
    assert asked.global_batch_size is not None
    per_node = asked.resolve_site().gpus_per_node
    sizes = [min(asked.gpus)]
    while sizes[-1] < FURTHEST * max(asked.gpus):
        sizes.append(2 * sizes[-1])
    times = [
        min(
            declared_step_time(
                machine,
                local_batch_size=total // size,
                devices_per_node=[min(size, per_node)] * -(-size // per_node),
            )
            / total
            for total in asked.global_batch_size
        )
        for size in sizes
    ]
    least = Constraints().min_marginal_return
    (last,) = last_paying(np.array([times]), np.array(sizes, dtype=float), least)
    return sizes[last], sizes[last + 1]


def knee_is_covered(answer: Recommendation, declared: tuple[int, int]) -> bool:
    assert answer.knee is not None
    lo, hi = answer.knee.lo, answer.knee.hi
    return lo is not None and lo <= declared[0] and (hi is None or declared[1] <= hi)


def inside(answer: Recommendation, terms: Mapping[str, float]) -> dict[str, bool]:
    """Whether each declared term lies in the 80% interval of the fitted one."""
    assert answer.interval == 0.8
    rows = {row.name: row for row in answer.parameters}
    return {
        name: rows[name].lo <= truth <= rows[name].hi for name, truth in terms.items()
    }


def random_machine(rng: np.random.Generator) -> DeclaredMachine:
    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    return DeclaredMachine(
        sample_time_s=between(5e-4, 1e-2),
        fixed_time_s=between(2e-3, 3e-2),
        intra_latency_s=between(5e-6, 1e-4),
        intra_bandwidth_bytes_per_s=between(5e9, 1e11),
        inter_latency_s=between(2e-5, 5e-4),
        inter_bandwidth_bytes_per_s=between(1e9, 1e10),
        overlap=float(rng.choice([0.0, rng.uniform(0.1, 0.7)])),
        imbalance=float(rng.choice([0.0, rng.uniform(0.01, 0.06)])),
    )


def rows_of(
    machine: DeclaredMachine, trials: Iterable[Trial], rng: np.random.Generator
) -> pd.DataFrame:
    noise = rng.uniform(0.002, 0.01)
    return pd.DataFrame(
        {
            "workload": "emulated",
            "emulated": True,
            "world_size": trial.world_size,
            "num_nodes": trial.allocation.num_nodes,
            "local_batch_size": trial.local_batch_size,
            "gradient_accumulation_steps": trial.gradient_accumulation_steps,
            "step_time_s": true_time(machine, trial)
            * np.exp(noise * rng.standard_normal()),
        }
        for trial in trials
    )


@pytest.fixture(scope="module")
def large() -> Experiment:
    return Experiment.from_file(EXPERIMENTS / "emulated_64_gpus.yaml")


def test_the_knee_of_the_example_lies_inside_its_range_and_is_no_close_call(
    large: Experiment,
) -> None:
    machine = machine_of(large)
    for change in (0.97, 1.0, 1.03):
        changed = replace(machine, sample_time_s=change * machine.sample_time_s)
        assert declared_knee(changed, large) == (16, 32)


@pytest.mark.repetition
@pytest.mark.slow
def test_random_machines_are_recovered_as_often_as_their_intervals_say(
    large: Any,
) -> None:
    planned = planned_trials(large)
    trials = [trial for trial in planned if trial.canary_after is None]
    per_node = large.resolve_site().gpus_per_node
    terms, knees = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        machine = random_machine(rng)
        answer = recommend(rows_of(machine, trials, rng), JOB)
        terms += inside(answer, declared_terms(machine, per_node)).values()
        knees.append(knee_is_covered(answer, declared_knee(machine, large)))
    assert 0.70 <= np.mean(terms) <= 0.95
    assert np.mean(knees) >= 0.8


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_declared_machine_comes_back_out_of_a_real_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "experiment.yaml"
    path.write_text(SMALL)
    run = session.sweep(path, directory=tmp_path / "run")
    observations = run.observations
    assert (observations["outcome"] == "completed").all()
    assert observations["emulated"].all()

    experiment = Experiment.from_text(SMALL)
    machine = machine_of(experiment)
    terms = declared_terms(machine, experiment.resolve_site().gpus_per_node)
    knee = declared_knee(machine, experiment)
    assert knee == (4, 8)
    # every repeat has noise of its own: each is a sweep, and so are both
    found = []
    for repeats in ([0], [1], [0, 1]):
        rows = observations[observations["repeat"].isin(repeats)]
        answer = recommend(rows, JOB)
        assert answer.is_emulated
        assert knee_is_covered(answer, knee)
        found += inside(answer, terms).values()
        fitted = {row.name: row.value for row in answer.parameters}
        name = "compute_per_sample"
        assert fitted[name] == pytest.approx(terms[name], rel=0.35)
    assert np.mean(found) >= 0.7
