"""Sources of trials as other distributions would bring them."""

from pathlib import Path

from distributions import install

MODULE = '''
from scalelab.kinds.sources import Source
from scalelab.plan.expand import expand
from scalelab.plan.planned import PlannedTrials
from scalelab.plan.source import Decision, TrialSource


class Impatient(PlannedTrials):
    """Ends trials of one batch size half way."""

    wants_progress = True

    def __init__(self, experiment, site, *, batch, fails=False):
        super().__init__(experiment, site)
        self._batch, self._fails = batch, fails

    def tell_progress(self, trial, step, metrics):
        if self._fails and "val_acc" in metrics:
            raise KeyError("val_acc")
        is_meant = trial.global_batch_size == self._batch
        if is_meant and metrics.get("val_acc", 0.0) >= 0.3:
            return Decision.END
        return Decision.KEEP


class Doubling(TrialSource):
    """Proposes trials on twice the devices as long as they are faster."""

    def __init__(self, experiment, site):
        by_size = {trial.world_size: trial for trial in expand(experiment, site)}
        self._left = [by_size[size] for size in sorted(by_size)]
        self._waits = False
        self._best = 0.0

    def ask(self):
        if self._waits or not self._left:
            return None
        self._waits = True
        return self._left.pop(0)

    def tell(self, observation):
        self._waits = False
        throughput = observation["throughput_samples_per_s"] or 0.0
        if throughput < 1.1 * self._best:
            self._left = []
        self._best = throughput


IMPATIENT = Source(name="impatient", factory="toy_source_rows:Impatient")
DOUBLING = Source(name="doubling", factory="toy_source_rows:Doubling")
'''


def write_distribution(directory: Path) -> Path:
    """Lay out an installed distribution that adds both sources; return its folder."""
    module = "toy_source_rows"
    install(
        directory,
        "toy_source",
        "scalelab.sources",
        code=MODULE,
        impatient=f"{module}:IMPATIENT",
        doubling=f"{module}:DOUBLING",
    )
    return directory
