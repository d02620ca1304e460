"""The arguments of calls in Python, checked: an error names the argument and its value.

Types and rules are those of the keys that users write in YAML; values of NumPy and
pandas are taken as the plain values they hold.
"""

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.inputs.fields import (
    Count,
    DeviceHours,
    Flag,
    Fraction,
    LinkText,
    OptionValue,
    Price,
    Section,
    TargetText,
    Text,
)
from scalelab.inputs.problems import shown

_MOST_DEVICES = 1_000_000
_JOB = "{'epochs': 90, 'samples_per_epoch': 1281167}"


def _plain(value: Any) -> Any:
    # An array, a series, a range or a set becomes the plain values it holds.
    if isinstance(value, range | set | frozenset):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _share(value: Any) -> Any:
    plain = _plain(value)
    if isinstance(plain, int | float) and 2 <= plain < 100:
        raise SpecError(f"{plain:g} must be less than 1. Write {plain / 100:g}.")
    return plain


def _several(value: Any) -> Any:
    plain = _plain(value)
    if plain is None:
        return ()
    return plain if isinstance(plain, list | tuple) else (plain,)


def _by_name(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return {} if value is None else value
    return {name: _plain(each) for name, each in value.items()}


def _path(value: Any) -> str:
    if isinstance(value, str | PathLike) and isinstance(path := fspath(value), str):
        if path and "\0" not in path:
            return path
    raise SpecError(f"{shown(value)} is no path. Write one such as 'runs/digits'.")


def _decimal(value: Any) -> Any:
    if value not in (None, ".", ","):
        raise SpecError(f"{shown(value)} is no decimal sign. Write '.' or ','.")
    return value


def _job(value: Any) -> Any:
    if value is None or isinstance(value, Job):
        return value
    if not isinstance(value, Mapping):
        raise SpecError(f"{shown(value)} is no job. Write its keys, such as {_JOB}.")
    return _by_name(value) or None


PathText = Annotated[str, PlainValidator(_path)]
_Count = Annotated[int, Field(strict=True, ge=1, le=_MOST_DEVICES)]
_Batch = Annotated[Count | None, BeforeValidator(_plain)]
_Names = Annotated[tuple[Text, ...], BeforeValidator(_several)]
_Texts = Annotated[dict[Text, Text], BeforeValidator(_by_name)]
_Values = Annotated[dict[Text, OptionValue], BeforeValidator(_by_name)]


class FitArguments(Section):
    """The arguments of ``Run.fit``."""

    law: Text = "scalelab"
    learn_from: Annotated[tuple[PathText, ...], BeforeValidator(_several)] = ()


_OTHER_WORDS = {
    "price": "price_per_gpu_hour_usd",
    "global_batch_size": "batch",
    "local_batch_size": "local_batch",
    "world_size": "gpus",
}


def check_words(given: Iterable[str]) -> None:
    """Refuse what has another word here, or belongs to the job."""
    for name in given:
        if name in _OTHER_WORDS:
            raise SpecError(f"{name} is no argument. Write {_OTHER_WORDS[name]}=...")
        if name in Job.model_fields:
            raise SpecError(f"{name} is part of the job. Write job={{{name!r}: ...}}.")


class RecommendArguments(FitArguments):
    """The arguments of ``Run.recommend`` other than the limits."""

    price_per_gpu_hour_usd: Annotated[Price | None, BeforeValidator(_plain)] = None
    target: TargetText | None = None
    confidence: Annotated[Fraction, BeforeValidator(_share)] = Field(
        default=0.9, description="The probability with which all limits must hold."
    )
    job: Annotated[Job | None, BeforeValidator(_job)] = None
    gpus: Annotated[tuple[_Count, ...], BeforeValidator(_several)] = Field(
        default=(), description="Numbers of devices, such as [8, 16]."
    )
    select: _Values = Field(
        default={}, description="Values by column, such as {'workload': 'resnet'}."
    )

    batch: _Batch = Field(default=None, description="The global batch of the job.")
    max_batch: _Batch = Field(default=None, description="The largest global batch.")
    local_batch: _Batch = Field(default=None, description="The local batch of the job.")
    between_nodes: LinkText | None = None
    accept_unmeasured: Flag = False


class SweepArguments(Section):
    """The arguments of ``scalelab.sweep``."""

    experiment: PathText
    site: PathText | None = None
    directory: PathText | None = None
    budget_gpu_hours: Annotated[DeviceHours | None, BeforeValidator(_plain)] = None
    accept_changes: Flag = False
    retry_failed: Flag = False
    skip_check: Flag = False


class ImportArguments(Section):
    """The arguments of ``scalelab.session.import_table``."""

    table: PathText
    directory: PathText
    column: _Texts = Field(
        default={}, description="Their column by ours, such as {'world_size': 'n'}."
    )
    constant: _Values = Field(
        default={}, description="Values by column, such as {'num_nodes': 1}."
    )
    axis: _Names = Field(default=(), description="Columns that are settings.")
    ignore: _Names = Field(default=(), description="Columns that are not read.")
    melt: _Texts = Field(
        default={},
        description="What the names and the cells of a wide table hold, such as "
        "{'world_size': 'throughput_samples_per_s'}.",
    )
    per_device: Flag = False
    tokens_per_sample: _Batch = None
    decimal: Annotated[str | None, BeforeValidator(_decimal)] = None
    header_row: _Batch = None
    accept_doubts: Flag = False


class RunArguments(Section):
    """The argument of ``scalelab.load``."""

    directory: PathText
