"""Refuse an experiment whose command is not told what its trials vary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.experiment.command_values import (
    Untold,
    placeholder_values,
    values_told,
    variable_of,
)
from scalelab.experiment.keys import commands_of, naming
from scalelab.experiment.sections import AutoBatch
from scalelab.experiment.trial import Trial, TrialKind

if TYPE_CHECKING:
    from scalelab.experiment.keys import ExperimentKeys
    from scalelab.experiment.spec import Experiment

_LOCAL_BATCH = ("local_batch_size", "batch_size_per_node", "global_batch_size")
_LOCAL_BATCH_OF_LAYOUT = ("local_batch_size", "micro_batch_size", "global_batch_size")
_ACCUMULATION = (
    "gradient_accumulation_steps",
    "accumulation_steps_of_all_ranks",
    "global_batch_size",
)


def untold_batches(experiment: Experiment) -> Mapping[str | None, Set[Untold]]:
    """Return what the command of each program is not told of, by the program's name.

    The only command has the name None. What ScaleLab trains itself is told everything.
    """
    found: dict[str | None, Set[Untold]] = {}
    for name, alone in commands_of(experiment):
        told = values_told(alone)
        tellers = {
            Untold.LOCAL_BATCH: _local_batch_tellers(alone),
            Untold.ACCUMULATION: _ACCUMULATION,
        }
        found[name] = {each for each, names in tellers.items() if not told & {*names}}
    return found


def check_told(experiment: Experiment, trials: Sequence[Trial]) -> None:
    """Refuse trials that differ in a value of which the command is not told.

    They would run alike, and what one of them measures would be recorded for another.
    """
    for name, alone in commands_of(experiment):
        with naming(name):
            _check_told(alone, [trial for trial in trials if trial.program == name])


def _check_told(experiment: ExperimentKeys, trials: Sequence[Trial]) -> None:
    told = values_told(experiment)
    tellers = _local_batch_tellers(experiment)
    _check_accumulation(told, trials)
    if isinstance(experiment.local_batch_size, AutoBatch) and not told & {*tellers}:
        raise _untold("local_batch_size", ["auto"], tellers)
    if len({trial.global_batch_size for trial in trials}) > 1:
        # of one global batch, a program may take its ranks' shares by itself
        local = (trial.local_batch_size for trial in trials)
        _check_axis("local_batch_size", local, tellers, told)
    for axis, names in {
        "precision": ("precision",),
        "parallelism": ("parallelism",),
        "seed": ("seed",),
    }.items():
        _check_axis(axis, (getattr(trial, axis) for trial in trials), names, told)
    _check_rates(told, trials)
    _check_batches(told & {*tellers, *_ACCUMULATION}, trials)


def _local_batch_tellers(experiment: ExperimentKeys) -> Sequence[str]:
    return _LOCAL_BATCH_OF_LAYOUT if experiment.layout else _LOCAL_BATCH


def _check_accumulation(told: Set[str], trials: Sequence[Trial]) -> None:
    for trial in trials:
        if trial.gradient_accumulation_steps > 1 and not told & {*_ACCUMULATION}:
            raise SpecError(
                f"the trial on {trial.world_size} devices needs "
                f"gradient_accumulation_steps={trial.gradient_accumulation_steps}, but "
                f"the command uses none of {_listed(_ACCUMULATION)}. Add one, or "
                "change the batch sizes."
            )


def _check_rates(told: Set[str], trials: Sequence[Trial]) -> None:
    rates = [trial.learning_rate for trial in trials if trial.learning_rate]
    tellers = ["learning_rate"]
    if len({rate.rule for rate in rates}) == 1:
        tellers.append("base_learning_rate")  # the command may apply the one rule
        if all(trial.kind is TrialKind.THROUGHPUT for trial in trials):
            return  # no time depends on it
    _check_axis("learning_rate", (rate.value for rate in rates), tellers, told)


def _check_batches(told: Set[str], trials: Sequence[Trial]) -> None:
    """Refuse trials on the same devices whose batches the command cannot tell apart."""
    first: dict[object, Trial] = {}
    for trial in trials:
        on_node = max(trial.allocation.devices_per_node)
        values = placeholder_values(trial, devices_on_node=on_node, directory="")
        # A layout is known to the command, since its axes must be.
        key = (trial.allocation, trial.layout, *(values[name] for name in sorted(told)))
        other = first.setdefault(key, trial)
        for axis in ("local_batch_size", "gradient_accumulation_steps"):
            _check_axis(axis, (getattr(each, axis) for each in (other, trial)), [axis])


def _check_axis(
    axis: str,
    values: Iterable[object],
    tellers: Sequence[str],
    told: Set[str] = frozenset(),
) -> None:
    """Refuse an axis of several values of which none of its names tells the command."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) > 1 and not told & {*tellers}:
        raise _untold(axis, distinct, tellers)


def _untold(axis: str, values: Sequence[object], tellers: Sequence[str]) -> SpecError:
    listed = ", ".join(map(str, values[:4])) + (", ..." if len(values) > 4 else "")
    variable = variable_of(axis)
    return SpecError(
        f"{axis} varies between trials ({listed}), but the command is not told of it: "
        f"it would run alike for all of them. Write {_listed(tellers)} in the command "
        "or in env where the value belongs; if the program itself reads the variable "
        f"{variable}, add uses: [{variable}]."
    )


def _listed(names: Sequence[str]) -> str:
    return " or ".join(f"{{{name}}}" for name in names)
