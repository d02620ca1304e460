"""What every source of trials promises."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.kinds.sources import Source
from scalelab.plan.source import Decision
from scalelab.plan.tracked import TrackedSource, source_of
from scalelab.site.profile import LocalSite
from scalelab.testing.installed import RowContract

_EXPERIMENT = """\
name: contract
workload: {name: emulated, sample_time_s: 2.0e-3, fixed_time_s: 10.0e-3}
measure: {warmup_steps: 1, steps: 5, repeats: 2}
gpus: [1, 2]
local_batch_size: [4, 8]
"""
_SITE = LocalSite(device_type="cpu", gpus_per_node=2)


class SourceContract(RowContract):
    """What every source of trials promises.

    ``experiment`` is the text of an experiment without its source, ``parameters`` what
    stands under ``source`` beside the name.
    """

    registry_path = "scalelab.kinds.sources:SOURCES"
    experiment: ClassVar[str] = _EXPERIMENT
    parameters: ClassVar[Mapping[str, Any]] = {}
    most_trials: ClassVar[int] = 1000

    def observation(self, trial: Trial) -> Mapping[str, Any]:
        """Return what is told of a trial that has ended; more devices are faster."""
        samples_per_s = 100.0 * trial.data_parallel_size
        return {
            "trial_id": trial.trial_id,
            "outcome": "completed",
            "kind": trial.kind.value,
            "world_size": trial.world_size,
            "num_nodes": trial.allocation.num_nodes,
            "local_batch_size": trial.local_batch_size,
            "global_batch_size": trial.global_batch_size,
            "gradient_accumulation_steps": trial.gradient_accumulation_steps,
            "precision": trial.precision,
            "parallelism": trial.parallelism,
            "throughput_samples_per_s": samples_per_s,
            "step_time_s": trial.global_batch_size / samples_per_s,
            "allocated_gpu_s": 4.0 * trial.world_size,
        }

    @pytest.fixture
    def asked(self, row: Source) -> Experiment:
        """Return the experiment with the source."""
        source = {"name": row.name, **self.parameters}
        return Experiment.from_text(f"{self.experiment}source: {source}\n")

    def swept(self, source: TrackedSource) -> dict[str, Trial]:
        """Run all that a source proposes, one trial at a time; return it by its id."""
        ended: dict[str, Trial] = {}
        while (trial := source.ask()) is not None:
            ended[trial.trial_id] = trial
            source.tell(self.observation(trial))
            assert len(ended) <= self.most_trials
        return ended

    def test_a_sweep_of_it_runs_trials_and_ends(self, asked: Experiment) -> None:
        """It proposes nothing for ever: the driver asks until it returns None."""
        source = source_of(asked, _SITE)
        assert self.swept(source)
        assert source.ask() is None

    def test_it_waits_for_trials_that_run(self, asked: Experiment) -> None:
        """Asked with nothing told, it proposes some trials and then None."""
        source = source_of(asked, _SITE)
        proposed = [source.ask() for _ in range(self.most_trials)]
        assert isinstance(proposed[0], Trial)
        assert proposed[-1] is None

    def test_a_resumed_sweep_runs_the_same_trials(self, asked: Experiment) -> None:
        """What has ended is told before anything is asked, and does not run again."""
        every = self.swept(source_of(asked, _SITE))
        before = [*every.values()][: len(every) // 2]
        rows = [self.observation(trial) for trial in before]
        again = self.swept(source_of(asked, _SITE, rows))
        assert {trial.trial_id for trial in before} | again.keys() == every.keys()

    def test_what_it_knows_of_its_length_is_true(self, asked: Experiment) -> None:
        """``total`` and ``remaining`` are counts, or None: not known."""
        source = source_of(asked, _SITE)
        every = self.swept(source)
        assert source.total in (None, len(every))
        assert source.remaining in (None, 0)

    def test_it_decides_about_trials_that_run(self, asked: Experiment) -> None:
        """Whatever metrics they have reported so far."""
        source = source_of(asked, _SITE)
        trial = source.ask()
        assert trial is not None
        for metrics in ({}, {"samples": 8.0, "loss": 2.3}):
            assert source.tell_progress(trial, 1, metrics) in Decision
