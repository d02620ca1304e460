"""The keys of an experiment's YAML: the type and the description of each."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.experiment.measure import Measure, Metrics
from scalelab.experiment.rates import LearningRateRule as Rule
from scalelab.experiment.rates import Rates, RateSetting
from scalelab.experiment.sections import (
    AutoBatch,
    Code,
    ConfirmAbove,
    LauncherChoice,
    LayoutAxes,
    SourceChoice,
    Stop,
    WorkloadChoice,
)
from scalelab.experiment.trial import PROGRAM, TrialKind
from scalelab.experiment.tuning import RATE, TuneKeys
from scalelab.inputs.document import Scalar
from scalelab.inputs.fields import (
    AxisName,
    ConditionText,
    Count,
    DeviceCount,
    EnvironmentValue,
    Flag,
    OneOrMany,
    OptionValue,
    OrRange,
    Section,
    Seed,
    Text,
    Word,
)
from scalelab.inputs.problems import shown
from scalelab.kinds.launchers import TORCHRUN
from scalelab.kinds.sources import OPTUNA, PLANNED, SOURCES, TUNED_RATES
from scalelab.kinds.strategies import DEFAULT_STRATEGY
from scalelab.kinds.trainers import DEFAULT_TRAINER, TRAINERS, facts_of
from scalelab.site.choice import AnySite

# Steps are measured where the optimizer makes them.
PROBED: Final = "inside"

Name = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]

Names = TypeVar("Names", bound=Iterable[str])


def _named_as_variables(names: Names) -> Names:
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
            raise SpecError(
                f"{shown(name)} is no name of an environment variable. Use letters, "
                "digits and '_', not starting with a digit.",
                code="no_variable_name",
            )
    return names


Variables = Annotated[dict[Text, EnvironmentValue], AfterValidator(_named_as_variables)]
VariableNames = Annotated[OneOrMany[Text], AfterValidator(_named_as_variables)]


def _has_type(*types: type) -> Discriminator:
    return Discriminator(lambda value: "<yes>" if isinstance(value, types) else "<no>")


LocalBatch = Annotated[
    Annotated[AutoBatch, Tag("<yes>")] | Annotated[OneOrMany[Count], Tag("<no>")],
    _has_type(str, dict, AutoBatch),
    OrRange,
]
SiteChoice = Annotated[
    Annotated[Text, Tag("<yes>")] | Annotated[AnySite, Tag("<no>")], _has_type(str)
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
    env: Variables = Field(
        default={},
        repr=False,
        description="Its environment variables, besides those of all programs.",
    )
    uses: OneOrMany[Text] = Field(
        default=(), description="Variables that it reads by itself, besides those."
    )


class ExperimentKeys(TuneKeys):
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
    env: Variables = Field(
        default={}, repr=False, description="Environment variables of a command."
    )
    env_from: VariableNames = Field(
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
    probe: Literal["inside", "none"] = Field(
        default=PROBED,
        description=(
            "inside: steps of PyTorch's optimizers are measured where they are made; "
            "none: what the command reports is all that is known of it."
        ),
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
    gpus: Annotated[OneOrMany[DeviceCount] | None, OrRange] = Field(
        default=None,
        description="Devices per trial, packed on nodes; {from: 1, to: 64}: doublings.",
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
        default=None,
        description="Samples per rank per forward pass, a range of them, or auto.",
    )
    gradient_accumulation_steps: Count | None = Field(
        default=None,
        description=(
            "Passes of a step, one number for all trials; where both batch sizes are "
            "given it follows from them."
        ),
    )
    learning_rate: Rates | None = Field(
        default=None, description="A number, or {base, at_batch, rule, warmup}."
    )
    optimizer: OneOrMany[Word] | None = Field(
        default=None,
        description=(
            "Optimisers of a workload: sgd, adam or adamw; default: its own. A command "
            "names its own under options."
        ),
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
    precision: OneOrMany[Literal["fp32", "bf16", "fp16"]] = Field(
        default=("fp32",), description="fp32, bf16 or fp16."
    )
    seed: OneOrMany[Seed] = Field(default=(0,), description="Seeds, 0 to 2**32 - 1.")
    options: dict[AxisName, OneOrMany[OptionValue]] = Field(
        default={}, description="Further axes: {argument: [values]}."
    )
    scaling: Literal["strong", "weak"] | None = Field(
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

    @model_validator(mode="before")
    @classmethod
    def _names_its_search(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        source = values.get("source")
        rates = values.get("learning_rate")

        is_tuned = isinstance(rates, Mapping) and rates.get("rule") in (
            Rule.TUNED,
            [Rule.TUNED],
        )
        if source is None and ("tune" in values or is_tuned):
            found = OPTUNA if "tune" in values else TUNED_RATES
            return {**values, "source": found.name}
        if source is None:
            return values

        given = source if isinstance(source, Mapping) else {"name": source}
        name = str(given.get("name"))
        if name not in SOURCES.names or SOURCES[name].chooses != "settings":
            return values

        keys = {key: value for key, value in given.items() if key != "name"}
        for key in keys:
            if key in values:
                raise SpecError(
                    f"{key} stands under source and beside it. Keep one of the two.",
                    code="search_said_twice",
                )

        return {**values, **keys, "source": name}

    @model_validator(mode="after")
    def _runs_one_thing(self) -> Self:
        kinds = ("workload", "command", "program")
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            problem = "both given" if given else "both missing"
            is_installed = DEFAULT_TRAINER in TRAINERS
            known = TRAINERS[DEFAULT_TRAINER].workloads if is_installed else ()
            raise SpecError(
                f"{' and '.join(given or kinds[:2])} are {problem}. An experiment runs "
                f"exactly one: a workload ({', '.join((*known, 'module:Class'))}), "
                "a command, or several programs.",
                code="not_one_program",
            )

        return self

    @model_validator(mode="after")
    def _names_each_program(self) -> Self:
        names = [program.name for program in self.program or ()]
        if self.program is not None and not names:
            raise SpecError(
                "program is empty. List programs, such as program: [{name: torch, "
                "command: ...}, {name: jax, command: ...}], or write one command.",
                code="no_programs",
            )

        if twice := [name for name in names if names.count(name) > 1]:
            raise SpecError(
                f"program: the name {twice[0]} stands there twice, but it tells curves "
                "apart. Rename one.",
                code="program_name_twice",
            )

        if self.program and PROGRAM in self.options:
            raise SpecError(
                f"options.{PROGRAM} has the name of the axis of programs. Rename the "
                "option.",
                code="option_named_program",
            )

        return self

    @model_validator(mode="after")
    def _gives_devices_once(self) -> Self:
        if self.gpus and (self.nodes or self.gpus_per_node):
            raise SpecError(
                "gpus and nodes x gpus_per_node both say which devices a trial gets. "
                "Keep gpus (packed on nodes), or nodes with gpus_per_node.",
                code="devices_said_twice",
            )

        if bool(self.nodes) != bool(self.gpus_per_node):
            names = ["nodes", "gpus_per_node"]
            given, missing = names if self.nodes else reversed(names)
            raise SpecError(
                f"{given} needs {missing}. Add it, or write gpus instead.",
                code="devices_of_nodes",
            )

        if not self.gpus and not self.nodes:
            raise SpecError(
                "gpus is missing. Add the devices per trial, such as gpus: [1, 2, 4].",
                code="no_devices",
            )

        return self

    @model_validator(mode="after")
    def _gives_batches_once(self) -> Self:
        total, local = self.global_batch_size, self.local_batch_size
        if total is None and local is None:
            raise SpecError(
                "local_batch_size and global_batch_size are both missing. Add at least "
                "one, such as local_batch_size: [32, 64].",
                code="no_batch",
            )

        if self.gradient_accumulation_steps and total and local:
            raise SpecError(
                "gradient_accumulation_steps follows from global_batch_size and "
                "local_batch_size. Remove one of the three.",
                code="accumulation_follows",
            )

        if self.scaling == "strong" and total is None:
            raise SpecError(
                "scaling=strong holds global_batch_size fixed, but there is none. Add "
                "it, or write scaling: weak.",
                code="strong_without_batch",
            )

        if self.scaling == "weak" and total is not None:
            raise SpecError(
                "scaling=weak holds local_batch_size fixed, so global_batch_size "
                "follows from the number of devices. Remove global_batch_size.",
                code="weak_with_batch",
            )

        return self

    @model_validator(mode="after")
    def _tells_operations(self) -> Self:
        job, workload = self.job, self.workload
        if job and job.device_peak_flops and not job.flops_per_sample:
            facts = facts_of(workload.name) if workload else None
            if workload is None or (facts and not facts.counts_flops):
                raise SpecError(
                    "job.flops_per_sample and job.device_peak_flops together say how "
                    "much of a device is used, and "
                    f"{workload.name if workload else 'a command'} does not tell its "
                    "operations. Give both, or neither.",
                    code="operations_unknown",
                )
        return self

    @model_validator(mode="after")
    def _agrees_with_the_job(self) -> Self:
        job = self.job
        warmups = self.learning_rate.warmup if self.learning_rate else ()

        is_command = self.workload is None and self.probe == PROBED
        if job and job.lacks_epoch and not is_command:
            raise SpecError(
                "job: epochs needs samples_per_epoch. Add it.",
                code="epochs_without_samples",
            )

        has_epochs = any(warmup and warmup.epochs for warmup in warmups)
        if has_epochs and not (job and job.samples_per_epoch):
            raise SpecError(
                "learning_rate.warmup.epochs needs job.samples_per_epoch. Add it, "
                "or give the warm-up in samples.",
                code="warmup_without_samples",
            )

        if self.accept and {*self.measure.kind} == {TrialKind.THROUGHPUT}:
            raise SpecError(
                f"accept: {self.accept[0]} judges trained models, and throughput "
                "trials evaluate none. Add end_to_end to measure.kind, or remove "
                "accept.",
                code="nothing_to_accept",
            )

        self.measure.check(job, needs_target=not self.tune)
        return self

    @model_validator(mode="after")
    def _sees_steps(self) -> Self:
        programs = [program.metrics for program in self.program or ()]
        for metrics in filter(None, (self.metrics, *programs)):
            metrics.check_counts(is_probed=self.probe == PROBED)
        return self

    @property
    def axes(self) -> Mapping[str, tuple[Scalar, ...]]:
        """The values of each further axis of trials, by name.

        Of what a search chooses it is one value, in the middle of all.
        """
        optimizers = {"optimizer": self.optimizer} if self.optimizer else {}
        tuned = {
            name: (values.middle,) for name, values in self.tune.items() if name != RATE
        }
        return {**self.options, **optimizers, **tuned}

    @property
    def rate_settings(self) -> Sequence[RateSetting | None]:
        """The ways to set the learning rate, at least one; None: nothing sets it."""
        if RATE in self.tune:
            return [RateSetting.plain(float(self.tune[RATE].middle))]
        return self.learning_rate.settings() if self.learning_rate else [None]

    def by_program(self) -> dict[str | None, Self]:
        """Return the experiment as it would be for each of its programs alone, by name.

        Without several programs it is the experiment itself, under None.
        """
        return {
            program.name: self.model_copy(
                update={
                    "program": None,
                    "command": program.command,
                    "launcher": program.launcher or self.launcher,
                    "metrics": program.metrics or self.metrics,
                    "env": {**self.env, **program.env},
                    "uses": (*self.uses, *program.uses),
                }
            )
            for program in self.program or ()
        } or {None: self}
