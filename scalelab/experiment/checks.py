"""Checks of an experiment against its workload, its launchers and its strategies."""

from collections.abc import Iterable
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.experiment.command_values import check_commands, naming, values_received
from scalelab.experiment.fingerprint import ACCEPT
from scalelab.experiment.keys import ExperimentKeys
from scalelab.experiment.search_checks import check_search
from scalelab.experiment.sections import AutoBatch, WorkloadChoice
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.document import Scalar
from scalelab.kinds.strategies import STRATEGIES
from scalelab.kinds.strategy import Strategy
from scalelab.kinds.trainers import DataDemand, facts_of, find_trainer, trainer_of
from scalelab.site.profile import Site


def check_program(experiment: ExperimentKeys) -> None:
    """Refuse what a workload has no use for, or what a command cannot use."""
    check_search(experiment)
    if experiment.optimizer and not experiment.workload:
        raise SpecError(
            "optimizer belongs to a workload. For a command write options: "
            "{optimizer: [...]}, and {optimizer} where its command line names it."
        )

    check_commands(experiment)
    workload = experiment.workload
    if workload is None:
        return

    name = workload.name
    for key in ("env", "env_from", "stop", "uses", "metrics", "layout"):
        if getattr(experiment, key):
            raise SpecError(
                f"{key} belongs to a command, not to a workload. Remove it."
            )

    if found := find_trainer(name):
        trainer, own_name = found
        trainer.check_name(own_name)
        trainer.check_keys(own_name, workload.parameters, experiment.axes)

    facts = facts_of(name)
    if facts is None or not _evaluates(experiment):
        return

    if not facts.metrics:
        raise SpecError(
            f"workload={name} has no held-out data, so no trial of it reaches a "
            "metric. Remove everything but throughput from measure.kind."
        )

    needed = facts.convergence_needs
    if needed and needed not in workload.parameters:
        raise SpecError(
            f"workload={name} reaches no metric unless it has {needed}. Add it to the "
            "workload, or remove everything but throughput from measure.kind."
        )


def _evaluates(experiment: ExperimentKeys) -> bool:
    return {*experiment.measure.kind} != {TrialKind.THROUGHPUT}


def check_kinds(experiment: ExperimentKeys) -> None:
    """Refuse a launcher or a strategy that is not installed, or its wrong options.

    Only an experiment that is about to run is checked. A stored one can be read, and
    its measurements analysed, after the distribution of a launcher was uninstalled.
    """
    for program, alone in experiment.by_program().items():
        with naming(program):
            _check_reported(alone)
            launcher = alone.launcher.row()
            if used := values_received(alone) & {*launcher.unknown_placeholders}:
                raise SpecError(
                    f"launcher={launcher.name} starts and numbers the ranks by "
                    f"itself, so it cannot fill in {{{min(used)}}}. Let the program "
                    "ask its framework for its rank."
                )

    if experiment.workload:
        for strategy in experiment.parallelism:
            _check_strategy(STRATEGIES[strategy], experiment, experiment.workload)


def _check_reported(experiment: ExperimentKeys) -> None:
    metrics = experiment.metrics
    target = experiment.job.target if experiment.job else None
    if metrics is None or not metrics.groups or not _evaluates(experiment):
        return

    wanted = {}
    if target is not None:
        wanted[target.metric] = "the metric of job.target, so no trial would reach it"

    for objective in experiment.objective:
        if not objective.is_time:
            wanted[objective.metric] = "an objective, so no trial would be the best"

    for metric, why in wanted.items():
        if metric not in metrics.groups:
            raise SpecError(
                f"metrics.regex has no group named {metric}, {why}. It has: "
                f"{', '.join(sorted(metrics.groups))}. Add an expression such as "
                f"{metric} (?P<{metric}>\\S+)."
            )


def check_workload(asked: ExperimentKeys, site: Site, code_directory: Path) -> None:
    """Refuse a parameter or a target that the workload does not know."""
    if asked.workload is None:
        return
    trainer, own_name = trainer_of(asked.workload.name)
    is_run_by_other = any(
        settings.python or settings.prologue for settings in site.groups.values()
    )

    names = trainer.names(own_name, None if is_run_by_other else code_directory)
    if names is None:
        return

    of_strategies = {o for name in asked.parallelism for o in STRATEGIES[name].options}
    name, given = asked.workload.name, asked.workload.parameters
    axes = {axis: values[0] for axis, values in asked.axes.items()}
    given |= {axis: value for axis, value in axes.items() if axis not in of_strategies}
    names.check_parameters(name, given, trainer.process_parameters)

    if _evaluates(asked) and asked.job and asked.job.target:
        names.check_metric(name, asked.job.target.metric)

    wanted = [
        *(
            (objective.metric, "objective")
            for objective in asked.objective
            if not objective.is_time
        ),
        *((condition.metric, ACCEPT) for condition in asked.accept),
    ]
    for metric, key in wanted:
        names.check_metric(name, metric, key)


def check_trials(asked: ExperimentKeys, site: Site, trials: Iterable[Trial]) -> None:
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
        trainer.check_trials(own_name, asked.workload.parameters | dict(axes), demand)


def _check_strategy(
    strategy: Strategy, experiment: ExperimentKeys, workload: WorkloadChoice
) -> None:
    trainer_of(workload.name)[0].check_strategy(strategy.name)
    strategy.check_options(experiment.options)

    facts = facts_of(workload.name)
    if facts and not facts.trains_model:
        serves = strategy.num_servers(2, {}) > 0
        if serves or strategy.splits_model:
            what = "parameters to serve" if serves else "layers to divide"
            raise SpecError(
                f"workload={workload.name} trains no model, so parallelism="
                f"{strategy.name} has no {what}. Leave it out."
            )

    if strategy.splits_model and isinstance(experiment.local_batch_size, AutoBatch):
        raise SpecError(
            f"local_batch_size=auto does not go with parallelism={strategy.name}, "
            "which splits each local batch into equal micro-batches. List local "
            "batches."
        )
