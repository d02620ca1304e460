"""Checks of an experiment against its workload, its launchers and its strategies."""

from __future__ import annotations

import re

from scalelab.errors import SpecError
from scalelab.experiment.command_values import check_commands, naming, values_received
from scalelab.experiment.keys import ExperimentKeys
from scalelab.experiment.program import BUILT_IN_WORKLOADS
from scalelab.experiment.sections import AutoBatch, WorkloadChoice
from scalelab.experiment.trial import TrialKind
from scalelab.experiment.workload_names import COMPILE
from scalelab.inputs.problems import one_of, shown
from scalelab.kinds.strategies import STRATEGIES
from scalelab.kinds.strategy import Strategy


def check_program(experiment: ExperimentKeys) -> None:
    """Refuse what a workload has no use for, or what a command cannot use."""
    if experiment.workload:
        _check_workload(experiment, experiment.workload)
    check_commands(experiment)


def _check_workload(experiment: ExperimentKeys, workload: WorkloadChoice) -> None:
    name = workload.name
    for key in ("env", "env_from", "stop", "uses", "metrics", "layout"):
        if getattr(experiment, key):
            raise SpecError(
                f"{key} belongs to a command, not to a workload. Remove it."
            )
    built_in = BUILT_IN_WORKLOADS.get(name)
    if built_in is None:
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
            raise SpecError(
                f"workload={shown(name)} is neither built in nor module:Class. "
                f"{one_of(BUILT_IN_WORKLOADS, name)}"
            )
        return
    if not built_in.trains_model and COMPILE in {
        *workload.parameters,
        *experiment.options,
    }:
        raise SpecError(
            f"workload={name} has no model, so {COMPILE} has nothing to compile. "
            "Leave it out."
        )
    if not built_in.trains_model and "slow_rank_factor" in experiment.options:
        raise SpecError(
            f"workload={name} computes nothing, so options.slow_rank_factor makes no "
            "rank slow. Leave it out."
        )
    if set(experiment.measure.kind) == {TrialKind.THROUGHPUT}:
        return
    if not built_in.metrics:
        raise SpecError(
            f"workload={name} has no held-out data, so no trial of it reaches a "
            "metric. Remove everything but throughput from measure.kind."
        )
    needed = built_in.convergence_needs
    if needed and needed not in workload.parameters:
        raise SpecError(
            f"workload={name} reaches no metric unless it has {needed}. Add it to the "
            "workload, or remove everything but throughput from measure.kind."
        )


def check_kinds(experiment: ExperimentKeys) -> None:
    """Refuse a launcher or a strategy that is not installed, or its wrong options.

    Only an experiment that is about to run is checked. A stored one can be read, and
    its measurements analysed, after the distribution of a launcher was uninstalled.
    """
    for program, alone in experiment.by_program().items():
        with naming(program):
            _check_reported(alone)
            _check_launcher(alone)
    if experiment.workload:
        for strategy in experiment.parallelism:
            _check_strategy(STRATEGIES[strategy], experiment, experiment.workload)


def _check_reported(experiment: ExperimentKeys) -> None:
    """Refuse output in which no expression finds the metric that is to be reached."""
    metrics = experiment.metrics
    target = experiment.job.target if experiment.job else None
    is_asked = {*experiment.measure.kind} != {TrialKind.THROUGHPUT}
    if metrics is None or metrics.regex is None or target is None or not is_asked:
        return
    found = sorted(metrics.groups)
    if target.metric not in found:
        raise SpecError(
            f"metrics.regex has no group named {target.metric}, the metric of "
            f"job.target, so no trial would reach it. It has: {', '.join(found)}. Add "
            f"an expression such as {target.metric} (?P<{target.metric}>\\S+)."
        )


def _check_launcher(experiment: ExperimentKeys) -> None:
    """Refuse a launcher that is not there, and placeholders that it cannot fill in."""
    launcher = experiment.launcher.row()
    used = values_received(experiment) & {*launcher.unknown_placeholders}
    if used:
        raise SpecError(
            f"launcher={launcher.name} starts and numbers the ranks by itself, so it "
            f"cannot fill in {{{min(used)}}}. Let the program ask its framework for "
            "its rank."
        )


def _check_strategy(
    strategy: Strategy, experiment: ExperimentKeys, workload: WorkloadChoice
) -> None:
    strategy.check_options(experiment.options)
    built_in = BUILT_IN_WORKLOADS.get(workload.name)
    if built_in and not built_in.trains_model:
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
    if strategy.splits_model and isinstance(experiment.local_batch_size, AutoBatch):
        raise SpecError(
            f"local_batch_size=auto does not go with parallelism={strategy.name}, "
            "which splits each local batch into equal micro-batches. List local "
            "batches."
        )
