"""The keys of an experiment's YAML: the type and the description of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag

from scalelab.errors import SpecError
from scalelab.experiment.batch_sizes import ScalingMode
from scalelab.experiment.job import Job
from scalelab.experiment.measure import Measure, Metrics
from scalelab.experiment.rates import Rates
from scalelab.experiment.sections import (
    AutoBatch,
    Code,
    ConfirmAbove,
    LauncherChoice,
    LayoutAxes,
    Precision,
    SourceChoice,
    Stop,
    WorkloadChoice,
)
from scalelab.inputs.fields import (
    ConditionText,
    Count,
    DeviceCount,
    EnvironmentValue,
    Flag,
    OneOrMany,
    OptionValue,
    Section,
    Seed,
    Text,
    Word,
)
from scalelab.kinds.launchers import TORCHRUN
from scalelab.kinds.sources import PLANNED
from scalelab.kinds.strategies import DEFAULT_STRATEGY
from scalelab.site.choice import AnySite

Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
AxisName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


def _kind_of_batch(value: Any) -> str:
    return "<auto>" if isinstance(value, str | dict | AutoBatch) else "<sizes>"


def _kind_of_site(value: Any) -> str:
    return "<name>" if isinstance(value, str) else "<inline>"


LocalBatch = Annotated[
    Annotated[AutoBatch, Tag("<auto>")] | Annotated[OneOrMany[Count], Tag("<sizes>")],
    Discriminator(_kind_of_batch),
]
SiteChoice = Annotated[
    Annotated[Text, Tag("<name>")] | Annotated[AnySite, Tag("<inline>")],
    Discriminator(_kind_of_site),
]


class ProgramChoice(Section):
    """One of several programs, of which each trial runs one.

    What it does not say of launcher and metrics, the experiment says for all of them.
    """

    name: Name = Field(description="What its curve is called.")
    command: Text = Field(description="Command line with {placeholders}.")
    launcher: LauncherChoice | None = Field(
        default=None, description="What starts its processes: a name, or {name: ...}."
    )
    metrics: Metrics | None = Field(
        default=None, description="Where it reports its steps."
    )
    env: dict[Text, EnvironmentValue] = Field(
        default={},
        repr=False,
        description="Its environment variables, besides those of all programs.",
    )
    uses: OneOrMany[Text] = Field(
        default=(), description="Variables that it reads by itself, besides those."
    )


class ExperimentKeys(Section):
    """The keys of an experiment's YAML, each checked alone."""

    name: Name = Field(
        description=(
            "Name of the run: letters, digits, '_', '.' and '-', at most 64, starting "
            "with a letter or digit."
        )
    )
    workload: WorkloadChoice | None = Field(
        default=None, description="Built-in name, module:Class, or {name: ..., ...}."
    )
    command: Text | None = Field(
        default=None, description="Command line with {placeholders}."
    )
    program: tuple[ProgramChoice, ...] | None = Field(
        default=None,
        description=(
            "Several programs instead of one command, an axis: [{name, command, "
            "launcher, metrics, env, uses}, ...]."
        ),
    )
    launcher: LauncherChoice = Field(
        default=LauncherChoice(name=TORCHRUN.name),
        description=(
            "What starts the processes of a command: a name, or {name: ..., ...}."
        ),
    )
    code: Code | None = Field(default=None, description="Files to take a snapshot of.")
    env: dict[Text, EnvironmentValue] = Field(
        default={}, repr=False, description="Environment variables of a command."
    )
    env_from: OneOrMany[Text] = Field(
        default=(),
        description=(
            "Variables that a command gets from the environment of the driver; their "
            "values are never stored."
        ),
    )
    stop: Stop | None = Field(
        default=None,
        description=(
            "How a command is asked to save what it has: {signal: SIGUSR1, grace: 60s}."
        ),
    )
    uses: OneOrMany[Text] = Field(
        default=(),
        description=(
            "Variables such as SCALELAB_LOCAL_BATCH_SIZE that a command reads by "
            "itself, instead of a placeholder."
        ),
    )
    metrics: Metrics | None = Field(
        default=None, description="Where a command reports its steps."
    )
    measure: Measure = Field(default=Measure(), description="What is measured.")
    job: Job | None = Field(default=None, description="The job to recommend for.")
    accept: OneOrMany[ConditionText] = Field(
        default=(),
        description=(
            "Conditions that a trained model's last evaluation must hold, such as "
            "val_acc >= 0.9: >=, <=, > or <."
        ),
    )
    gpus: OneOrMany[DeviceCount] | None = Field(
        default=None, description="Devices per trial, packed on nodes."
    )
    nodes: OneOrMany[DeviceCount] | None = Field(
        default=None, description="Nodes per trial, with gpus_per_node."
    )
    gpus_per_node: OneOrMany[DeviceCount] | None = Field(
        default=None, description="Devices per node of a trial, with nodes."
    )
    node_group: OneOrMany[Word] | None = Field(
        default=None,
        description="Node groups of the site to run on; default: its first.",
    )
    global_batch_size: OneOrMany[Count] | None = Field(
        default=None, description="Samples per optimiser step over all ranks."
    )
    local_batch_size: LocalBatch | None = Field(
        default=None, description="Samples per rank per forward pass, or auto."
    )
    gradient_accumulation_steps: Count | None = Field(
        default=None, description="Derived where both batch sizes are given."
    )
    learning_rate: Rates | None = Field(
        default=None, description="A number, or {base, at_batch, rule, warmup}."
    )
    parallelism: OneOrMany[Text] = Field(
        default=(DEFAULT_STRATEGY,),
        description="Strategies that spread the training over ranks: ddp, fsdp, ...",
    )
    layout: LayoutAxes | None = Field(
        default=None,
        description=(
            "How a command splits its model over ranks: {tensor: [1, 2], pipeline: 2}."
        ),
    )
    precision: OneOrMany[Precision] = Field(
        default=(Precision.FP32,), description="fp32, bf16 or fp16."
    )
    seed: OneOrMany[Seed] = Field(default=(0,), description="Seeds, 0 to 2**32 - 1.")
    options: dict[AxisName, OneOrMany[OptionValue]] = Field(
        default={}, description="Further axes: {argument: [values]}."
    )
    scaling: ScalingMode | None = Field(
        default=None,
        description="strong: global batch fixed; weak: local batch fixed.",
    )
    product: Flag = Field(
        default=False, description="Run the full grid, not the factorised plan."
    )
    source: SourceChoice = Field(
        default=SourceChoice(name=PLANNED.name),
        description="What proposes the trials: a name, or {name: ..., ...}.",
    )
    site: SiteChoice | None = Field(
        default=None, description="Name or path of a site profile, or its settings."
    )
    confirm_above: ConfirmAbove = Field(
        default=ConfirmAbove(), description="Cost above which a sweep asks first."
    )

    def by_program(self) -> dict[str | None, Self]:
        """Return the experiment as it would be for each of its programs alone, by name.

        Without several programs it is the experiment itself, under None.
        """
        if self.program is None:
            return {None: self}
        return {each.name: self._alone(each) for each in self.program}

    def _alone(self, program: ProgramChoice) -> Self:
        own = {
            "program": None,
            "command": program.command,
            "launcher": program.launcher or self.launcher,
            "metrics": program.metrics or self.metrics,
            "env": {**self.env, **program.env},
            "uses": (*self.uses, *program.uses),
        }
        return self.model_copy(update=own)


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
        raise SpecError(f"program {program}: {error}") from error
