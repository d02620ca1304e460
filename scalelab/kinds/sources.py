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
    """

    name: str
    factory: str


PLANNED = Source(name="planned", factory="scalelab.plan.planned:PlannedTrials")

SOURCES = Registry("scalelab.sources", Source, key="source", built_in=(PLANNED,))
