"""The arguments of calls in Python, checked: an error names the argument and its value.

Types and rules are those of the keys that users write in YAML; values of NumPy and
pandas are taken as the plain values they hold.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.inputs.fields import (
    CarbonRate,
    Count,
    Duration,
    Effectiveness,
    Flag,
    Fraction,
    LinkText,
    PathText,
    Price,
    Section,
    TargetText,
    Text,
    Values,
    Watts,
    by_name,
    plain_value,
    read_price,
    several,
)
from scalelab.inputs.guessed import by_guess
from scalelab.inputs.money import USUAL, Money, Rate, parse_rate
from scalelab.inputs.problems import shown
from scalelab.kinds.resources import RESOURCES
from scalelab.plan.budget import Budget
from scalelab.site.prices import PriceEntry
from scalelab.site.spot import AskedSpot

T = TypeVar("T")
ByDevice = tuple[tuple[str, T], ...]  # what each is called; empty: any

_MOST_DEVICES = 1_000_000
_JOB = "{'epochs': 90, 'samples_per_epoch': 1281167}"


def _share(value: Any) -> Any:
    plain = plain_value(value)
    if isinstance(plain, int | float) and 2 <= plain < 100:
        raise SpecError(
            f"{plain:g} must be less than 1. Write {plain / 100:g}.",
            code="share_of_hundred",
        )
    return plain


def _job(value: Any) -> Any:
    if value is None or isinstance(value, Job):
        return value
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{shown(value)} is no job. Write its keys, such as {_JOB}.",
            code="not_a_job",
        )
    return by_name(value) or None


def _by_device(read: Callable[[Any], T]) -> Callable[[Any], ByDevice[T]]:
    """Return what reads one value, values by device, or texts as ``c4=0.39usd``."""

    def named(value: Any) -> tuple[str, T]:
        if isinstance(value, str) and "=" in value:
            name, _, text = value.partition("=")
            return name.strip(), read(text)
        return "", read(value)

    def read_all(value: Any) -> ByDevice[T]:
        if isinstance(value, Mapping):
            return tuple((str(name), read(entry)) for name, entry in value.items())
        return tuple(named(entry) for entry in several(value))

    return read_all


def _rate(value: Any) -> Rate:
    if isinstance(value, str):
        return parse_rate(value)
    return Rate(read_price(value), "device_hour")


def _budget(value: Any) -> Any:
    plain = plain_value(value)
    is_number = isinstance(plain, int | float) and not isinstance(plain, bool)
    text = f"{plain}gpu-h" if is_number else plain
    if isinstance(text, str):
        Budget.parse(text)
    return text


_watts = TypeAdapter(Watts).validate_python
_Count = Annotated[int, Field(strict=True, ge=1, le=_MOST_DEVICES)]
_Batch = Annotated[
    Annotated[Count, Field(le=10**9)] | None, BeforeValidator(plain_value)
]
_Runs = Annotated[int, Field(strict=True, ge=1, le=1000)]
_Gap = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class LawArguments(Section):
    """The arguments that say which law to use, and what it learns from."""

    law: Text = "scalelab"
    learn_from: Annotated[tuple[PathText, ...], BeforeValidator(several)] = ()


class FitArguments(LawArguments):
    """The arguments of ``Run.fit``."""

    up_to: Annotated[_Count | None, BeforeValidator(plain_value)] = None


_GUESSED = by_guess(
    {
        "batch=...": "global_batch_size batch_size global_batch bs",
        "local_batch=...": "local_batch_size per_gpu_batch_size micro_batch_size",
        "gpus=[...]": "world_size num_gpus n_gpus max_gpus devices gpu_counts nodes "
        "num_nodes max_nodes",
        "deadline='4h' or max_time='4h'": "time time_limit max_hours hours "
        "max_duration timeout max_runtime",
        "max_cost='20usd' or max_gpu_hours=50": "cost max_price max_usd "
        "budget_usd max_budget money budget_gpu_hours",
        "price='2.5usd'": "price_per_hour gpu_price price_per_gpu_hour hourly_price "
        "cost_per_gpu_hour cost_per_hour",
        "target='val_acc >= 0.75'": "accuracy target_accuracy metric goal min_accuracy",
        "confidence=0.9": "probability chance certainty level",
        "select={'workload': ...}": "workload device device_name where filter",
        "max_energy='20kWh'": "energy max_kwh",
        "max_carbon='2kg'": "carbon co2 max_co2",
    }
)


def read_words(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the limits and the keys of the job among further arguments.

    Raises
    ------
    SpecError
        If one has another word here, or two say the same.
    """
    limits: dict[str, Any] = {}
    job: dict[str, Any] = {}
    same = {row.also_called: row.limit for row in RESOURCES}
    for words, value in given.items():
        name = same.get(words, words)
        if name in _GUESSED:
            raise SpecError(
                f"{words} is no argument. Write {_GUESSED[name]}.",
                code="unknown_argument",
            )
        if name in limits:
            raise SpecError(
                f"{name} is said twice. Give one of the two.", code="said_twice"
            )
        if isinstance(value, timedelta):
            value = f"{value.total_seconds()}s"

        part = job if name in Job.model_fields else limits
        part[name] = value

    return limits, job


