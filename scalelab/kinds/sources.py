"""Trial sources: what decides which trials a sweep runs (key ``source``)."""

from dataclasses import dataclass

from scalelab.kinds.registry import Registry


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A source of trials, which proposes the trials of a sweep.

    Parameters
    ----------
    name
        Value of the key ``source``.
    factory
        Path, ``module:attribute``, of what is called with the experiment, the site and
        the parameters given under ``source``; it returns a
        ``scalelab.plan.source.TrialSource``.
    tunes
        It searches the values under ``tune``: the keys of a search are its parameters,
        and stand in the experiment, see ``scalelab.experiment.tuning.TuneKeys``.
    """

    name: str
    factory: str
    tunes: bool = False


PLANNED = Source(name="planned", factory="scalelab.plan.planned:PlannedTrials")
OPTUNA = Source(
    name="optuna", factory="scalelab.search.tuned_trials:TunedTrials", tunes=True
)

SOURCES = Registry("scalelab.sources", Source, key="source", built_in=(PLANNED, OPTUNA))
