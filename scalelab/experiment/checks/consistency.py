"""Checks of keys of an experiment that depend on each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set

from scalelab.errors import SpecError
from scalelab.experiment.batch_sizes import ScalingMode
from scalelab.experiment.command_values import (
    known_placeholders,
    readable_variables,
    values_told,
    variable_of,
)
from scalelab.experiment.keys import ExperimentKeys, commands_of, naming
from scalelab.experiment.measure import Metrics
from scalelab.experiment.program import (
    BATCH_OF_EPOCH,
    SAMPLES_OF_EPOCH,
    STEP_OF_EPOCH,
)
from scalelab.experiment.sections import AutoBatch, LayoutAxes, WorkloadChoice
from scalelab.experiment.trial import PROGRAM, TrialKind
from scalelab.inputs.layout import MicroBatches
from scalelab.inputs.placeholders import (
    LAYOUT_PLACEHOLDERS,
    TRIAL_PLACEHOLDERS,
    placeholders_in,
)
from scalelab.inputs.problems import one_of, shown
from scalelab.kinds.trainers import (
    DEFAULT_TRAINER,
    TRAINERS,
    facts_of,
    find_trainer,
)

_OF_RATE = {"learning_rate", "base_learning_rate", "warmup_samples"}
"""Placeholders that have a value only where the experiment has a learning rate."""


def check_experiment(experiment: ExperimentKeys) -> None:
    """Refuse keys that contradict each other."""
    _check_program(experiment)
    if experiment.workload:
        _check_workload(experiment, experiment.workload)
    for name, alone in commands_of(experiment):
        with naming(name):
            _check_command(alone)
    _check_flops(experiment)
    _check_devices(experiment)
    _check_batches(experiment)
    experiment.measure.check(experiment.job)
    _check_warmup(experiment)
    if experiment.accept and {*experiment.measure.kind} == {TrialKind.THROUGHPUT}:
        raise SpecError(
            f"accept: {experiment.accept[0]} judges trained models, and throughput "
            "trials evaluate none. Add end_to_end to measure.kind, or remove accept."
        )


def _check_program(experiment: ExperimentKeys) -> None:
    kinds = ("workload", "command", "program")
    given = [name for name in kinds if getattr(experiment, name) is not None]
    if len(given) != 1:
        problem = "both given" if given else "both missing"
        is_installed = DEFAULT_TRAINER in TRAINERS
        names = TRAINERS[DEFAULT_TRAINER].workloads if is_installed else ()
        raise SpecError(
            f"{' and '.join(given or kinds[:2])} are {problem}. An experiment runs "
            f"exactly one: a workload ({', '.join((*names, 'module:Class'))}), "
            "a command, or several programs."
        )
    if experiment.program is not None:
        _check_programs(experiment, [each.name for each in experiment.program])


def _check_programs(experiment: ExperimentKeys, names: Sequence[str]) -> None:
    if not names:
        raise SpecError(
            "program is empty. List programs, such as program: [{name: torch, command: "
            "...}, {name: jax, command: ...}], or write one command."
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SpecError(
            f"program: the name {twice[0]} stands there twice, but curves are told "
            "apart by it. Rename one."
        )
    if PROGRAM in experiment.options:
        raise SpecError(
            f"options.{PROGRAM} has the name of the axis of programs. Rename the "
            "option."
        )


def _check_workload(experiment: ExperimentKeys, workload: WorkloadChoice) -> None:
    name = workload.name
    for key in ("env", "env_from", "stop", "uses", "metrics", "layout"):
        if getattr(experiment, key):
            raise SpecError(
                f"{key} belongs to a command, not to a workload. Remove it."
            )
    if found := find_trainer(name):
        trainer, own_name = found
        trainer.check_name(own_name)
        trainer.check_keys(own_name, workload.parameters, experiment.options)
    facts = facts_of(name)
    if facts is None or set(experiment.measure.kind) == {TrialKind.THROUGHPUT}:
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


def _check_flops(experiment: ExperimentKeys) -> None:
    """Refuse a peak where nothing tells the operations to hold against it."""
    job, workload = experiment.job, experiment.workload
    if not (job and job.device_peak_flops) or job.flops_per_sample:
        return
    facts = facts_of(workload.name) if workload else None
    if workload is None or (facts and not facts.counts_flops):
        raise SpecError(
            "job.flops_per_sample and job.device_peak_flops together say how much of a "
            f"device is used, and {workload.name if workload else 'a command'} does "
            "not tell its operations. Give both, or neither."
        )


def _check_command(experiment: ExperimentKeys) -> None:
    if experiment.metrics:
        _check_metrics(experiment.metrics)
    valid = known_placeholders(experiment)
    for field, template in _templates(experiment):
        for placeholder in placeholders_in(template):
            if placeholder not in valid:
                raise SpecError(
                    f"{field} holds {{{placeholder}}}, which "
                    f"{_why_unknown(placeholder, valid)}"
                )
    _check_inherited(experiment)
    variables = readable_variables(experiment)
    for variable in experiment.uses:
        if variable not in variables:
            raise SpecError(
                f"uses: {shown(variable)} is no variable that a command finds. "
                f"{one_of(variables, variable)}"
            )
    used = values_told(experiment)
    if experiment.layout:
        _check_layout(experiment, experiment.layout, used)
    for axis in experiment.options:
        if axis in TRIAL_PLACEHOLDERS or (
            experiment.layout and axis in LAYOUT_PLACEHOLDERS
        ):
            raise SpecError(
                f"options.{axis} is a placeholder of its own. Rename the axis, or use "
                "the experiment's own key."
            )
        if axis not in used:
            raise SpecError(
                f"options.{axis} would change nothing: the command does not use "
                f"{{{axis}}}. Write {{{axis}}} where the value belongs; if the program "
                f"reads {variable_of(axis)} by itself, add it to uses."
            )
    if experiment.learning_rate is None and (rates := sorted(used & _OF_RATE)):
        raise SpecError(
            f"learning_rate is missing, but the command uses {{{rates[0]}}}. Add, for "
            "example, learning_rate: 0.1."
        )


def _why_unknown(placeholder: str, valid: Sequence[str]) -> str:
    if placeholder in LAYOUT_PLACEHOLDERS:
        return (
            "has a value only where the experiment has a layout. Add, for example, "
            "layout: {tensor: [1, 2], pipeline: 2}."
        )
    return f"is no placeholder. {one_of(valid, placeholder)}"


_TOLD_BY = {
    "tensor": ("tensor_parallel_size",),
    "pipeline": ("pipeline_parallel_size",),
    "context": ("context_parallel_size",),
    "expert": ("expert_parallel_size",),
    "replicate": ("data_replicate_size", "data_shard_size"),
    "shard": ("data_shard_size", "data_replicate_size"),
}
"""The placeholders of which one tells a command the value of an axis of its layout."""


def _check_layout(
    experiment: ExperimentKeys, layout: LayoutAxes, used: Set[str]
) -> None:
    """Refuse what has no meaning with a layout, and axes that change nothing."""
    if "batch_size_per_node" in used:
        raise SpecError(
            "the command uses {batch_size_per_node}, but with a layout the ranks of a "
            "node may see the same samples. Use {local_batch_size}, the samples per "
            "replica, or {global_batch_size}."
        )
    is_split = layout.micro_batches is MicroBatches.SPLIT
    if is_split and isinstance(experiment.local_batch_size, AutoBatch):
        raise SpecError(
            "local_batch_size=auto does not go with layout.micro_batches=split, where "
            "each stage of the pipeline needs a sample of it. List local batches."
        )
    for axis, values in layout.axes().items():
        tellers = _TOLD_BY[axis]
        if len(values) > 1 and not used & {*tellers}:
            raise SpecError(
                f"layout: {axis}={list(values)} would change nothing: the command does "
                f"not use {{{tellers[0]}}}. Write {{{tellers[0]}}} where the value "
                f"belongs; if the program reads {variable_of(tellers[0])} by itself, "
                "add it to uses."
            )


def _templates(experiment: ExperimentKeys) -> Iterator[tuple[str, str]]:
    yield "command", experiment.command or ""
    for name, value in experiment.env.items():
        _check_variable("env", name)
        yield f"env.{name}", value


def _check_inherited(experiment: ExperimentKeys) -> None:
    for name in experiment.env_from:
        _check_variable("env_from", name)
        if name in experiment.env:
            raise SpecError(
                f"{name} is under env and under env_from. Keep it in env_from to take "
                "the value from the driver's environment, or in env to write it here."
            )


def _check_variable(key: str, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        raise SpecError(
            f"{key}: {shown(name)} is no name of an environment variable. Use "
            "letters, digits and '_', not starting with a digit."
        )


def _check_metrics(metrics: Metrics) -> None:
    places = (metrics.jsonl, metrics.regex, metrics.csv, metrics.tensorboard)
    if sum(each is not None for each in places) != 1:
        raise SpecError(
            "metrics must have exactly one of jsonl, regex, csv and tensorboard."
        )
    if metrics.jsonl is not None and metrics.jsonl.endswith(".csv"):
        raise SpecError(
            f"metrics.jsonl={shown(metrics.jsonl)} names a CSV file. Write csv in "
            "place of jsonl."
        )
    if metrics.columns and metrics.csv is None:
        raise SpecError("metrics.columns names columns of metrics.csv. Add that file.")
    names = groups_of("regex", metrics.regex or ())
    groups_of("evaluation", metrics.evaluation or ())
    counts = {"step", "samples", BATCH_OF_EPOCH, STEP_OF_EPOCH, SAMPLES_OF_EPOCH}
    if metrics.regex and not names & counts:
        raise SpecError(
            f"metrics.regex={shown(metrics.regex)} has no group named step. Add one, "
            r"such as step (?P<step>\d+): intervals are measured between steps. Where "
            f"batches are counted in each epoch anew, name it {BATCH_OF_EPOCH}, where "
            f"optimiser steps are, {STEP_OF_EPOCH}, where samples are, "
            f"{SAMPLES_OF_EPOCH}."
        )


def groups_of(key: str, patterns: Sequence[str]) -> set[str]:
    """Return the names of the groups of the regular expressions of a metrics key."""
    names: set[str] = set()
    for pattern in patterns:
        try:
            names |= re.compile(pattern).groupindex.keys()
        except (re.error, OverflowError, RecursionError) as error:
            raise SpecError(
                f"metrics.{key}={shown(pattern)} is no regular expression: {error}."
            ) from error
    return names


def _check_devices(experiment: ExperimentKeys) -> None:
    gpus, nodes, per_node = experiment.gpus, experiment.nodes, experiment.gpus_per_node
    if gpus and (nodes or per_node):
        raise SpecError(
            "gpus and nodes x gpus_per_node both say which devices a trial gets. Keep "
            "gpus (packed on nodes), or nodes with gpus_per_node."
        )
    if bool(nodes) != bool(per_node):
        given, missing = (
            ("nodes", "gpus_per_node") if nodes else ("gpus_per_node", "nodes")
        )
        raise SpecError(f"{given} needs {missing}. Add it, or write gpus instead.")
    if not gpus and not nodes:
        raise SpecError(
            "gpus is missing. Add the devices per trial, such as gpus: [1, 2, 4]."
        )


def _check_batches(experiment: ExperimentKeys) -> None:
    total, local = experiment.global_batch_size, experiment.local_batch_size
    if total is None and local is None:
        raise SpecError(
            "local_batch_size and global_batch_size are both missing. Add at least "
            "one, such as local_batch_size: [32, 64]."
        )
    if experiment.gradient_accumulation_steps and total and local:
        raise SpecError(
            "gradient_accumulation_steps follows from global_batch_size and "
            "local_batch_size. Remove one of the three."
        )
    if experiment.scaling is ScalingMode.STRONG and total is None:
        raise SpecError(
            "scaling=strong holds global_batch_size fixed, but there is none. Add it, "
            "or write scaling: weak."
        )
    if experiment.scaling is ScalingMode.WEAK and total is not None:
        raise SpecError(
            "scaling=weak holds local_batch_size fixed, so global_batch_size follows "
            "from the number of devices. Remove global_batch_size."
        )


def _check_warmup(experiment: ExperimentKeys) -> None:
    warmup = experiment.learning_rate and experiment.learning_rate.warmup
    if warmup and warmup.epochs:
        if not (experiment.job and experiment.job.samples_per_epoch):
            raise SpecError(
                "learning_rate.warmup.epochs needs job.samples_per_epoch. Add it, or "
                "give the warm-up in samples."
            )
