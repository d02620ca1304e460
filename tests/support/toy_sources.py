"""Sources of trials as other distributions would bring them."""

from pathlib import Path

from distributions import install

MODULE = '''
from dataclasses import replace

from scalelab.kinds.sources import Source
from scalelab.plan.expand import plan
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
        by_size = {trial.world_size: trial for trial in plan(experiment, site).trials}
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


class OneByOne(TrialSource):
    """Proposes the next trial when one has ended, as if it were of another program."""

    def __init__(self, experiment, site, *, program=None):
        self._left = [*plan(experiment, site).trials]
        self._program, self._has_ended, self._waits = program, False, False

    def ask(self):
        if self._waits or not self._left:
            return None
        self._waits = True
        trial = self._left.pop(0)
        if self._program is None or not self._has_ended:
            return trial
        return replace(trial, program=self._program)

    def tell(self, observation):
        self._waits, self._has_ended = False, True
        told = observation["trial_id"]
        self._left = [trial for trial in self._left if trial.trial_id != told]


IMPATIENT = Source(name="impatient", factory="toy_source_rows:Impatient")
DOUBLING = Source(name="doubling", factory="toy_source_rows:Doubling")
ONE_BY_ONE = Source(name="one_by_one", factory="toy_source_rows:OneByOne")
'''


def write_distribution(directory: Path) -> Path:
    """Lay out an installed distribution that adds the sources; return its folder."""
    module = "toy_source_rows"
    install(
        directory,
        "toy_source",
        "scalelab.sources",
        code=MODULE,
        impatient=f"{module}:IMPATIENT",
        doubling=f"{module}:DOUBLING",
        one_by_one=f"{module}:ONE_BY_ONE",
    )
    return directory