def whole_job(job: Any, keys: Mapping[str, Any], job_of_run: Job | None) -> Any:
    """Return a job with the keys that are arguments of their own.

    The samples of an epoch are those of the run's own job where nobody says others.

    Raises
    ------
    SpecError
        If both a job and keys of it are given.
    """
    if job and keys:
        raise SpecError(
            f"job and {', '.join(keys)} both say the job. Give one of the two.",
            code="job_said_twice",
        )
    asked = keys or job
    if isinstance(asked, Mapping) and "epochs" in asked and job_of_run:
        return {"samples_per_epoch": job_of_run.samples_per_epoch, **asked}
    return asked


class RecommendArguments(LawArguments):
    """The arguments of ``Run.recommend`` other than the limits."""

    price: Annotated[ByDevice[Rate], PlainValidator(_by_device(_rate))] = Field(
        default=(), description="A price, or prices by device."
    )
    prices: PathText | None = None
    spot: Annotated[
        AskedSpot | None, BeforeValidator(lambda value: by_name(value) or None)
    ] = Field(
        default=None,
        description="What is known of interruptible nodes, such as {'price': 0.12, "
        "'interrupted_every': '6h'}.",
    )
    power: Annotated[ByDevice[float], PlainValidator(_by_device(_watts))] = Field(
        default=(), description="What a device draws in W, or powers by device."
    )
    pue: Annotated[Effectiveness | None, BeforeValidator(plain_value)] = None
    carbon_g_per_kwh: Annotated[CarbonRate | None, BeforeValidator(plain_value)] = None
    price_per_gpu_hour_usd: Annotated[Price | None, BeforeValidator(plain_value)] = None
    target: TargetText | None = None
    confidence: Annotated[Fraction, BeforeValidator(_share)] = Field(
        default=0.9, description="The probability with which all limits must hold."
    )
    max_gap: Annotated[_Gap | None, BeforeValidator(plain_value)] = Field(
        default=None, description="The most that the final metric may lose."
    )
    job: Annotated[Job | None, BeforeValidator(_job)] = None
    gpus: Annotated[tuple[_Count, ...], BeforeValidator(several)] = Field(
        default=(), description="Numbers of devices, such as [8, 16]."
    )
    select: Values = Field(
        default={}, description="Values by column, such as {'workload': 'resnet'}."
    )

    batch: _Batch = Field(default=None, description="The global batch of the job.")
    max_batch: _Batch = Field(default=None, description="The largest global batch.")
    local_batch: _Batch = Field(default=None, description="The local batch of the job.")
    runs: Annotated[_Runs | None, BeforeValidator(plain_value)] = Field(
        default=None, description="Runs of a campaign."
    )
    pool: Annotated[_Count | None, BeforeValidator(plain_value)] = Field(
        default=None, description="Devices for all runs of a campaign."
    )
    walltime: Annotated[Duration | None, BeforeValidator(plain_value)] = Field(
        default=None, description="The longest time of a job, such as '24h'."
    )
    checkpoint: Annotated[Duration | None, BeforeValidator(plain_value)] = Field(
        default=None, description="The time to write a checkpoint, such as '2min'."
    )
    between_nodes: LinkText | None = None
    accept_unmeasured: Flag = False
    no_history: Flag = False
    what_if: Flag = False
    scaling: Flag = False

    def quoted(self) -> Iterator[PriceEntry]:
        """Yield the prices that are given, as entries of a list."""
        if self.price and self.price_per_gpu_hour_usd is not None:
            raise SpecError(
                "price and price_per_gpu_hour_usd both say a price. Give one of them.",
                code="price_said_twice",
            )

        for name, rate in self.price:
            device = name or None
            yield PriceEntry(device=device, on_demand=rate.money, per=rate.per)

        amount = self.price_per_gpu_hour_usd
        if amount is not None and amount.currency not in ("", USUAL):
            raise SpecError(
                f"price_per_gpu_hour_usd='{amount}' is not in {USUAL}. Write "
                f"price='{amount}'.",
                code="price_in_other_currency",
            )

        if amount is not None:
            yield PriceEntry(on_demand=Money(amount, USUAL))


class RunsArguments(Section):
    """The argument of ``scalelab.runs``."""

    folder: PathText


class TableArguments(Section):
    """The argument of ``Run.scaling_table`` beside the question."""

    runs: Annotated[Count, BeforeValidator(plain_value)]


class DryRunArguments(Section):
    """The arguments of ``scalelab.dry_run``."""

    experiment: PathText
    site: PathText | None = None
    directory: PathText | None = None


class SweepArguments(DryRunArguments):
    """The arguments of ``scalelab.sweep``."""

    budget: Annotated[Text | None, BeforeValidator(_budget)] = None
    accept_changes: Flag = False
    retry_failed: Flag = False
    skip_check: Flag = False
    trial: Text | None = None
    adapt: PathText | None = None


class RunArguments(Section):
    """The argument of ``scalelab.load``."""

    directory: PathText
