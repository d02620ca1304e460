"""The smaller sections of an experiment: program, code, metrics, thresholds."""

from collections.abc import Mapping
from itertools import product
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from scalelab.errors import SpecError
from scalelab.experiment.program import StopRequest, StopSignalName
from scalelab.inputs.fields import (
    Count,
    DeviceCount,
    Duration,
    Flag,
    Json,
    LocalBatchLimit,
    OneOrMany,
    Positive,
    Section,
    Text,
)
from scalelab.inputs.layout import Layout, MicroBatches
from scalelab.inputs.numerals import number
from scalelab.inputs.problems import Option, bracketed, shown
from scalelab.kinds.launchers import LAUNCHERS, Launcher

MAX_GRACE_S = 100.0  # seconds; scalelab stop --now waits a little longer


class _NamedChoice(Section):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Json]
    shorthand: ClassVar[JsonSchemaValue | None] = {"type": "string"}

    name: Text

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__)


class WorkloadChoice(_NamedChoice):
    """A workload class and the arguments of its constructor."""

    name: Text = Field(description="A built-in workload, or module:Class of your own.")


class SourceChoice(_NamedChoice):
    """The source of trials, and the arguments of its constructor."""

    name: Text = Field(description="planned, or a source of an installed package.")


class LauncherChoice(_NamedChoice):
    """The launcher of a command's processes, and its options."""

    name: Text = Field(
        description="What starts the processes of a command: see docs/launchers.md."
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON schema; the name alone is offered by editors, too."""
        short, full = super().__get_pydantic_json_schema__(schema, handler)["anyOf"]
        return {"anyOf": [{**short, "enum": list(LAUNCHERS.names)}, full]}

    def row(self) -> Launcher:
        """Return the row of the launcher."""
        return LAUNCHERS[self.name].with_options(self.parameters)

    def as_text(self) -> str | dict[str, Any]:
        """Return it as an experiment may write it."""
        options = self.parameters
        return {"name": self.name, **options} if options else self.name


class Stop(Section):
    """How a command is asked to save what it has before it is ended."""

    signal: StopSignalName = Field(
        default="SIGTERM", description="What each of its processes gets."
    )
    grace: Duration = Field(
        description="How long it may take until its processes are ended, at most 100s."
    )

    @model_validator(mode="after")
    def _is_short(self) -> Self:
        if self.grace > MAX_GRACE_S:
            raise SpecError(
                f"grace={self.grace:g}s must be at most {MAX_GRACE_S:g}s: what ends a "
                "sweep waits no longer. If saving takes longer, save more often.",
                code="grace_too_long",
            )
        return self

    def request(self) -> StopRequest:
        """Return what a program carries."""
        return StopRequest(signal=self.signal, grace_s=self.grace)


class Code(Section):
    """Which of the user's files a trial runs, copied when the sweep starts."""

    snapshot: OneOrMany[Text] = Field(
        default=(), description="Files and folders, relative to root."
    )
    root: Text | None = Field(
        default=None, description="Folder; default: where the experiment's file lies."
    )

    @model_validator(mode="after")
    def _stays_below_root(self) -> Self:
        for path in map(PurePosixPath, self.snapshot):
            if path.is_absolute() or ".." in path.parts or "\0" in str(path):
                raise SpecError(
                    f"snapshot: {str(path)[:60]!r} leaves root. Use paths below root, "
                    "or change code.root.",
                    code="path_leaves_root",
                )
        return self


class AutoBatch(Section):
    """Find the largest local batch that fits, on one device."""

    shorthand: ClassVar[JsonSchemaValue | None] = {"const": "auto"}

    at_most: LocalBatchLimit | None = Field(default=None, description="Where to stop.")
    multiple_of: LocalBatchLimit = Field(
        default=8, description="Only multiples are tried from there on."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "auto":
            raise SpecError(
                f"{value[:60]!r} is not a batch size. Write a whole number, a list of "
                f"them, or auto.{bracketed(value)}",
                code="not_a_batch",
            )
        return {} if value == "auto" else value


REST = "rest"  # what stands for all ranks that the other degrees leave
DegreesOrRest = Annotated[
    OneOrMany[DeviceCount] | None,
    WithJsonSchema(
        {
            "anyOf": [
                {"const": REST},
                {"type": "integer"},
                {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            ]
        }
    ),
]


class DataRanks(Section):
    """How data-parallel ranks are grouped: copies of the state, each over shards."""

    shorthand: ClassVar[JsonSchemaValue | None] = {"const": REST}

    replicate: DegreesOrRest = Field(
        default=None, description="Copies of the training state, or rest."
    )
    shard: DegreesOrRest = Field(
        default=None, description="Ranks over which each copy is spread, or rest."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_rest(cls, value: Any) -> Any:
        if value == REST:
            return {"replicate": 1}
        if isinstance(value, Mapping):
            return {
                name: None if share == REST else share for name, share in value.items()
            }

        raise SpecError(
            f"{shown(value)} is not known. Write rest: the number of data-parallel "
            "ranks follows from gpus and the other degrees. Or say how they are "
            "grouped: {replicate: 2, shard: rest}.",
            code="no_rest",
        )

    @model_validator(mode="after")
    def _has_one_rest(self) -> Self:
        if (self.replicate is None) == (self.shard is None):
            both = "both rest" if self.shard is None else "both numbers"
            raise SpecError(
                f"replicate and shard are {both}. One of them must be rest, since "
                "their product follows from gpus and the other degrees.",
                code="not_one_rest",
            )
        return self


class LayoutAxes(Section):
    """The layouts of a program that splits its model itself: degrees, each an axis."""

    tensor: OneOrMany[DeviceCount] = Field(
        default=(1,), description="Ranks among which each layer is divided."
    )
    pipeline: OneOrMany[DeviceCount] = Field(
        default=(1,), description="Stages among which the layers are divided."
    )
    context: OneOrMany[DeviceCount] = Field(
        default=(1,), description="Ranks among which each sequence is divided."
    )
    expert: OneOrMany[DeviceCount] = Field(
        default=(1,),
        description="Data-parallel ranks among which experts are divided.",
    )
    data: DataRanks = Field(
        default=DataRanks(replicate=(1,)),
        description="The other ranks: rest, or {replicate: 2, shard: rest}.",
    )
    micro_batches: MicroBatches = Field(
        default=MicroBatches.ACCUMULATION,
        description=(
            "accumulation: those of a pipeline are the accumulation steps; split: the "
            "program splits the local batch."
        ),
    )
    tensor_across_nodes: Flag = Field(
        default=False, description="Whether a layer may be divided across nodes."
    )

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Return the listed values of each degree, by the name a Layout has for it."""
        return {
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "context": self.context,
            "expert": self.expert,
            "replicate": self.data.replicate or (None,),
            "shard": self.data.shard or (None,),
        }

    def layouts(self) -> tuple[Layout, ...]:
        """Return every combination of the listed degrees."""
        axes = self.axes()
        return tuple(
            Layout(
                **dict(zip(axes, degrees, strict=True)),
                micro_batches=self.micro_batches.value,
            )
            for degrees in product(*axes.values())
        )


class ConfirmAbove(Section):
    """The cost above which a sweep asks before it starts."""

    trials: Count = Field(
        default=200, description="Trials a sweep runs without asking."
    )
    gpu_hours: Positive = Field(
        default=24.0, description="GPU-hours a sweep takes unasked."
    )
    share_of_job: Positive = Field(
        default=0.05,
        description=(
            "Samples of a sweep on a batch system, as a share of the job's, that it "
            "trains unasked; a sweep with a budget never asks for this."
        ),
    )

    def question(
        self,
        num_trials: int | None,
        gpu_hours: float | None,
        share_of_job: float | None,
        device_hour_word: str,
    ) -> str | None:
        """Return what to ask the user, or None below all thresholds."""
        if (num_trials or 0) > self.trials:
            return (
                f"This sweep runs {num_trials:,} trials; confirm_above.trials is "
                f"{self.trials:,}. Go on?"
            )

        if gpu_hours and gpu_hours > self.gpu_hours:
            hours = f"{gpu_hours:,.1f}" if gpu_hours >= 10 else f"{gpu_hours:.2g}"
            return (
                f"This sweep takes about {hours} {device_hour_word}; "
                f"confirm_above.gpu_hours is {self.gpu_hours:,g}. Go on?"
            )

        if share_of_job and share_of_job > self.share_of_job:
            return (
                f"This sweep trains {number(100 * share_of_job)}% of the job's "
                f"samples; confirm_above.share_of_job is {self.share_of_job:g}, and "
                f"{Option('budget', '10gpu-h')} limits what a sweep takes. Go on?"
            )
        return None
