"""A source that ends trials which have not got far enough by a certain step."""

from collections.abc import Mapping

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.kinds.sources import Source
from scalelab.plan.expand import plan
from scalelab.plan.source import Decision, Observation, TrialSource
from scalelab.site.profile import Site


class Cutoff(TrialSource):
    """Proposes the trials of the plan, the last one first.

    Parameters
    ----------
    experiment, site
        What is asked, and where.
    metric, at_least, step
        A trial goes on while its metric is at least so much from this step on.
    """

    wants_progress = True

    def __init__(
        self,
        experiment: Experiment,
        site: Site,
        *,
        metric: str,
        at_least: float,
        step: int,
    ) -> None:
        self._waiting = list(plan(experiment, site).trials)
        self._metric, self._at_least, self._step = metric, at_least, step

    def ask(self) -> Trial | None:
        """Return the next trial."""
        return self._waiting.pop() if self._waiting else None

    def tell(self, observation: Observation) -> None:
        """Propose nothing that has ended."""
        ended = observation["trial_id"]
        self._waiting = [each for each in self._waiting if each.trial_id != ended]

    def tell_progress(
        self, trial: Trial, step: int, metrics: Mapping[str, float]
    ) -> Decision:
        """End a trial that has not got far enough."""
        value = metrics.get(self._metric, self._at_least)
        is_late = step >= self._step and value < self._at_least
        return Decision.END if is_late else Decision.KEEP


CUTOFF = Source(name="cutoff", factory="scalelab_toy.source:Cutoff")
