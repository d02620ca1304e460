"""Emulated training on a declared machine: ranks wait instead of computing.

Every rank waits until absolute deadlines that follow from the declared machine, so a
late wake-up does not lengthen the steps after it, and a series of steps that ended late
shortens the first step of the next one. A real exchange of 4 bytes keeps the
ranks in step; it happens inside the waited time and costs nothing there, as long as it
is shorter than the declared computation (about 1 ms for 4 ranks and 10 ms for 64 on 2
cores).
"""

import math
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.training.context import RankContext
from scalelab.training.probes.meter import Phase, StepClock
from scalelab.training.step_plan import TrainingPlan
from scalelab.training.workloads.base import Workload
from scalelab.training.workloads.declared_machine import (
    DeclaredMachine,
    compute_time,
    declared_step_time,
)

VAL_ACC_AT_TARGET = 0.95
START_MARGIN_S = 0.002
START_MARGIN_PER_RANK_S = 0.0005
LONGEST_START_WAIT_S = 1.0
LARGEST_CLOCK_ERROR = 0.02


class Emulated(Workload):
    """An emulated workload: step times are declared, all processes are real.

    Parameters
    ----------
    sample_time_s, fixed_time_s, gradient_bytes, intra_latency_s, \
intra_bandwidth_bytes_per_s, inter_latency_s, inter_bandwidth_bytes_per_s, overlap, \
imbalance, noise
        See :class:`~scalelab.training.workloads.declared_machine.DeclaredMachine`.
    min_samples, critical_batch_size
        Samples to ``val_acc = 0.95`` at global batch ``B`` are
        ``min_samples * (1 + B / critical_batch_size)`` (McCandlish et al. 2018,
        equation 2.11); None: convergence is not declared.
    device_memory_bytes, memory_fixed_bytes, memory_per_sample_bytes
        A local batch ``b`` needs ``memory_fixed_bytes + b * memory_per_sample_bytes``
        of a device; beyond ``device_memory_bytes`` it is out of memory. None: no limit.
    """

    emulated = True
    engine = f"{__name__}:EmulationEngine"
    dataset_name = "none"

    def __init__(
        self,
        sample_time_s: float = 0.001,
        fixed_time_s: float = 0.005,
        gradient_bytes: int = 100_000_000,
        intra_latency_s: float = 1e-5,
        intra_bandwidth_bytes_per_s: float = 1e11,
        inter_latency_s: float = 5e-5,
        inter_bandwidth_bytes_per_s: float = 1e10,
        overlap: float = 0.0,
        imbalance: float = 0.0,
        noise: float = 0.0,
        min_samples: int | None = None,
        critical_batch_size: float | None = None,
        device_memory_bytes: int | None = None,
        memory_fixed_bytes: int = 0,
        memory_per_sample_bytes: int = 0,
    ) -> None:
        self.machine = DeclaredMachine(
            sample_time_s=sample_time_s,
            fixed_time_s=fixed_time_s,
            gradient_bytes=gradient_bytes,
            intra_latency_s=intra_latency_s,
            intra_bandwidth_bytes_per_s=intra_bandwidth_bytes_per_s,
            inter_latency_s=inter_latency_s,
            inter_bandwidth_bytes_per_s=inter_bandwidth_bytes_per_s,
            overlap=overlap,
            imbalance=imbalance,
            noise=noise,
        )
        if (min_samples is None) != (critical_batch_size is None):
            raise SpecError(
                f"min_samples={min_samples} and critical_batch_size="
                f"{critical_batch_size} belong together. Set both or neither.",
                code="half_of_convergence",
            )

        self.min_samples = min_samples
        self.critical_batch_size = critical_batch_size
        self.device_memory_bytes = device_memory_bytes
        self.memory_fixed_bytes = memory_fixed_bytes
        self.memory_per_sample_bytes = memory_per_sample_bytes

    def samples_to_target(self, global_batch_size: int) -> float:
        """Return the training samples after which ``val_acc`` is 0.95.

        >>> Emulated(min_samples=1000, critical_batch_size=500).samples_to_target(250)
        1500.0
        """
        if self.min_samples is None or self.critical_batch_size is None:
            raise SpecError(
                "Workload 'emulated' declares no convergence. Set min_samples and "
                "critical_batch_size, or measure throughput.",
                code="no_convergence",
            )
        return self.min_samples * (1 + global_batch_size / self.critical_batch_size)

    def memory_bytes(self, local_batch_size: int) -> int:
        """Return the memory that a local batch needs on a device."""
        return self.memory_fixed_bytes + local_batch_size * self.memory_per_sample_bytes


