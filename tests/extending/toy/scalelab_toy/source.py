from collections.abc import Mapping

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.kinds.sources import Source
from scalelab.plan.expand import plan
from scalelab.plan.source import Decision, Observation, TrialSource
from scalelab.site.profile import Site


class Cutoff(TrialSource):
    wants_progress = True  # only then is it asked about trials that run

    def __init__(
        self,
        experiment: Experiment,
        site: Site,
        *,
        metric: str,
        floor: float,
        step: int,
    ) -> None:  # source: {name: cutoff, metric: val_acc, floor: 0.5, step: 20}
        self._waiting = list(plan(experiment, site).trials)
        self._metric, self._floor, self._step = metric, floor, step

    def ask(self) -> Trial | None:  # the next trial; None: nothing now
        return self._waiting.pop() if self._waiting else None

    def tell(self, observation: Observation) -> None:
        # Once per ended trial; those of earlier sweeps come first.
        ended = observation["trial_id"]
        self._waiting = [each for each in self._waiting if each.trial_id != ended]

    def tell_progress(
        self, trial: Trial, step: int, metrics: Mapping[str, float]
    ) -> Decision:
        value = metrics.get(self._metric, self._floor)  # also loss, samples, ...
        is_late = step >= self._step and value < self._floor
        return Decision.END if is_late else Decision.KEEP


CUTOFF = Source(name="cutoff", factory="scalelab_toy.source:Cutoff")
