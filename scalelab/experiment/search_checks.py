"""Checks of a search: one place for its trials, settings to choose, and an aim."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.errors import SpecError
from scalelab.experiment.keys import ExperimentKeys
from scalelab.experiment.rates import LearningRateRule as Rule
from scalelab.experiment.sections import AutoBatch
from scalelab.experiment.trial import TrialKind
from scalelab.experiment.tuning import RATE
from scalelab.inputs.placeholders import TRIAL_PLACEHOLDERS
from scalelab.kinds.sources import SOURCES


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
            "at_batch: 32, rule: tuned}."
        )

    if asked and [*asked.values()] != [chooses]:
        first, other, *_ = [*asked, f"source: {name}"]
        raise SpecError(
            f"{first} and {other} both propose trials, each its own. "
            f"{_two_runs(experiment, other)}"
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
            f"convergence]. {_two_runs(experiment, other)}"
        )


def _check_names(experiment: ExperimentKeys) -> None:
    for name in experiment.tune:
        if name in experiment.options:
            raise SpecError(
                f"{name} stands under tune and under options. Keep it under tune to "
                "have it chosen, or under options to try each value."
            )
        if name != RATE and name in TRIAL_PLACEHOLDERS:
            raise SpecError(
                f"tune.{name} cannot be chosen: it says where or how a trial runs, and "
                "a search compares trials of one such value. List it under its own key "
                "in a run without tune."
            )

    for name in (RATE, "optimizer"):
        if name in experiment.tune and getattr(experiment, name) is not None:
            raise SpecError(
                f"{name} stands under tune and beside it. Keep it under tune to have "
                "it chosen; remove the other."
            )


def _check_place(experiment: ExperimentKeys) -> None:
    kinds = [kind.value for kind in experiment.measure.kind]
    if kinds != [TrialKind.CONVERGENCE]:
        other = f"measure.kind: {_listed(kinds)}"
        raise SpecError(
            "tune compares what training comes to, so it needs measure: {kind: "
            f"convergence}} and nothing else. {_two_runs(experiment, other)}"
        )

    if isinstance(experiment.local_batch_size, AutoBatch):
        raise SpecError(
            "local_batch_size=auto is looked for by throughput trials, which tune has "
            "none of. Make two runs: one without tune, under another name, which finds "
            "the largest; then this one with that number."
        )

    for name, values in _axes(experiment).items():
        if len(values) > 1:
            other = f"{name}: {_listed(values)}"
            raise SpecError(
                f"{other} and tune cannot go together: a search compares trials of one "
                "allocation, one batch and one value of every other axis. "
                f"{_two_runs(experiment, other)}"
            )

    target = experiment.job.target if experiment.job else None
    if not experiment.objectives(target):
        raise SpecError(
            "tune does not say what is best. Add objective: val_acc, or another metric "
            "that trials report, or job.target."
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
