import time
from collections.abc import Callable
from statistics import fmean

from scalelab.experiment.program import WorkloadProgram
from scalelab.inputs.outcome import Outcome
from scalelab.launch.protocol import RankIdentity
from scalelab.records.attempt import AttemptResult, AttemptSpec


def run_rank(
    spec: AttemptSpec,
    identity: RankIdentity,
    rendezvous: str,  # where processes can meet; these need not
    progress: Callable[[int], None],
) -> AttemptResult | None:
    trial, program = spec.trial, spec.program
    assert isinstance(program, WorkloadProgram)
    samples = trial.local_batch_size * trial.gradient_accumulation_steps
    seconds = []
    for step in range(1, trial.measurement.warmup_steps + trial.measurement.steps + 1):
        began = time.perf_counter()
        time.sleep(samples * program.parameters["sample_time_s"])
        if step > trial.measurement.warmup_steps:
            seconds.append(time.perf_counter() - began)
        progress(step)  # a rank that is silent for long counts as stalled
    if identity.rank > 0:
        return None
    return AttemptResult(
        outcome=Outcome.COMPLETED,
        measurements={
            "num_steps": len(seconds),
            "num_samples": len(seconds) * trial.global_batch_size,
            "step_time_s": fmean(seconds),
            "throughput_samples_per_s": trial.global_batch_size / fmean(seconds),
        },
    )
