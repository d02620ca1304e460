"""Checks of an experiment that the rows of its launcher and strategies make."""

from __future__ import annotations

from scalelab.errors import SpecError
from scalelab.experiment.checks.consistency import groups_of
from scalelab.experiment.command_values import values_told
from scalelab.experiment.keys import ExperimentKeys, naming
from scalelab.experiment.program import BUILT_IN_WORKLOADS
from scalelab.experiment.sections import AutoBatch, WorkloadChoice
from scalelab.experiment.trial import TrialKind
from scalelab.kinds.strategies import STRATEGIES
from scalelab.kinds.strategy import Strategy


def check_kinds(experiment: ExperimentKeys) -> None:
    """Refuse a launcher or a strategy that is not installed, or its wrong options.

    Only an experiment that is about to run is checked. A stored one can be read, and
    its measurements analysed, after the distribution of a launcher was uninstalled.
    """
    for name, alone in experiment.by_program().items():
        with naming(name):
            _check_launcher(alone)
            _check_reported(alone)
    if experiment.workload:
        for name in experiment.parallelism:
            strategy = STRATEGIES[name]
            strategy.check_options(experiment.options)
            _check_model(strategy, experiment.workload)
            if strategy.splits_model:
                _check_split_batches(experiment, strategy)


def _check_model(strategy: Strategy, workload: WorkloadChoice) -> None:
    """Refuse a strategy that has nothing to work on where no model is trained."""
    built_in = BUILT_IN_WORKLOADS.get(workload.name)
    if built_in is None or built_in.trains_model:
        return
    lacks = {
        "parameters to serve": strategy.num_servers(2, {}) > 0,
        "layers to divide": strategy.splits_model,
    }
    for what, is_lacking in lacks.items():
        if is_lacking:
            raise SpecError(
                f"workload={workload.name} trains no model, so parallelism="
                f"{strategy.name} has no {what}. Leave it out."
            )


def _check_split_batches(experiment: ExperimentKeys, strategy: Strategy) -> None:
    if isinstance(experiment.local_batch_size, AutoBatch):
        raise SpecError(
            f"local_batch_size=auto does not go with parallelism={strategy.name}, "
            "which splits each local batch into equal micro-batches. List local "
            "batches."
        )


def _check_launcher(experiment: ExperimentKeys) -> None:
    """Refuse a launcher that is not there, and placeholders that it cannot fill in."""
    launcher = experiment.launcher.row()
    used = values_told(experiment) & {*launcher.unknown_placeholders}
    if used:
        raise SpecError(
            f"launcher={launcher.name} starts and numbers the ranks by itself, so it "
            f"cannot fill in {{{min(used)}}}. Let the program ask its framework for "
            "its rank."
        )


def _check_reported(experiment: ExperimentKeys) -> None:
    """Refuse output in which no expression finds the metric that is to be reached."""
    metrics = experiment.metrics
    target = experiment.job.target if experiment.job else None
    is_asked = {*experiment.measure.kind} != {TrialKind.THROUGHPUT}
    if metrics is None or metrics.regex is None or target is None or not is_asked:
        return
    found = sorted(groups_of("regex", metrics.regex))
    if target.metric not in found:
        raise SpecError(
            f"metrics.regex has no group named {target.metric}, the metric of "
            f"job.target, so no trial would reach it. It has: {', '.join(found)}. Add "
            f"an expression such as {target.metric} (?P<{target.metric}>\\S+)."
        )
