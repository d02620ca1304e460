"""The built-in trial source: all trials of an experiment, in a fixed order."""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from scalelab.errors import SpecError
from scalelab.experiment.sections import AutoBatch
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import PROGRAM, Trial, long_trials
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import paragraph
from scalelab.inputs.numerals import counted
from scalelab.plan.configurations import BatchRequest, Setup
from scalelab.plan.expand import Plan, plan, trial_of
from scalelab.plan.source import Observation, TrialSource
from scalelab.site.profile import Site

_FITS = {"completed", "pruned"}
_DOES_NOT_FIT = {"out_of_memory", "host_out_of_memory"}


class PlannedTrials(TrialSource):
    """Proposes every trial that the lists of an experiment combine to.

    ``local_batch_size: auto`` is resolved first, by throughput trials on one device, or
    on the fewest that the strategy can use, for each combination of node group,
    precision, parallelism and options. They are ordinary trials: what they measure
    stays in the run, and what the plan contains is not run again. A canary is proposed
    once as many trials of the plan have ended as it is due after, and the long trial of
    a program once its other trials have ended.
    """

    def __init__(self, experiment: Experiment, site: Site) -> None:
        self._experiment = experiment
        self._site = site
        self._proposed: set[str] = set()
        self._told: dict[str, Observation] = {}
        self._waiting: deque[Trial] = deque()
        self._canaries: deque[tuple[int, Trial]] = deque()
        self._long: dict[str | None, Trial] = {}
        self._paced_by: dict[str, str | None] = {}  # the program of each
        self._num_finished = 0
        self._searches: dict[Setup, LargestFit] = {}
        # Batch arithmetic that cannot work is refused before anything runs.
        self._expand()

        auto, search = experiment.local_batch_size, self._plan.search
        if search is not None and isinstance(auto, AutoBatch):
            self._searched_on: Mapping[Setup, Allocation] = search.allocations
            self._searches = {
                setup: LargestFit(at_most=search.at_most, granularity=auto.multiple_of)
                for setup in search.allocations
            }

    def ask(self) -> Trial | None:
        """Return the next trial, or None when nothing can be proposed now."""
        self._advance_searches()
        is_searching = self._plan.assumes_local_batch
        for trial in self._probes() if is_searching else iter(self._next, None):
            trial_id = trial.trial_id
            if trial_id not in self._told and trial_id not in self._proposed:
                self._proposed.add(trial_id)
                return trial

        if is_searching and self._proposed <= self._told.keys():
            raise self._unresolved()

        return None

    def tell(self, observation: Observation) -> None:
        """Learn the outcome of a trial, proposed here or by an earlier driver."""
        self._told[observation["trial_id"]] = observation
        self._num_finished += observation["trial_id"] in self._paced_by

    @property
    def plan(self) -> Plan:
        """The trials, an ``auto`` batch resolved if what is known suffices."""
        with suppress(SpecError):  # what cannot be resolved is said when asked
            self._advance_searches()
        return self._plan

    @property
    def total(self) -> int | None:
        """Trials in all, those that look for ``auto`` included; None: not known yet."""
        if self.plan.assumes_local_batch:
            return None
        probes = self._proposed if self._searches else set()
        return len({trial.trial_id for trial in self._plan.trials} | probes)

    @property
    def remaining(self) -> int | None:
        """Trials that have not ended; None: not known yet."""
        if self.plan.assumes_local_batch:
            return None
        return sum(trial.trial_id not in self._told for trial in self._plan.trials)

    @property
    def local_batch_sizes(self) -> dict[Setup, int]:
        """The local batch sizes that ``auto`` has found so far, by setup."""
        return {
            setup: search.largest
            for setup, search in self._searches.items()
            if search.ask() is None and search.largest
        }

    def _expand(self, local_batch_sizes: Mapping[Setup, int] | None = None) -> None:
        found = plan(self._experiment, self._site, local_batch_sizes)
        measure = self._experiment.measure
        if measure.long_trial:
            least_s = measure.long_trial_s(measured_s=0.0, job_s=math.inf)
            self._long = long_trials(found.trials, least_s)
        self._plan = replace(found, trials=(*found.trials, *self._long.values()))
        if found.assumes_local_batch:
            return

        for trial in found.trials:
            if (moment := trial.canary_after) is not None:
                self._canaries.append((moment, trial))
            else:
                self._waiting.append(trial)

        self._paced_by = {trial.trial_id: trial.program for trial in self._waiting}
        self._num_finished = len(self._paced_by.keys() & self._told.keys())

    def _next(self) -> Trial | None:
        if self._canaries and self._canaries[0][0] <= self._num_finished:
            return self._canaries.popleft()[1]
        if self._waiting:
            return self._waiting.popleft()

        for program in self._long:
            of_program = (
                trial_id
                for trial_id, other in reversed(self._paced_by.items())
                if other == program
            )
            if all(trial_id in self._told for trial_id in of_program):
                return self._lengthened(self._long.pop(program))
        return None

    def _lengthened(self, trial: Trial) -> Trial:
        """Return a long trial with the seconds that its steps take, see ``Measure``."""
        measure, job = self._experiment.measure, self._experiment.job
        job = job and job.with_epoch_of(self._told.values())
        timed = [row for row in self._told.values() if row.get("step_time_s")]
        rates = [
            row["throughput_samples_per_s"]
            for row in timed
            if row.get(f"options.{PROGRAM}") == trial.program
        ]
        samples = job.num_samples(trial.global_batch_size) if job else None
        least_s = measure.long_trial_s(
            measured_s=sum(
                row["step_time_s"] * (row["num_steps"] or 0) for row in timed
            ),
            job_s=samples / max(rates) if samples and rates else math.inf,
        )
        epoch = job.samples_per_epoch if job else None
        measurement = replace(
            trial.measurement, least_s=least_s, samples_per_epoch=epoch
        )
        return replace(trial, measurement=measurement)

    def _advance_searches(self) -> None:
        if not self._plan.assumes_local_batch:
            return
        for setup, search in self._searches.items():
            while (size := search.ask()) is not None:
                row = self._told.get(self._probe(setup, size).trial_id, {})
                outcome = row.get("outcome")
                if outcome not in _FITS | _DOES_NOT_FIT:
                    break
                search.tell(size, fits=outcome in _FITS)

        if not any(self._probes()) and (sizes := self.local_batch_sizes):
            self._expand(sizes)

    def _probes(self) -> Iterator[Trial]:
        for setup, search in self._searches.items():
            if (size := search.ask()) is not None:
                yield self._probe(setup, size)

    def _probe(self, setup: Setup, size: int) -> Trial:
        request = BatchRequest(local_batch_size=size)
        found = setup.on(self._searched_on[setup], request)
        return trial_of(self._experiment, found)

    def _unresolved(self) -> SpecError:
        probe = next(self._probes(), None)
        if probe is None:
            return SpecError(
                "local_batch_size=auto cannot be resolved: not even local_batch_size=1 "
                "fits into the memory of a device. Use a smaller model or a larger "
                "device.",
                code="auto_batch_too_large",
            )

        row = self._told[probe.trial_id]
        return paragraph(
            f"local_batch_size=auto cannot be resolved: trial {probe.trial_id}, with "
            f"local_batch_size={probe.local_batch_size} on "
            f"{counted(probe.world_size, 'device')}, ended as "
            f"{row['outcome']}: {row.get('reason') or 'no reason was recorded.'} Make "
            "it run (its log is in the run's directory), limit the search with "
            "local_batch_size: {at_most: N}, or give local_batch_size a number.",
            code="auto_batch_failed",
        )


