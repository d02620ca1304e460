"""Runs on disk as a sweep would leave them, measured by a formula."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from planned_trials import planned_trials

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import (
    AttemptResult,
    AttemptSpec,
    KnownWorkload,
    NodeShare,
    Placement,
)
from scalelab.records.code import code_hash
from scalelab.records.store import RunStore

EMULATED = """\
name: small
workload: {name: emulated, sample_time_s: 2.0e-3, fixed_time_s: 10.0e-3}
measure: {long_trial: none, warmup_steps: 1, steps: 5, repeats: 2}
job: {samples: 100000}
gpus: [1, 2]
local_batch_size: [4, 8]
site: {device_type: cpu, gpus_per_node: 2}
"""
COMMAND = """\
name: trained
command: >-
  python train.py --batch {local_batch_size} --accumulate
  {gradient_accumulation_steps} --lr {learning_rate} --seed {seed} --out {trial_dir}
code: {snapshot: [train.py]}
metrics: {regex: 'step (?P<step>[0-9]+) samples (?P<samples>[0-9]+)'}
measure: {long_trial: none, steps: 20}
job: {epochs: 90, samples_per_epoch: 100000}
gpus: [1, 2, 4, 8, 16]
local_batch_size: [16, 32]
learning_rate: {base: 0.1, at_batch: 32, rule: linear}
seed: 3
site: {name: hpc, scheduler: slurm, device_type: cuda, gpus_per_node: 4}
"""

Ending = Callable[[Trial], AttemptResult]


def step_time_s(allocation: Allocation, local_batch_size: int) -> float:
    """Return compute plus an exchange that is slower between nodes."""
    size, nodes = allocation.world_size, allocation.num_nodes
    exchange = 2 * (size - 1) / size * (0.002 if nodes == 1 else 0.03)
    return 0.010 + 0.002 * local_batch_size + exchange


def completed(trial: Trial, **measurements: Any) -> AttemptResult:
    """Return what a throughput trial measures."""
    step = step_time_s(trial.allocation, trial.local_batch_size)
    step *= 1 + 0.004 * (trial.repeat - 1)
    measured = {
        "step_time_s": step,
        "step_time_lo_s": 0.99 * step,
        "step_time_hi_s": 1.01 * step,
        "throughput_samples_per_s": trial.global_batch_size / step,
        "device_name": "A100",
        "num_steps": trial.measurement.steps,
        "num_samples": trial.measurement.steps * trial.global_batch_size,
        "allocated_gpu_s": 10.0 * trial.world_size,
        "start_up_s": 1.0,
        "hosts": ["node-0"],
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:00:10+00:00",
    }
    return AttemptResult(
        outcome=Outcome.COMPLETED, measurements={**measured, **measurements}
    )


def failed(trial: Trial) -> AttemptResult:
    """Return the end of a trial whose rank raised."""
    return AttemptResult(
        outcome=Outcome.FAILED,
        reason="Rank 0 raised ValueError: no such file.",
        rank=0,
        traceback="Traceback ...\nValueError: no such file\n",
        log="rank-0.log",
        measurements={"allocated_gpu_s": 2.0},
    )


def measured_run(
    directory: Path, text: str = EMULATED, ending: Ending | None = completed
) -> RunStore:
    """Make a run of an experiment, all its trials ended; None: none begun.

    Parameters
    ----------
    directory
        The run's directory; user's code lies beside it.
    text
        The experiment.
    ending
        How each trial ends.
    """
    asked = Experiment.from_text(text, directory=directory.parent)
    site = asked.resolve_site()
    store = RunStore.create(
        directory,
        experiment_text=text,
        fingerprint=asked.fingerprint(
            code_hash=code_hash(asked), device_type=site.device_type.value
        ),
    )
    if ending is not None:
        for trial in planned_trials(asked, site):
            end_trial(store, asked, trial, ending(trial))
    return store


def end_trial(
    store: RunStore, asked: Experiment, trial: Trial, result: AttemptResult
) -> None:
    """Record one attempt of a trial."""
    shares = tuple(
        NodeShare(node=f"node-{index}", device_ids=tuple(map(str, range(count))))
        for index, count in enumerate(trial.allocation.devices_per_node)
    )
    spec = AttemptSpec(
        run=store.name,
        trial=trial,
        program=asked.programs()[trial.program],
        number=store.next_attempt_number(trial.trial_id),
        directory="",
        placement=Placement(shares=shares),
        device_type=asked.resolve_site().device_type.value,
        known=KnownWorkload.named(trial.workload),
    )
    where = store.attempt_directory(trial.trial_id, spec.number)
    spec = replace(spec, directory=str(where))
    store.begin(spec)
    store.finish(spec, result)
