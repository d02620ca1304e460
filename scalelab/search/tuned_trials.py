"""The trial source of a search: Optuna chooses the values under ``tune``.

It stands on Optuna's ask and tell. What a trial is given is frozen into it here, by the
driver; its ranks never talk to the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.experiment.rates import RateSetting
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.experiment.tuning import RATE
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome
from scalelab.plan.expand import plan
from scalelab.plan.source import Decision, Observation, TrialSource
from scalelab.records.ledger import final_metrics
from scalelab.records.streams import Streams
from scalelab.search.result import results_of, settings_of
from scalelab.site.profile import Site

if TYPE_CHECKING:
    from optuna.study import Study

    from scalelab.search.journal import Ending, Evaluations, KeptStudy, Settings

# Trials at once where a site sets no limit on its nodes.
_AT_ONCE = 4
_INFEASIBLE = {
    Outcome.OUT_OF_MEMORY: "memory of a device",
    Outcome.HOST_OUT_OF_MEMORY: "memory of a host",
    Outcome.TARGET_NOT_REACHED: "target or finite loss",
}


class TunedTrials(TrialSource):
    """Proposes trials whose settings Optuna chooses, and ends those without prospects.

    As many are proposed at once as the site's devices hold. Settings that are proposed
    a second time do not run again: the first trial stands for them. A trial of one
    objective that evaluations report is pruned where its last value is worse than the
    median of the others at the same step.
    """

    def __init__(self, experiment: Experiment, site: Site) -> None:
        self._experiment = experiment
        target = experiment.job.target if experiment.job else None
        self.objectives = experiment.objectives(target)
        # A trial that stops at its target shows how long that takes, and nothing else.
        stops = all(objective.is_time for objective in self.objectives)
        (base,) = plan(experiment, site).trials
        kept_target = target if stops else None
        measurement = replace(base.measurement, target=kept_target)
        self._base = replace(base, measurement=measurement)
        self.wants_progress = len(self.objectives) == 1 and not stops
        devices = site.in_group(base.node_group).num_devices
        at_once = devices // base.world_size if devices else _AT_ONCE
        self._at_once = max(1, at_once)
        self._directory: Path | None = None
        self._study: KeptStudy | None = None
        self._rows: dict[str, Observation] = {}
        self._proposed: set[str] = set()

    def begin(self, directory: Path) -> None:
        """Keep the study in the run's directory from now on."""
        self._directory = directory

    def ask(self) -> Trial | None:
        """Return the next trial, or None when nothing can be proposed now."""
        if not self.remaining:
            return None
        study = self._opened()
        for settings in study.begun():  # by an earlier driver
            if trial := self._proposal(settings):
                return trial

        # Where there are as many settings as trials, each is run, in order.
        is_listed = self._experiment.num_combinations == self.total
        while self._may_begin():
            settings = study.begin(self._untried() if is_listed else None)
            if trial := self._proposal(settings):
                return trial
            # These have run, or run now; what is left of few settings is taken in turn.
            is_listed = True
            self._stand_in(settings)

        return None

    def tell(self, observation: Observation) -> None:
        """Learn how a trial ended; one that no search proposed is none of its own."""
        settings = self._settings(observation)
        if settings is None:
            return
        self._refuse_unknown(observation)
        trial_id = observation["trial_id"]
        self._rows[trial_id] = observation
        self._proposed.discard(trial_id)
        if self._study is not None:
            self._study.end(trial_id, self._ending(observation, settings))

    def tell_progress(
        self, trial: Trial, step: int, metrics: Mapping[str, float]
    ) -> Decision:
        """End a trial whose evaluations are worse than the median of the others."""
        value = metrics.get(self.objectives[0].metric)
        if value is None or not self.wants_progress:
            return Decision.KEEP
        is_hopeless = self._opened().report(trial.trial_id, step, value)
        return Decision.END if is_hopeless else Decision.KEEP

    @property
    def total(self) -> int:
        """Trials of the search."""
        return self._experiment.num_trials

    @property
    def remaining(self) -> int:
        """Trials that have not ended."""
        return max(0, self.total - len(self._rows))

    def describe(self) -> Iterator[str]:
        """Yield what is chosen, from what, by what, and how many trials at once."""
        sampler = self._experiment.sampler or "tpe"
        goal = " and ".join(map(str, self.objectives))
        at_once = counted(self._at_once, "trial")
        yield (
            f"Optuna ({sampler}) chooses the settings of {counted(self.total, 'trial')}"
            f", up to {at_once} at once, for {goal}:"
        )
        for name, values in self._experiment.tune.items():
            yield f"  {name}: {values}"

    def study(self, directory: Path) -> Study:
        """Return the study of a run, made anew in memory from what its trials left."""
        return self._kept(None, directory).study

    def _opened(self) -> KeptStudy:
        if self._study is None:
            self._study = self._kept(self._directory, self._directory)
        return self._study

    def _kept(self, writes_to: Path | None, reads: Path | None) -> KeptStudy:
        from scalelab.search.journal import KeptStudy

        return KeptStudy.open(
            writes_to,
            self._experiment,
            self.objectives,
            self._identify,
            {
                trial_id: self._ending(row, self._settings(row) or {})
                for trial_id, row in self._rows.items()
            },
            lambda: self._evaluations(reads),
            seed=self._base.seed,
        )

    def _may_begin(self) -> bool:
        num_running = len(self._proposed)
        is_left = len(self._rows) + num_running < self.total
        return is_left and num_running < self._at_once

    def _untried(self) -> Settings | None:
        """Return the first settings that no trial has; None: there is no end of them.

        Some are left, since there are no more trials than settings.
        """
        tune = self._experiment.tune
        if self._experiment.num_combinations is None:
            return None
        combinations = product(*(values.listed() for values in tune.values()))
        every = (dict(zip(tune, values, strict=True)) for values in combinations)
        taken = self._rows.keys() | self._proposed
        return next(
            candidate for candidate in every if self._identify(candidate) not in taken
        )

    def _proposal(self, settings: Settings) -> Trial | None:
        trial = self._trial(settings)
        if trial.trial_id in self._rows or trial.trial_id in self._proposed:
            return None
        self._proposed.add(trial.trial_id)
        return trial

    def _stand_in(self, settings: Settings) -> None:
        """Let the trial that has run with these settings stand for a second one."""
        trial_id = self._identify(settings)
        if row := self._rows.get(trial_id):
            self._opened().end(trial_id, self._ending(row, settings))

    def _trial(self, settings: Settings) -> Trial:
        options = {name: value for name, value in settings.items() if name != RATE}
        rate = self._base.learning_rate
        if RATE in settings:
            plain = RateSetting.plain(float(settings[RATE]))
            rate = plain.at(self._base.global_batch_size, None)
        return replace(
            self._base, learning_rate=rate, options={**self._base.options, **options}
        )

    def _identify(self, settings: Settings) -> str:
        return self._trial(settings).trial_id

    def _settings(self, row: Observation) -> Settings | None:
        settings = settings_of(row, self._experiment.tune)
        if settings is None or self._identify(settings) != row["trial_id"]:
            return None
        return settings

    def _ending(self, row: Observation, settings: Settings) -> Ending:
        from optuna.trial import TrialState

        from scalelab.search.journal import Ending

        outcome, state = Outcome(row["outcome"]), TrialState.FAIL

        values = results_of(row, self.objectives)
        if values is not None:
            state = TrialState.COMPLETE
        elif row.get("diverged") or outcome in (Outcome.PRUNED, *_INFEASIBLE):
            state = TrialState.PRUNED

        return Ending(
            settings=settings,
            state=state,
            values=values,
            infeasible=_INFEASIBLE.get(outcome, ""),
        )

    def _evaluations(self, directory: Path | None) -> Evaluations:
        """Return what trials have reported of the one objective, by trial and step."""
        metric, found = self.objectives[0].metric, dict[str, dict[int, float]]()
        if directory is None or not self.wants_progress or not self._rows:
            return found

        streams = Streams(directory).all(skips_unreadable=True)
        if metric in streams.columns:
            reported = streams.dropna(subset=[metric, "step"])
            rows = zip(
                reported["trial_id"], reported["step"], reported[metric], strict=True
            )
            for trial_id, step, value in rows:
                found.setdefault(str(trial_id), {})[int(step)] = float(value)

        return found

    def _refuse_unknown(self, row: Observation) -> None:
        metrics = final_metrics(row)
        wanted = [
            objective.metric for objective in self.objectives if not objective.is_time
        ]

        missing = [name for name in wanted if name not in metrics]
        if row["outcome"] == Outcome.COMPLETED and metrics and missing:
            raise SpecError(
                f"objective={missing[0]} is no metric that trials report: "
                f"{', '.join(sorted(metrics))}. Name one of these; what has ended is "
                "recorded and does not run again."
            )
