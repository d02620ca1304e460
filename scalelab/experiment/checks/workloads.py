"""Checks of a workload that its trainer is asked for, before nodes start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from scalelab.experiment.fingerprint import ACCEPT
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.document import Scalar
from scalelab.kinds.strategies import STRATEGIES
from scalelab.kinds.trainers import DataDemand, trainer_of

if TYPE_CHECKING:
    from scalelab.experiment.spec import Experiment
    from scalelab.site.profile import Site


def check_workload(asked: Experiment, site: Site) -> None:
    """Refuse a parameter or a target that the workload does not know."""
    if asked.workload is None:
        return
    trainer, own_name = trainer_of(asked.workload.name)
    is_run_by_this = not any(
        group.python or group.prologue for group in site.groups.values()
    )
    names = trainer.names(own_name, asked.code_root if is_run_by_this else None)
    if names is None:
        return
    axes = {axis: values[0] for axis, values in asked.options.items()}
    for strategy in asked.parallelism:
        for axis in STRATEGIES[strategy].options:
            axes.pop(axis, None)
    name = asked.workload.name
    given = {**asked.workload.parameters, **axes}
    names.check_parameters(name, given, trainer.process_parameters)
    evaluates = set(asked.measure.kind) != {TrialKind.THROUGHPUT}
    if evaluates and asked.job and asked.job.target:
        names.check_metric(name, asked.job.target.metric)
    for condition in asked.accept:
        names.check_metric(name, condition.metric, ACCEPT)


def check_trials(asked: Experiment, site: Site, trials: Iterable[Trial]) -> None:
    """Refuse values of parameters that no trial of a workload can run with."""
    if asked.workload is None:
        return
    trainer, own_name = trainer_of(asked.workload.name)
    sizes: dict[tuple[tuple[str, Scalar], ...], tuple[int, int]] = {}
    for trial in trials:
        axes = tuple(sorted(trial.options.items()))
        is_epochal = trial.kind is not TrialKind.THROUGHPUT
        batch, ranks = sizes.get(axes, (1, 1))
        sizes[axes] = (
            max(batch, trial.global_batch_size if is_epochal else 1),
            max(ranks, trial.data_parallel_size),
        )
    for axes, (batch, ranks) in sizes.items():
        demand = DataDemand(
            global_batch_size=batch,
            data_parallel_size=ranks,
            has_files=site.is_this_machine,
        )
        parameters = {**asked.workload.parameters, **dict(axes)}
        trainer.check_trials(own_name, parameters, demand)
