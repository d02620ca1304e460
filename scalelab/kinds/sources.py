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
    chooses
        What of trials it chooses as they end: ``settings``, those under ``tune``, whose
        keys (``scalelab.experiment.tuning.TuneKeys``) are its parameters; ``rates``,
        for ``rule: tuned``; empty: nothing.
    is_adaptive
        It decides from what was measured which trial is worth what it costs, for the
        ``question`` among its parameters. A sweep of it needs ``--sweep-budget``, and
        may start from the rows of another run, ``--adapt``.
    """

    name: str
    factory: str
    chooses: str = ""
    is_adaptive: bool = False


PLANNED = Source(name="planned", factory="scalelab.plan.planned:PlannedTrials")
OPTUNA = Source(
    name="optuna",
    factory="scalelab.search.tuned_trials:TunedTrials",
    chooses="settings",
)

TUNED_RATES = Source(
    name="tuned_rates",
    factory="scalelab.search.tuned_rates:TunedRates",
    chooses="rates",
)

ADAPTIVE = Source(
    name="adaptive",
    factory="scalelab.search.adaptive:AdaptiveTrials",
    is_adaptive=True,
)

SOURCES = Registry(
    "scalelab.sources",
    Source,
    key="source",
    built_in=(PLANNED, OPTUNA, TUNED_RATES, ADAPTIVE),
)