@dataclass(kw_only=True, slots=True)
class LargestFit:
    """Search for the largest size that fits, by ask and tell.

    Sizes double from ``granularity`` until one does not fit or the limit is reached,
    then the gap is halved down to ``granularity``; below it, down to 1. What fits is
    taken to be monotone: where answers contradict, the smallest failure counts.

    >>> search = LargestFit(at_most=4096, granularity=8)
    >>> while (size := search.ask()) is not None:
    ...     search.tell(size, fits=size <= 100)
    >>> search.largest
    96
    """

    at_most: int
    granularity: int = 8
    _fitting: set[int] = field(default_factory=set)
    _failing: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.granularity = min(self.granularity, self.at_most)
        self.at_most = self.at_most // self.granularity * self.granularity

    def ask(self) -> int | None:
        """Return the next size to try, or None when the answer is known."""
        low, high = self.largest or 0, min(self._failing, default=None)
        if high is None:
            size = min(max(2 * low, self.granularity), self.at_most)
            return size if size > low else None
        step = self.granularity if low >= self.granularity else 1
        if high - low <= step:
            return None
        return low + (high - low) // (2 * step) * step if low else max(1, high // 2)

    def tell(self, size: int, *, fits: bool) -> None:
        """Record whether a size fits."""
        (self._fitting if fits else self._failing).add(size)

    @property
    def largest(self) -> int | None:
        """Largest size known to fit; None: none so far."""
        failing = min(self._failing, default=self.at_most + 1)
        return max((size for size in self._fitting if size < failing), default=None)
