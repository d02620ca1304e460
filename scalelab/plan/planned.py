"""The built-in trial source: all trials of an experiment, in a fixed order."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.experiment.batch_sizes import BatchRequest
from scalelab.experiment.sections import AutoBatch
from scalelab.experiment.trial import Trial
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import paragraph
from scalelab.inputs.numerals import counted
from scalelab.plan.auto_batch import LargestFit
from scalelab.plan.configurations import Configuration, batch_at, fewest_devices
from scalelab.plan.expand import Plan, largest_tried_batch, plan, throughput_trial
from scalelab.plan.setups import Setup, group_allocations, setups
from scalelab.plan.source import Observation, TrialSource

if TYPE_CHECKING:
    from scalelab.experiment.spec import Experiment
    from scalelab.site.profile import Site

_FITS = {"completed", "pruned"}
_DOES_NOT_FIT = {"out_of_memory", "host_out_of_memory"}


class PlannedTrials(TrialSource):
    """Proposes every trial that the lists of an experiment combine to.

    ``local_batch_size: auto`` is resolved first, by throughput trials on one device, or
    on the fewest that the strategy can use, for each combination of node group,
    precision, parallelism and options. They are ordinary trials: what they measure
    stays in the run, and what the plan contains is not run again. A canary is proposed
    once as many trials of the plan have ended as it is due after.
    """

    def __init__(self, experiment: Experiment, site: Site) -> None:
        self._experiment = experiment
        self._site = site
        self._proposed: dict[str, Trial] = {}
        self._told: dict[str, Observation] = {}
        self._probed_on: dict[Setup, Allocation] = {}
        # Batch arithmetic that cannot work is refused before anything runs.
        self._plan = plan(experiment, site)
        self._searches = self._begin_searches()
        self._waiting: deque[Trial] = deque()
        self._canaries: deque[tuple[int, Trial]] = deque()
        self._paced_by: set[str] = set()
        self._num_finished = 0
        if not self._plan.assumes_local_batch:
            self._line_up()

    def ask(self) -> Trial | None:
        """Return the next trial, or None when nothing can be proposed now."""
        self._advance_searches()
        if self._plan.assumes_local_batch:
            return self._ask_searches()
        while (trial := self._next()) is not None:
            if self._is_new(trial):
                return self._propose(trial)
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
        return len({trial.trial_id for trial in self._plan.trials} | self._probes())

    @property
    def remaining(self) -> int | None:
        """Trials not told of yet; None: not known yet."""
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

    def _begin_searches(self) -> dict[Setup, LargestFit]:
        auto = self._experiment.local_batch_size
        if not isinstance(auto, AutoBatch):
            return {}
        at_most = largest_tried_batch(self._experiment, self._site)
        where = group_allocations(self._experiment, self._site).of_group
        for setup in setups(self._experiment, self._site):
            with suppress(SpecError):  # the plan leaves it out, and says why
                places = where[setup.node_group]
                self._probed_on[setup] = fewest_devices(setup, places, at_most)
        return {
            setup: LargestFit(at_most=at_most, granularity=auto.multiple_of)
            for setup in self._probed_on
        }

    def _advance_searches(self) -> None:
        """Tell each search known outcomes; expand the plan once all are resolved."""
        if not self._plan.assumes_local_batch:
            return
        for setup, search in self._searches.items():
            while (size := search.ask()) is not None:
                outcome = self._outcome(self._probe(setup, size))
                if outcome not in _FITS | _DOES_NOT_FIT:
                    break
                search.tell(size, fits=outcome in _FITS)
        is_over = all(search.ask() is None for search in self._searches.values())
        if is_over and self.local_batch_sizes:
            self._plan = plan(self._experiment, self._site, self.local_batch_sizes)
            self._line_up()

    def _ask_searches(self) -> Trial | None:
        probes = [
            self._probe(setup, size)
            for setup, search in self._searches.items()
            if (size := search.ask()) is not None
        ]
        for probe in probes:
            if self._is_new(probe):
                return self._propose(probe)
        if all(trial_id in self._told for trial_id in self._proposed):
            raise self._unresolved(probes)
        return None

    def _unresolved(self, probes: list[Trial]) -> SpecError:
        if not probes:
            return SpecError(
                "local_batch_size=auto cannot be resolved: not even local_batch_size=1 "
                "fits into the memory of a device. Use a smaller model or a larger "
                "device."
            )
        probe, row = probes[0], self._told[probes[0].trial_id]
        return paragraph(
            f"local_batch_size=auto cannot be resolved: trial {probe.trial_id}, with "
            f"local_batch_size={probe.local_batch_size} on "
            f"{counted(probe.world_size, 'device')}, ended as "
            f"{row['outcome']}: {row.get('reason') or 'no reason was recorded.'} Make "
            "it run (its log is in the run's directory), limit the search with "
            "local_batch_size: {at_most: N}, or give local_batch_size a number."
        )

    def _probe(self, setup: Setup, size: int) -> Trial:
        place = self._probed_on[setup]
        batch = batch_at(BatchRequest(local_batch_size=size), setup, place)
        configuration = Configuration(setup, place, batch)
        return throughput_trial(self._experiment, configuration)

    def _line_up(self) -> None:
        for trial in self._plan.trials:
            if (moment := trial.canary_after) is not None:
                self._canaries.append((moment, trial))
            else:
                self._waiting.append(trial)
        if self._canaries:
            self._paced_by = {trial.trial_id for trial in self._waiting}
            self._num_finished = len(self._paced_by & self._told.keys())

    def _next(self) -> Trial | None:
        """Return the canary that is due, else the next trial of the plan."""
        if self._canaries and self._canaries[0][0] <= self._num_finished:
            return self._canaries.popleft()[1]
        return self._waiting.popleft() if self._waiting else None

    def _is_new(self, trial: Trial) -> bool:
        return trial.trial_id not in self._told and trial.trial_id not in self._proposed

    def _propose(self, trial: Trial) -> Trial:
        self._proposed[trial.trial_id] = trial
        return trial

    def _outcome(self, trial: Trial) -> str | None:
        row = self._told.get(trial.trial_id)
        return None if row is None else str(row["outcome"])

    def _probes(self) -> set[str]:
        return set(self._proposed) if self._searches else set()
