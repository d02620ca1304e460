"""The values that a command receives: in placeholders, or in environment variables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.experiment.keys import ExperimentKeys
from scalelab.experiment.sections import AutoBatch, LayoutAxes
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.experiment.tuning import RATE
from scalelab.inputs.layout import MicroBatches
from scalelab.inputs.placeholders import (
    LAYOUT_PLACEHOLDERS,
    PLACEHOLDERS,
    TRIAL_PLACEHOLDERS,
    Untold,
    placeholders_in,
)
from scalelab.inputs.problems import one_of, shown

# Placeholders that have a value only where the experiment has a learning rate.
_OF_RATE = {"learning_rate", "base_learning_rate", "warmup_samples"}
_LOCAL_BATCH = ("local_batch_size", "batch_size_per_node", "global_batch_size")
_LOCAL_BATCH_OF_LAYOUT = ("local_batch_size", "micro_batch_size", "global_batch_size")
_ACCUMULATION = (
    "gradient_accumulation_steps",
    "accumulation_steps_of_all_ranks",
    "global_batch_size",
)
# Placeholders of which any one passes an axis of the layout to the command.
_DEGREES = {
    "tensor": ("tensor_parallel_size",),
    "pipeline": ("pipeline_parallel_size",),
    "context": ("context_parallel_size",),
    "expert": ("expert_parallel_size",),
    "replicate": ("data_replicate_size", "data_shard_size"),
    "shard": ("data_shard_size", "data_replicate_size"),
}


def commands_of(
    experiment: ExperimentKeys,
) -> Iterator[tuple[str | None, ExperimentKeys]]:
    """Yield the experiment as it would be for each command alone, with its name."""
    if not experiment.workload:
        yield from experiment.by_program().items()


@contextmanager
def naming(program: str | None) -> Iterator[None]:
    """Begin a refusal with the name of the program that is wrong, if it has one."""
    try:
        yield
    except SpecError as error:
        if program is None:
            raise
        raise SpecError(f"program {program}: {error}", code=error.code) from error


def variable_of(placeholder: str) -> str:
    """Return the environment variable that holds the value of a placeholder."""
    return f"SCALELAB_{placeholder.upper()}"


def known_placeholders(experiment: ExperimentKeys) -> tuple[str, ...]:
    """Return the placeholders that the command of an experiment may use."""
    of_layout = LAYOUT_PLACEHOLDERS if experiment.layout else ()
    return tuple(dict.fromkeys((*PLACEHOLDERS, *of_layout, *experiment.axes)))


def readable_variables(experiment: ExperimentKeys) -> dict[str, str]:
    """Return the placeholder of every variable that a command finds, by its name."""
    return {variable_of(name): name for name in known_placeholders(experiment)}


def values_received(experiment: ExperimentKeys) -> Set[str]:
    """Return the placeholders whose values the command of an experiment receives.

    It does in its command line, in a variable under ``env``, or in a variable that
    ``uses`` declares as read by the program.
    """
    templates = (experiment.command or "", *experiment.env.values())
    known = readable_variables(experiment)
    return {
        *(name for template in templates for name in placeholders_in(template)),
        *(known[variable] for variable in experiment.uses if variable in known),
    }


def untold_batches(experiment: ExperimentKeys) -> Mapping[str | None, Set[Untold]]:
    """Return the batch values that the command of each program does not receive.

    The only command has the name None. A workload receives everything.
    """
    names = {
        Untold.LOCAL_BATCH: _local_batch(experiment),
        Untold.ACCUMULATION: _ACCUMULATION,
    }
    return {
        name: {
            untold for untold in Untold if not values_received(alone) & {*names[untold]}
        }
        for name, alone in commands_of(experiment)
    }


def check_commands(experiment: ExperimentKeys) -> None:
    """Refuse commands that use what has no value, and axes that change nothing."""
    for name, alone in commands_of(experiment):
        with naming(name):
            _check_command(alone)


def _check_command(experiment: ExperimentKeys) -> None:
    _check_placeholders(experiment)
    _check_variables(experiment)

    received = values_received(experiment)
    if experiment.layout:
        _check_layout(experiment, experiment.layout, received)

    _check_axes(experiment, received)
    has_rate = experiment.rate_settings[0] is not None
    if RATE in experiment.tune and not received & _OF_RATE:
        raise _changes_nothing(f"tune.{RATE}", RATE)

    if not has_rate and (rates := sorted(received & _OF_RATE)):
        raise SpecError(
            f"learning_rate is missing, but the command uses {{{rates[0]}}}. Add, for "
            "example, learning_rate: 0.1.",
            code="no_learning_rate",
        )


def _check_placeholders(experiment: ExperimentKeys) -> None:
    valid = known_placeholders(experiment)
    templates = {"command": experiment.command or ""}

    templates |= {f"env.{name}": value for name, value in experiment.env.items()}
    for field, template in templates.items():
        for placeholder in {*placeholders_in(template)} - {*valid}:
            holds = f"{field} holds {{{placeholder}}}, which"
            if placeholder in LAYOUT_PLACEHOLDERS:
                raise SpecError(
                    f"{holds} has a value only where the experiment has a layout. "
                    "Add, for example, layout: {tensor: [1, 2], pipeline: 2}.",
                    code="placeholder_without_layout",
                )
            raise SpecError(
                f"{holds} is no placeholder. {one_of(valid, placeholder)}",
                code="unknown_placeholder",
            )


def _check_variables(experiment: ExperimentKeys) -> None:
    for name in experiment.env_from:
        if name in experiment.env:
            raise SpecError(
                f"{name} is under env and under env_from. Keep it in env_from to take "
                "the value from the driver's environment, or in env to write it here.",
                code="variable_said_twice",
            )

    variables = readable_variables(experiment)
    for variable in experiment.uses:
        if variable not in variables:
            raise SpecError(
                f"uses: {shown(variable)} is no variable that a command finds. "
                f"{one_of(variables, variable)}",
                code="unknown_variable",
            )


def _check_axes(experiment: ExperimentKeys, received: Set[str]) -> None:
    taken = {*TRIAL_PLACEHOLDERS, *(LAYOUT_PLACEHOLDERS if experiment.layout else ())}
    for axis in experiment.axes:
        key = "tune" if axis in experiment.tune else "options"
        if axis in taken:
            raise SpecError(
                f"{key}.{axis} is a placeholder of its own. Rename the axis, or use "
                "the experiment's own key.",
                code="axis_has_placeholder_name",
            )
        if axis not in received:
            raise _changes_nothing(f"{key}.{axis}", axis)


def _check_layout(
    experiment: ExperimentKeys, layout: LayoutAxes, received: Set[str]
) -> None:
    if "batch_size_per_node" in received:
        raise SpecError(
            "the command uses {batch_size_per_node}, but with a layout the ranks of a "
            "node may see the same samples. Use {local_batch_size}, the samples per "
            "replica, or {global_batch_size}.",
            code="layout_per_node_batch",
        )

    if layout.micro_batches is MicroBatches.SPLIT and isinstance(
        experiment.local_batch_size, AutoBatch
    ):
        raise SpecError(
            "local_batch_size=auto does not go with layout.micro_batches=split, where "
            "each stage of the pipeline needs a sample of it. List local batches.",
            code="auto_batch_with_stages",
        )

    for axis, values in layout.axes().items():
        names = _DEGREES[axis]
        if len(values) > 1 and not received & {*names}:
            raise _changes_nothing(f"layout: {axis}={list(values)}", names[0])


def _changes_nothing(axis: str, placeholder: str) -> SpecError:
    return SpecError(
        f"{axis} would change nothing: the command does not use {{{placeholder}}}. "
        f"Write {{{placeholder}}} where the value belongs; if the program reads "
        f"{variable_of(placeholder)} by itself, add it to uses.",
        code="axis_changes_nothing",
    )


def check_received(experiment: ExperimentKeys, trials: Sequence[Trial]) -> None:
    """Refuse trials that their command cannot tell apart, or cannot run.

    Trials that differ in a value that the command does not receive would run alike, and
    what one of them measures would be recorded for another.
    """
    for name, alone in commands_of(experiment):
        trials_of_program = [trial for trial in trials if trial.program == name]
        with naming(name):
            _check_values(alone, trials_of_program)
        launcher, program = alone.launcher.row(), f" of program={name}" if name else ""
        for trial in trials_of_program:
            words = f"the trial{program} on {trial.world_size} devices"
            launcher.check_nodes(trial.allocation.num_nodes, words)


def _check_values(experiment: ExperimentKeys, trials: Sequence[Trial]) -> None:
    received = values_received(experiment)
    _check_batches(experiment, trials, received)
    for axis in ("precision", "parallelism", "seed"):
        _check_axis(axis, (getattr(trial, axis) for trial in trials), [axis], received)

    _check_rates(trials, received)

    names, first = _local_batch(experiment), dict[object, Trial]()
    for trial in trials:  # on the same devices, batches must be told apart
        on_node = max(trial.allocation.devices_per_node)
        values = placeholder_values(trial, devices_on_node=on_node, directory="")
        known = [values[name] for name in sorted(received & {*names, *_ACCUMULATION})]
        # The command knows its layout, since it must receive its axes.
        other = first.setdefault((trial.allocation, trial.layout, *known), trial)
        for axis in ("local_batch_size", "gradient_accumulation_steps"):
            _check_axis(axis, (getattr(other, axis), getattr(trial, axis)), [axis])


def _check_batches(
    experiment: ExperimentKeys, trials: Sequence[Trial], received: Set[str]
) -> None:
    for trial in trials:
        if trial.gradient_accumulation_steps > 1 and not received & {*_ACCUMULATION}:
            raise SpecError(
                f"the trial on {trial.world_size} devices needs "
                f"gradient_accumulation_steps={trial.gradient_accumulation_steps}, but "
                f"the command uses none of {_listed(_ACCUMULATION)}. Add one, or "
                "change the batch sizes.",
                code="accumulation_not_received",
            )

    names = _local_batch(experiment)
    if isinstance(experiment.local_batch_size, AutoBatch) and not received & {*names}:
        raise _not_received("local_batch_size", ["auto"], names)

    if len({trial.global_batch_size for trial in trials}) > 1:
        # of one global batch, a program may take its ranks' shares by itself
        local = (trial.local_batch_size for trial in trials)
        _check_axis("local_batch_size", local, names, received)


def _check_rates(trials: Sequence[Trial], received: Set[str]) -> None:
    rates = [trial.learning_rate for trial in trials if trial.learning_rate]
    has_one_rule = len({rate.rule for rate in rates}) == 1

    are_timed = all(trial.kind is TrialKind.THROUGHPUT for trial in trials)
    if not (has_one_rule and are_timed):  # else no time depends on the rate
        # The command may apply the one rule by itself.
        base = ["base_learning_rate"] if has_one_rule else []
        rated = (rate.value for rate in rates)
        _check_axis("learning_rate", rated, ["learning_rate", *base], received)

    warmups = {rate.warmup for rate in rates}
    _check_axis("warmup_samples", warmups, ["warmup_samples"], received)


def _check_axis(
    axis: str,
    values: Iterable[object],
    names: Sequence[str],
    received: Set[str] = frozenset(),
) -> None:
    distinct = list(dict.fromkeys(values))
    if len(distinct) > 1 and not received & {*names}:
        raise _not_received(axis, distinct, names)


def _local_batch(experiment: ExperimentKeys) -> Sequence[str]:
    return _LOCAL_BATCH_OF_LAYOUT if experiment.layout else _LOCAL_BATCH


def _not_received(
    axis: str, values: Sequence[object], names: Sequence[str]
) -> SpecError:
    listed = ", ".join(map(str, values[:4])) + (", ..." if len(values) > 4 else "")
    variable = variable_of(axis)
    return SpecError(
        f"{axis} varies between trials ({listed}), but the command does not receive "
        f"it: it would run alike for all of them. Write {_listed(names)} in the "
        "command or in env where the value belongs; if the program itself reads the "
        f"variable {variable}, add uses: [{variable}].",
        code="axis_not_received",
    )


def _listed(names: Sequence[str]) -> str:
    return " or ".join(f"{{{name}}}" for name in names)


def placeholder_values(
    trial: Trial, *, devices_on_node: int, directory: str | Path
) -> dict[str, object]:
    """Return the values of the placeholders that all processes of a node share."""
    accumulation = trial.gradient_accumulation_steps
    replicas = trial.data_parallel_size
    # At least one: a replica may be spread over nodes.
    on_node = max(1, devices_on_node * replicas // trial.world_size)

    values: dict[str, object] = {
        "local_batch_size": trial.local_batch_size,
        "global_batch_size": trial.global_batch_size,
        "batch_size_per_node": trial.local_batch_size * on_node,
        "gradient_accumulation_steps": accumulation,
        "accumulation_steps_of_all_ranks": accumulation * replicas,
        "world_size": trial.world_size,
        "num_nodes": trial.allocation.num_nodes,
        "gpus_per_node": devices_on_node,
        "parallelism": trial.parallelism,
        "precision": trial.precision,
        "seed": trial.seed,
        "repeat": trial.repeat,
        "trial_id": trial.trial_id,
        "trial_dir": directory,
        **trial.options,
    }
    if layout := trial.layout:
        del values["batch_size_per_node"]  # a replica may be spread over nodes
        values |= layout.sizes(trial.world_size)
        values["micro_batch_size"] = layout.micro_batch_size(trial.local_batch_size)

    if rate := trial.learning_rate:
        values["learning_rate"] = rate.value
        values["base_learning_rate"] = rate.base
        values["warmup_samples"] = rate.warmup_samples

    return values
