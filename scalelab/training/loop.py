"""Runs an engine through a trial: warm-up, measured steps, evaluations, target.

Steps run in blocks of about a second. Between blocks, outside the step clock, all ranks
meet; rank 0 reads its clock, records the steps, and decides whether and how far to go
on.

Ranks of a free loop take steps without waiting for each other. They meet where training
ends, evaluates or saves, outside of the step clock, and nowhere else. Steps are timed
where they are granted; rank 0 reads those times about once a second, records them, and
has the series end early where it decides so.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from scalelab.experiment.fingerprint import ACCEPT
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.kinds.trainers import WorkloadNames
from scalelab.launch.process_tree import stop_signal_has_come
from scalelab.launch.steady import cycle_means, is_steady, warmup_to_go_on_with
from scalelab.launch.verdict import fewest_steps
from scalelab.records.attempt import AttemptFiles, encode_json, write_atomically
from scalelab.training import checkpoint
from scalelab.training.context import RankContext
from scalelab.training.engines.base import Engine, FreeEngine
from scalelab.training.evaluation import class_figures
from scalelab.training.probes.device_monitor import DeviceMonitor
from scalelab.training.probes.meter import Phase, Seconds, StepClock
from scalelab.training.step_plan import TrainingPlan
from scalelab.training.workloads.base import CONFUSION_MATRIX

BLOCK_S = 1.0
CHECKPOINT_INTERVAL_S = 30.0
SAVED = ("step", "training_s", "evaluation_s", "evaluated_step", "metrics")
"""What a checkpoint keeps of a tally: all that goes on but the clock readings."""


class Ending(StrEnum):
    """The reason why the steps of a trial ended."""

    DONE = "done"
    TARGET = "target"
    DIVERGED = "diverged"
    PRUNED = "pruned"
    STOPPED = "stopped"
    OUT_OF_TIME = "out_of_time"


@dataclass(kw_only=True, slots=True)
class StepTally:
    """The steps, losses and evaluations of a trial so far; complete on rank 0."""

    step: int = 0
    # This rank's clock after warm-up, per block, each of shape (num_steps, 4).
    measured: list[Seconds] = field(default_factory=list)
    num_unsettled: int = 0  # of these steps, at their beginning
    window_steps: int | None = None  # done when enough was measured; None: not yet
    training_s: float = 0.0
    evaluation_s: float = 0.0
    evaluated_step: int = 0  # steps done at the last evaluation
    metrics: dict[str, float] = field(default_factory=dict)
    target_step: int | None = None  # after which it was first reached
    target_s: float | None = None
    ending: Ending | None = None  # None while the steps go on
    pruned: str | None = None  # why the source ended the trial, in a sentence

    @property
    def readings(self) -> Seconds:
        """Clock readings of all measured steps, shape (num_steps, 4), in seconds."""
        return np.concatenate([np.empty((0, len(Phase))), *self.measured])


class Loop:
    """The training loop of one rank."""

    def __init__(
        self,
        context: RankContext,
        trial: Trial,
        engine: Engine,
        clock: StepClock,
        monitor: DeviceMonitor,
        *,
        class_names: Sequence[str] = (),
    ) -> None:
        self._context = context
        self._trial = trial
        self._plan = TrainingPlan.of(trial)
        self._engine = engine
        self._clock = clock
        self._monitor = monitor
        self._class_names = class_names
        self._tally = StepTally()
        self._last_step_s: float | None = None
        self._saved_at = time.monotonic()

    def run(self) -> StepTally:
        """Run to the end; the tally is complete on rank 0 only."""
        self._resume()
        while num_steps := self._agree_on_block():
            self._run_block(num_steps)
            if self._plan.is_evaluated_after(self._tally.step):
                self._evaluate()
        self._context.stream.flush()
        return self._tally

    def _agree_on_block(self) -> int:
        """Agree with all ranks on the steps of the next block; 0 ends the trial."""
        num_steps = saves = 0
        is_asked = self._trial.saves_checkpoints and any(
            self._context.sum([stop_signal_has_come()])
        )
        if self._context.is_first:
            self._tally.ending = self._ending(is_asked)
            num_steps = 0 if self._tally.ending else self._block_steps()
            saves = self._is_saved(self._tally.ending)

        num_steps, saves = map(int, self._context.agree([num_steps, saves]))
        if saves:
            self._context.progress(self._tally.step)
            state, rank_state = self._engine.state()
            saved = {
                "trial_id": self._trial.trial_id,
                "position": {name: getattr(self._tally, name) for name in SAVED},
                "engine": state,
            }
            checkpoint.write(self._context, saved, rank_state)
            self._saved_at = time.monotonic()

        return num_steps

    def _ending(self, is_asked: bool) -> Ending | None:
        """Return why the steps end here; ``is_asked``: one of the ranks was to end."""
        tally = self._tally
        if tally.target_step is not None and self._trial.kind is not (
            TrialKind.THROUGHPUT
        ):
            return Ending.TARGET

        if tally.ending is not None:
            return tally.ending
        if self._has_measured_enough():
            return Ending.DONE

        tally.pruned = self._context.prune_reason()
        if tally.pruned is not None:
            return Ending.PRUNED
        if self._trial.saves_checkpoints and self._context.is_out_of_time():
            return Ending.OUT_OF_TIME

        return Ending.STOPPED if is_asked else None

    def _has_measured_enough(self) -> bool:
        tally, plan = self._tally, self._plan
        is_done = tally.step >= plan.num_steps
        if self._trial.kind is not TrialKind.THROUGHPUT:
            return is_done

        if tally.window_steps is None:
            self._look_at_steps()
        least_s = self._trial.measurement.least_s or 0.0
        if tally.window_steps is not None and tally.training_s >= least_s:
            return True

        if is_done:
            num_measured = plan.num_steps - plan.warmup_steps
            twice = plan.warmup_steps + 2 * num_measured
            self._plan = replace(plan, num_steps=twice)
        return False

    def _look_at_steps(self) -> None:
        """Lengthen the warm-up, or remember that the trial has measured enough."""
        tally, plan, cycle = self._tally, self._plan, self._plan.cycle
        measurement = self._trial.measurement
        step_times_s = tally.readings.sum(axis=1)[tally.num_unsettled :]
        step_times_s = step_times_s[: len(step_times_s) // cycle * cycle]
        warmup_steps = warmup_to_go_on_with(
            cycle_means(step_times_s, cycle),
            num_steps=len(step_times_s),
            warmup_steps=plan.warmup_steps + tally.num_unsettled,
            measurement=measurement,
            spent_s=tally.training_s,
            is_precise=lambda: is_steady(
                step_times_s, measurement.relative_precision, cycle=cycle
            ),
        )
        if warmup_steps is not None:
            # Measured steps are whole cycles.
            num_cycles = -(-(warmup_steps - plan.warmup_steps) // cycle)
            tally.num_unsettled = num_cycles * cycle
            return

        if len(step_times_s) < fewest_steps(self._trial):
            tally.num_unsettled = 0  # it was late before so many were measured
        tally.window_steps = tally.step

    def _block_steps(self) -> int:
        wanted = round(BLOCK_S / self._last_step_s) if self._last_step_s else 1
        return self._plan.series_after(self._tally.step, wanted)

    def _run_block(self, num_steps: int) -> None:
        first = self._tally.step
        has_just_resumed = first > 0 and self._last_step_s is None
        # What comes before the first step of an attempt is its start-up.
        self._context.progress(0 if has_just_resumed else first)
        self._engine.begin(first, num_steps)
        self._clock.start()

        for step in range(first, first + num_steps):
            self._engine.step(step)
            self._context.progress(step + 1)

        readings = self._clock.drain()
        self._monitor.sample()
        if first >= self._plan.warmup_steps and not has_just_resumed:
            self._tally.measured.append(readings)

        self._record_steps(readings)
        self._tally.step = first + num_steps
        self._last_step_s = max(float(readings.sum()) / num_steps, 1e-6)

    def _record_steps(self, readings: Seconds) -> None:
        tally, losses = self._tally, self._engine.drain_losses()
        for offset, phases in enumerate(readings.tolist()):
            step_time_s = sum(phases)
            tally.training_s += step_time_s
            row = {"event": "step", **self._now(tally.step + offset + 1)}
            row["step_time_s"] = step_time_s
            row |= {phase.column: phases[phase] for phase in Phase}
            if losses:
                row["loss"] = losses[offset]
            self._context.stream.append(row)

        if self._plan.evaluates and not all(map(math.isfinite, losses)):
            tally.ending = Ending.DIVERGED

    def _evaluate(self) -> None:
        tally = self._tally
        self._context.stream.flush()
        self._context.progress(tally.step)
        started_at = time.perf_counter()
        metrics = self._engine.evaluate(tally.step)
        seconds = time.perf_counter() - started_at
        tally.evaluation_s += seconds
        tally.evaluated_step = tally.step
        matrix = metrics.pop(CONFUSION_MATRIX, None)
        tally.metrics = metrics

        if self._context.is_first:
            now = self._now(tally.step)
            found = {name: now[name] for name in ("step", "samples")}
            found["metrics"] = metrics

            if matrix is not None:
                found |= class_figures(matrix, self._class_names)

            files, content = AttemptFiles(self._context.directory), encode_json(found)
            path = files.evaluation
            write_atomically(path, content, below=files.run, durable=False)
            row = {"event": "evaluation", **now, **metrics}
            self._context.stream.append(row | {"evaluation_s": seconds})
            self._context.stream.flush()
            self._judge()

    def _judge(self) -> None:
        tally, workload = self._tally, self._trial.workload
        measured = WorkloadNames(parameters=(), metrics=tuple(tally.metrics))
        if target := self._trial.measurement.target:
            measured.check_metric(workload, target.metric)
            is_reached = target.is_reached_by(tally.metrics[target.metric])
            if is_reached and tally.target_step is None:
                tally.target_step, tally.target_s = tally.step, tally.training_s
        for metric in self._trial.measurement.judged_by:
            measured.check_metric(workload, metric, ACCEPT)

    def _now(self, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "samples": step * self._trial.global_batch_size,
            "t": self._tally.training_s,
        }

    def _is_saved(self, ending: Ending | None) -> bool:
        if not self._trial.saves_checkpoints or self._tally.step == 0:
            return False
        if ending is None:
            return time.monotonic() - self._saved_at >= CHECKPOINT_INTERVAL_S
        return ending in (Ending.STOPPED, Ending.OUT_OF_TIME, Ending.PRUNED)

    def _resume(self) -> None:
        latest = checkpoint.latest(self._context.directory)
        number = -1 if latest is None else int(latest.parent.name)
        number = int(self._context.agree([number])[0])
        directory = self._context.directory.parent / f"{number:03d}" / "checkpoint"
        if number >= 0 and (found := checkpoint.read(self._context, directory)):
            saved, rank_state = found
            self._tally = StepTally(**saved["position"])
            self._engine.restore(self._tally.step, saved["engine"], rank_state)


class FreeLoop(Loop):
    """The training loop of one rank that waits for no other.

    All ranks have the same steps, those of the trial. Each divides their times among
    the phases as its own optimiser steps were divided.
    """

    _engine: FreeEngine

    def _block_steps(self) -> int:
        return self._plan.stop_after(self._tally.step) - self._tally.step

    def _run_block(self, num_steps: int) -> None:
        first, self._times_s = self._tally.step, list[float]()
        has_just_resumed = first > 0 and self._last_step_s is None
        self._first_measured = max(self._plan.warmup_steps, first + has_just_resumed)
        self._spent = np.zeros(len(Phase))
        # What comes before the first step of an attempt is its start-up.
        self._context.progress(0 if has_just_resumed else first)
        self._engine.begin(first, num_steps)
        self._clock.start()
        looked_s = time.monotonic()

        own_steps: list[int] = []
        while (step := self._engine.take()) is not None:
            own_steps.append(step)
            self._context.progress(step)
            if time.monotonic() - looked_s >= BLOCK_S:
                self._look(own_steps)
                self._clock.start()
                looked_s = time.monotonic()

        self._finish(first, own_steps)

    def _look(self, own_steps: list[int]) -> None:
        shares = self._drain(own_steps)
        ends = self._trial.saves_checkpoints and stop_signal_has_come()
        if self._context.is_first:
            self._record(self._engine.step_times_s(), shares)
            self._tally.ending = self._ending(is_asked=False)
            ends |= self._tally.ending is not None or self._is_saved(None)
        if ends:
            self._engine.halt(self._plan.warmup_steps, self._plan.cycle)

    def _drain(self, own_steps: list[int]) -> Seconds:
        readings = self._clock.drain()
        self._monitor.sample()
        is_measured = np.array(own_steps, dtype=int) > self._first_measured
        self._spent += readings[is_measured].sum(axis=0)
        own_steps.clear()
        return _shares(readings.sum(axis=0))

    def _record(self, times_s: list[float], shares: Seconds) -> None:
        tally, readings = self._tally, np.outer(times_s, shares)
        self._record_steps(readings)
        tally.measured.append(readings[max(0, self._first_measured - tally.step) :])
        tally.step += len(times_s)
        self._times_s += times_s

    def _finish(self, first: int, own_steps: list[int]) -> None:
        shares = self._drain(own_steps)
        self._context.progress(self._engine.num_granted)
        self._context.sum([0])

        if self._context.is_first:
            self._record(self._engine.step_times_s(is_over=True), shares)
        else:
            self._times_s = [0.0] * (self._engine.num_granted - first)

        times_s = self._context.agree(self._times_s)
        if not self._context.is_first:
            measured_s = times_s[max(0, self._first_measured - first) :]
            self._tally.measured.append(np.outer(measured_s, _shares(self._spent)))

        self._tally.step = self._engine.num_granted
        self._last_step_s = max(sum(times_s) / len(times_s), 1e-6)


def _shares(seconds: Seconds) -> Seconds:
    """Return the phases' shares, shape (4,); who took no step has only waited."""
    if seconds.sum() == 0:
        seconds = np.eye(len(Phase))[Phase.EXPOSED_SYNC]
    return np.asarray(seconds / seconds.sum())
