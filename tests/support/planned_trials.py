"""The trials that an experiment asks for."""

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.plan.expand import plan
from scalelab.site.profile import Site


def planned_trials(experiment: Experiment, site: Site | None = None) -> list[Trial]:
    """Return them in the order to propose them."""
    return list(plan(experiment, site or experiment.resolve_site()).trials)
