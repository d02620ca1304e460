"""When a trial warms up, measures, evaluates and ends; pure arithmetic on steps."""

from __future__ import annotations

from dataclasses import dataclass

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """The steps of a trial."""

    warmup_steps: int
    num_steps: int
    global_batch_size: int
    evaluates: bool
    evaluate_every_samples: int | None  # None: only after the last step
    # Steps after which the work of a step repeats. Measured steps are whole cycles,
    # rounded up, since the mean of a part of one would be biased; 1 in trials that
    # evaluate, which measure until they end.
    cycle: int = 1

    @classmethod
    def of(cls, trial: Trial) -> TrainingPlan:
        """Return the plan of a trial."""
        measurement, evaluates = trial.measurement, trial.saves_checkpoints
        if evaluates and measurement.max_samples is None:
            raise SpecError(
                f"max_samples is missing: a {trial.kind} trial needs the training "
                "samples after which it gives up. Set it under 'measure' or 'job'.",
                code="no_end",
            )

        return cls(
            warmup_steps=min(measurement.warmup_steps, trial.max_steps),
            num_steps=trial.max_steps,
            global_batch_size=trial.global_batch_size,
            evaluates=evaluates,
            evaluate_every_samples=measurement.evaluate_every_samples,
            cycle=1 if evaluates else trial.cycle,
        )

    def is_evaluated_after(self, step: int) -> bool:
        """Tell whether an evaluation is due once this many steps are done.

        It is after the step in which another ``evaluate_every_samples`` were completed,
        and after the last one.

        >>> plan = TrainingPlan(warmup_steps=0, num_steps=10, global_batch_size=40,
        ...                     evaluates=True, evaluate_every_samples=100)
        >>> [step for step in range(1, 11) if plan.is_evaluated_after(step)]
        [3, 5, 8, 10]
        """
        if not self.evaluates or step == 0:
            return False
        return step == self.num_steps or self._num_due(step) > self._num_due(step - 1)

    def boundary_after(self, step: int) -> int:
        """Return the next step count at which warm-up or training ends or evaluates."""
        stop = self.stop_after(step)
        return min(self.warmup_steps, stop) if step < self.warmup_steps else stop

    def stop_after(self, step: int) -> int:
        """Return the next step count at which training ends or evaluates."""
        if not self.evaluates or self.evaluate_every_samples is None:
            return self.num_steps
        samples = (self._num_due(step) + 1) * self.evaluate_every_samples
        return min(self.num_steps, -(-samples // self.global_batch_size))

    def series_after(self, step: int, num_steps: int) -> int:
        """Return the length of the next series of steps: about so many, at least 1.

        It ends at the next boundary or before, and where steps are measured, with a
        whole cycle.

        >>> plan = TrainingPlan(warmup_steps=5, num_steps=17, global_batch_size=40,
        ...                     evaluates=False, evaluate_every_samples=None, cycle=4)
        >>> plan.series_after(0, 3), plan.series_after(5, 1), plan.series_after(9, 7)
        (3, 4, 4)
        """
        end = step + max(1, num_steps)
        if step >= self.warmup_steps:
            begun = (step - self.warmup_steps) // self.cycle
            num_cycles = max(begun + 1, (end - self.warmup_steps) // self.cycle)
            end = self.warmup_steps + num_cycles * self.cycle
        return min(self.boundary_after(step), end) - step

    def _num_due(self, step: int) -> int:
        if self.evaluate_every_samples is None:
            return 0
        return step * self.global_batch_size // self.evaluate_every_samples
