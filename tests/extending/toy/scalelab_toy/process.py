"""What a process of the trainer does."""

import time
from collections.abc import Callable

from scalelab.inputs.outcome import Outcome
from scalelab.launch.protocol import RankIdentity
from scalelab.records.attempt import AttemptResult, AttemptSpec


def count(
    spec: AttemptSpec,
    identity: RankIdentity,
    rendezvous: str,
    progress: Callable[[int], None],
) -> AttemptResult | None:
    """Take the steps that are asked for."""
    num_steps = spec.trial.measurement.steps
    pause_s = spec.program.parameters["pause_s"]
    began = time.perf_counter()
    for step in range(1, num_steps + 1):
        time.sleep(pause_s)
        progress(step)
    step_time_s = (time.perf_counter() - began) / num_steps
    if identity.rank:
        return None
    return AttemptResult(
        outcome=Outcome.COMPLETED,
        measurements={
            "num_steps": num_steps,
            "num_samples": num_steps * spec.trial.global_batch_size,
            "step_time_s": step_time_s,
            "throughput_samples_per_s": spec.trial.global_batch_size / step_time_s,
        },
    )