class EmulationEngine:
    """Engine of emulated trials: waits for the declared times."""

    def __init__(
        self,
        workload: Emulated,
        trial: Trial,
        context: RankContext,
        clock: StepClock,
        loader_workers: int = 0,
    ) -> None:
        self._workload = workload
        self._trial = trial
        self._context = context
        self._clock = clock
        needed = workload.memory_bytes(trial.local_batch_size)

        available = workload.device_memory_bytes
        if available is not None and needed > available:
            raise torch.OutOfMemoryError(
                f"local_batch_size={trial.local_batch_size} needs {needed} "
                f"bytes, the declared device has device_memory_bytes={available}."
            )

        if trial.kind is not TrialKind.THROUGHPUT:
            workload.samples_to_target(trial.global_batch_size)

        self._mean_step_s = declared_step_time(
            workload.machine,
            local_batch_size=trial.local_batch_size,
            gradient_accumulation_steps=trial.gradient_accumulation_steps,
            devices_per_node=trial.allocation.devices_per_node,
        )

        # From 0 of the fastest rank to 1 of the slowest.
        position = context.rank / max(context.world_size - 1, 1)
        self._mean_compute_s = compute_time(
            workload.machine,
            local_batch_size=trial.local_batch_size,
            gradient_accumulation_steps=trial.gradient_accumulation_steps,
            slowness=1.0 + workload.machine.imbalance * position,
        )

        self._warmup_steps = TrainingPlan.of(trial).warmup_steps
        self._token = torch.zeros(1)
        self._deadline_s = 0.0
        self._started_s = self._declared_s = self._waited_s = 0.0

    def begin(self, step: int, num_steps: int) -> None:
        """Agree on one moment at which all ranks start.

        The waits of the measured steps add up to the declared times: what the series
        before this one lasted too long is taken off.
        """
        world_size = self._context.world_size
        margin_s = START_MARGIN_S + START_MARGIN_PER_RANK_S * world_size
        # The time of day is the one clock that ranks on different hosts share.
        start = self._context.agree([time.time() + margin_s])[0]
        wait_s = min(max(0.0, start - time.time()), LONGEST_START_WAIT_S)
        _sleep_until(time.perf_counter() + wait_s)

        if step == self._warmup_steps:
            self._waited_s = self._declared_s = 0.0

        self._started_s = time.perf_counter()
        self._deadline_s = self._started_s + self._declared_s - self._waited_s

    def step(self, step: int) -> None:
        """Take one optimiser step, marking its phases on the clock."""
        sigma = self._workload.machine.noise
        words = [int(self._trial.trial_id, 16), step]
        drawn = np.random.default_rng(words).standard_normal()
        noise = math.exp(sigma * drawn - sigma**2 / 2)
        started_s = self._deadline_s
        self._deadline_s += self._mean_step_s * noise

        if self._context.world_size > 1:
            # A tree to rank 0 and back, which costs half of what a ring does.
            dist.reduce(self._token, dst=0)
            dist.broadcast(self._token, src=0)

        _sleep_until(started_s + self._mean_compute_s * noise)
        self._clock.mark(Phase.COMPUTE)
        if self._context.world_size > 1:
            _sleep_until(self._deadline_s)
            self._clock.mark(Phase.EXPOSED_SYNC)

        self._clock.end_step()
        now = time.perf_counter()
        self._waited_s += now - self._started_s
        self._declared_s += self._mean_step_s * noise
        self._started_s = now

    def drain_losses(self) -> list[float]:
        """Return no losses: an emulated step has none."""
        return []

    def evaluate(self, step: int) -> dict[str, float]:
        """Return ``val_acc``, which reaches 0.95 at the declared number of samples."""
        if not self._context.is_first:
            return {}
        batch = self._trial.global_batch_size
        done = step * batch / self._workload.samples_to_target(batch)
        return {"val_acc": 1 - (1 - VAL_ACC_AT_TARGET) ** done}

    def state(self) -> tuple[dict[str, Any], Any]:
        """Return an empty state: an emulated trial depends on the step alone."""
        return {}, None

    def restore(self, step: int, state: dict[str, Any], rank_state: Any) -> None:
        """Continue after a step; there is no other state."""

    def description(self) -> dict[str, Any]:
        """Return the columns that are known without measuring."""
        gradient_bytes = self._workload.machine.gradient_bytes
        return {
            "device_name": "declared machine",
            "num_parameters": gradient_bytes // 4,
            "gradient_bytes": gradient_bytes,
            "schedule": "constant",
            "planned_steps": TrainingPlan.of(self._trial).num_steps,
        }

    def validity(self) -> tuple[str, ...]:
        """Return a reason if this rank's waits took longer than declared."""
        error = abs(self._waited_s - self._declared_s)
        is_unsteady = error > LARGEST_CLOCK_ERROR * self._declared_s
        return ("unsteady_clock",) if is_unsteady else ()

    def gradient_noise_scale(self) -> float | None:
        """Return the critical batch size, which it estimates; None if not declared."""
        return self._workload.critical_batch_size

    def peak_memory_bytes(self) -> int | None:
        """Return the declared memory of the batch; None where none is declared."""
        return self._workload.memory_bytes(self._trial.local_batch_size) or None

    def device_memory_bytes(self) -> int | None:
        """Return the declared memory of a device; None where none is declared."""
        return self._workload.device_memory_bytes


def _sleep_until(deadline_s: float) -> None:
    remaining_s = deadline_s - time.perf_counter()
    if remaining_s > 0:
        time.sleep(remaining_s)
