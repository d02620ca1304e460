"""What a count tells of itself: whether it counts optimiser steps or something else."""

from itertools import pairwise

from scalelab.errors import SpecError
from scalelab.experiment.program import (
    SAMPLES_IN_EPOCH,
    SAMPLES_OF_EPOCH,
)
from scalelab.experiment.trial import Trial
from scalelab.reading.logs.lines import SAMPLES, STEP, Count, Report

# So many counts in a row show how they rise.
_ENOUGH = 4


class CountWitness:
    """Refuses counts that contradict the batch arithmetic or the size of the data.

    It ``holds_samples`` where the program counts samples beside steps, and both agree.
    """

    def __init__(self, trial: Trial, samples_per_epoch: int | None = None) -> None:
        self._trial = trial
        self._per_epoch = samples_per_epoch
        self._samples: tuple[int, int] | None = None
        self._counts: list[int] = []
        self.holds_samples = False

    def take(self, report: Report, step: int) -> None:
        """Take in the report of a further step."""
        if report.samples is not None:
            before, self._samples = self._samples, (step, report.samples)
            if before is not None:
                _check_samples(
                    self._trial, step - before[0], report.samples - before[1]
                )
                self.holds_samples = True
        count = report.count or Count(name=STEP, value=step)
        if self.holds_samples or len(self._counts) == _ENOUGH:
            return
        self._counts.append(count.value)
        if len(self._counts) == _ENOUGH:
            self._check_count(count)

    def _check_count(self, count: Count) -> None:
        if count.name in (SAMPLES, SAMPLES_OF_EPOCH):
            return
        rises = {after - before for before, after in pairwise(self._counts)}
        trial, local = self._trial, self._trial.local_batch_size
        is_data = count.total is not None and count.total == self._per_epoch
        if is_data and local > 1 and not any(rise % local for rise in rises):
            why = f"counts up to {count.total:,}, which is job.samples_per_epoch"
            raise SpecError(_samples_taken(count, why))
        passes = trial.gradient_accumulation_steps
        batches = {
            "local_batch_size": local,
            "local_batch_size x gradient_accumulation_steps": local * passes,
            "local_batch_size x data_parallel_size": local * trial.data_parallel_size,
            "global_batch_size": trial.global_batch_size,
        }
        for name, batch in batches.items():
            # Samples are whole batches.
            if batch > 1 and rises == {batch} and not self._counts[0] % local:
                why = f"rises by {batch:,} from line to line, which is {name}"
                beside = (
                    f" If it does not, let the program report at another interval than "
                    f"{batch:,}, or samples beside it."
                )
                raise SpecError(_samples_taken(count, why) + beside)


def _samples_taken(count: Count, why: str) -> str:
    right = SAMPLES if count.total is None else SAMPLES_OF_EPOCH
    length = "" if count.total is None else f", and {SAMPLES_IN_EPOCH} for what follows"
    return (
        f"{count.name} {why}: it counts samples, and steps would seem that much faster "
        f"than they are. Under metrics write {right} in place of {count.name}{length}."
    )


def _check_samples(trial: Trial, num_steps: int, samples: int) -> None:
    accumulation = trial.gradient_accumulation_steps
    expected = num_steps * trial.global_batch_size
    if samples == expected:
        return
    raise SpecError(
        f"the command reported {samples:,} samples in {num_steps:,} steps; "
        f"{num_steps:,} x global_batch_size={trial.global_batch_size:,} "
        f"(local_batch_size={trial.local_batch_size} x data_parallel_size="
        f"{trial.data_parallel_size} x gradient_accumulation_steps={accumulation}) is "
        f"{expected:,}. Likely it counts the samples of one rank, not of all "
        f"{trial.data_parallel_size}, or its steps ignore gradient accumulation "
        f"({accumulation} forward passes make one step). The last batch of an epoch "
        "must be full, too (drop_last=True)."
    )
