"""Checks of an experiment against its workload, its launchers and its strategies."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalelab.errors import SpecError
from scalelab.experiment.command_values import check_commands, naming, values_received
from scalelab.experiment.fingerprint import ACCEPT
from scalelab.experiment.keys import ExperimentKeys
from scalelab.experiment.rates import LearningRateRule as Rule
from scalelab.experiment.sections import AutoBatch, WorkloadChoice
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.experiment.tuning import RATE
from scalelab.inputs.document import Scalar
from scalelab.inputs.placeholders import TRIAL_PLACEHOLDERS
from scalelab.kinds.sources import SOURCES
from scalelab.kinds.strategies import STRATEGIES
from scalelab.kinds.strategy import Strategy
from scalelab.kinds.trainers import DataDemand, facts_of, find_trainer, trainer_of
from scalelab.site.profile import Site


def check_search(experiment: ExperimentKeys) -> None:
    """Refuse a search that cannot tell what its settings change, or what is best."""
    rates, name = experiment.learning_rate, experiment.source.name
    asked = {"tune": "settings"} if experiment.tune else {}
    if rates and Rule.TUNED in rates.rule:
        asked["rule: tuned"] = "rates"

    chooses = SOURCES[name].chooses if name in SOURCES.names else ""
    if chooses and not asked:
        raise SpecError(
            f"source={name} searches, and nothing says what. Add, for example, tune: "
            "{weight_decay: {log: [1.0e-5, 0.1]}}, or learning_rate: {base: 0.1, "
            "at_batch: 32, rule: tuned}.",
            code="search_without_space",
        )

    if asked and [*asked.values()] != [chooses]:
        first, other, *_ = [*asked, f"source: {name}"]
        raise SpecError(
            f"{first} and {other} both propose trials, each its own. "
            f"{_two_runs(experiment, other)}",
            code="two_searches",
        )

    if experiment.tune:
        _check_names(experiment)
        _check_place(experiment)
    elif asked:
        _check_rates(experiment)


def _two_runs(experiment: ExperimentKeys, other: str) -> str:
    key = "tune" if experiment.tune else "rule: tuned"
    names = " and ".join(experiment.tune) or "rate of each batch"
    return (
        f"Make two runs: one with {key} and without {other}; then one under another "
        f"name, with {other} and the {names} that was found, and without {key}."
    )


def _check_rates(experiment: ExperimentKeys) -> None:
    asked = {*experiment.measure.kind}
    is_auto = isinstance(experiment.local_batch_size, AutoBatch)
    if is_auto or TrialKind.CONVERGENCE not in asked or TrialKind.END_TO_END in asked:
        kinds = f"measure.kind: {_listed(experiment.measure.kind)}"
        other = "local_batch_size: auto" if is_auto else kinds
        raise SpecError(
            "rule: tuned searches by convergence trials of known batches, beside "
            "throughput trials at most, so it needs measure.kind: [throughput, "
            f"convergence]. {_two_runs(experiment, other)}",
            code="tuned_rate_kinds",
        )


def _check_names(experiment: ExperimentKeys) -> None:
    for name in experiment.tune:
        if name in experiment.options:
            raise SpecError(
                f"{name} stands under tune and under options. Keep it under tune to "
                "have it chosen, or under options to try each value.",
                code="tuned_and_listed",
            )
        if name != RATE and name in TRIAL_PLACEHOLDERS:
            raise SpecError(
                f"tune.{name} cannot be chosen: it says where or how a trial runs, and "
                "a search compares trials of one such value. List it under its own key "
                "in a run without tune.",
                code="not_tunable",
            )

    for name in (RATE, "optimizer"):
        if name in experiment.tune and getattr(experiment, name) is not None:
            raise SpecError(
                f"{name} stands under tune and beside it. Keep it under tune to have "
                "it chosen; remove the other.",
                code="tuned_and_set",
            )


def _check_place(experiment: ExperimentKeys) -> None:
    kinds = [kind.value for kind in experiment.measure.kind]
    if kinds != [TrialKind.CONVERGENCE]:
        other = f"measure.kind: {_listed(kinds)}"
        raise SpecError(
            "tune compares what training comes to, so it needs measure: {kind: "
            f"convergence}} and nothing else. {_two_runs(experiment, other)}",
            code="search_measures_steps",
        )

    if isinstance(experiment.local_batch_size, AutoBatch):
        raise SpecError(
            "local_batch_size=auto is looked for by throughput trials, which tune has "
            "none of. Make two runs: one without tune, under another name, which finds "
            "the largest; then this one with that number.",
            code="search_with_auto_batch",
        )

    for name, values in _axes(experiment).items():
        if len(values) > 1:
            other = f"{name}: {_listed(values)}"
            raise SpecError(
                f"{other} and tune cannot go together: a search compares trials of one "
                "allocation, one batch and one value of every other axis. "
                f"{_two_runs(experiment, other)}",
                code="search_with_axis",
            )

    target = experiment.job.target if experiment.job else None
    if not experiment.objectives(target):
        raise SpecError(
            "tune does not say what is best. Add objective: val_acc, or another metric "
            "that trials report, or job.target.",
            code="no_objective",
        )


def _axes(experiment: ExperimentKeys) -> Mapping[str, Sequence[Any]]:
    names = (
        *("gpus", "nodes", "gpus_per_node", "node_group", "global_batch_size"),
        *("local_batch_size", "precision", "parallelism", "seed", "optimizer"),
    )
    layout, rates = experiment.layout, experiment.learning_rate
    degrees = layout.axes() if layout else {}
    of_rates = ("base", "rule", "warmup") if rates else ()

    return {
        **{name: getattr(experiment, name) or () for name in names},
        "program": [program.name for program in experiment.program or ()],
        **{f"options.{name}": values for name, values in experiment.options.items()},
        **{f"layout.{name}": values for name, values in degrees.items()},
        **{f"learning_rate.{name}": getattr(rates, name) for name in of_rates},
    }


def _listed(values: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, values))}]"


def check_program(experiment: ExperimentKeys) -> None:
    """Refuse what a workload has no use for, or what a command cannot use."""
    check_search(experiment)
    if experiment.optimizer and not experiment.workload:
        raise SpecError(
            "optimizer belongs to a workload. For a command write options: "
            "{optimizer: [...]}, and {optimizer} where its command line names it.",
            code="optimizer_of_command",
        )

    check_commands(experiment)
    workload = experiment.workload
    if workload is None:
        return

    name = workload.name
    for key in ("env", "env_from", "stop", "uses", "metrics", "layout"):
        if getattr(experiment, key):
            raise SpecError(
                f"{key} belongs to a command, not to a workload. Remove it.",
                code="key_of_command",
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
            "metric. Remove everything but throughput from measure.kind.",
            code="no_held_out_data",
        )

    needed = facts.convergence_needs
    if needed and needed not in workload.parameters:
        raise SpecError(
            f"workload={name} reaches no metric unless it has {needed}. Add it to the "
            "workload, or remove everything but throughput from measure.kind.",
            code="parameter_missing",
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
                    "ask its framework for its rank.",
                    code="rank_before_start",
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
                f"{metric} (?P<{metric}>\\S+).",
                code="no_group_of_metric",
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
                f"{strategy.name} has no {what}. Leave it out.",
                code="option_of_model",
            )

    if strategy.splits_model and isinstance(experiment.local_batch_size, AutoBatch):
        raise SpecError(
            f"local_batch_size=auto does not go with parallelism={strategy.name}, "
            "which splits each local batch into equal micro-batches. List local "
            "batches.",
            code="auto_batch_with_stages",
        )
