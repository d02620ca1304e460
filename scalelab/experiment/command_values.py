"""The values that a command is told: by placeholders, or by environment variables."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum
from pathlib import Path

from scalelab.experiment.batch_sizes import samples_on_node
from scalelab.experiment.keys import ExperimentKeys
from scalelab.experiment.trial import Trial
from scalelab.inputs.placeholders import (
    LAYOUT_PLACEHOLDERS,
    PLACEHOLDERS,
    placeholders_in,
)


def variable_of(placeholder: str) -> str:
    """Return the environment variable that holds the value of a placeholder.

    >>> variable_of("local_batch_size")
    'SCALELAB_LOCAL_BATCH_SIZE'
    """
    return f"SCALELAB_{placeholder.upper()}"


class Untold(StrEnum):
    """A value of which a command is not told: it runs alike whatever the value is."""

    LOCAL_BATCH = "local_batch_size"
    ACCUMULATION = "gradient_accumulation_steps"


def known_placeholders(experiment: ExperimentKeys) -> tuple[str, ...]:
    """Return the placeholders that the command of an experiment may use."""
    of_layout = LAYOUT_PLACEHOLDERS if experiment.layout else ()
    return tuple(dict.fromkeys((*PLACEHOLDERS, *of_layout, *experiment.options)))


def readable_variables(experiment: ExperimentKeys) -> dict[str, str]:
    """Return the placeholder of every variable that a command finds, by its name."""
    return {variable_of(name): name for name in known_placeholders(experiment)}


def values_told(experiment: ExperimentKeys) -> Set[str]:
    """Return the placeholders whose values the command of an experiment learns.

    It learns them in its command line, in a variable under ``env``, or in a variable
    that ``uses`` declares as read by the program.
    """
    templates = (experiment.command or "", *experiment.env.values())
    known = readable_variables(experiment)
    return {
        *(name for template in templates for name in placeholders_in(template)),
        *(known[variable] for variable in experiment.uses if variable in known),
    }


def placeholder_values(
    trial: Trial, *, devices_on_node: int, directory: str | Path
) -> dict[str, object]:
    """Return the values of the placeholders that all processes of a node share."""
    accumulation = trial.gradient_accumulation_steps
    values: dict[str, object] = {
        "local_batch_size": trial.local_batch_size,
        "global_batch_size": trial.global_batch_size,
        "batch_size_per_node": samples_on_node(
            trial.local_batch_size,
            devices=devices_on_node,
            world_size=trial.world_size,
            data_parallel_size=trial.data_parallel_size,
        ),
        "gradient_accumulation_steps": accumulation,
        "accumulation_steps_of_all_ranks": accumulation * trial.data_parallel_size,
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
