"""Field types of experiments and site profiles, and of calls in Python."""

import math
from collections.abc import Callable, Iterator, Mapping
from os import PathLike, fspath
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.links import Link, parse_bandwidth, parse_latency
from scalelab.inputs.money import Money, known_currency, parse_money, positive_money
from scalelab.inputs.problems import shown
from scalelab.inputs.quantities import (
    parse_bytes,
    parse_duration,
    parse_power,
)
from scalelab.inputs.target import Condition, Target

MAX_DEVICES = 16_384
MAX_COUNT = 10**15
MAX_AMOUNT = 10**15

T = TypeVar("T")


class Section(BaseModel):
    """Base class of the sections that users write: immutable, unknown keys refused.

    ``shorthand`` is the JSON schema of the plain value that may stand for the mapping.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True
    )
    shorthand: ClassVar[JsonSchemaValue | None] = None

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add a section's shorthand to its JSON schema, for editors."""
        full = handler(schema)
        return {"anyOf": [cls.shorthand, full]} if cls.shorthand else full

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show only what is not as by default."""
        defaults = {n: field.default for n, field in type(self).model_fields.items()}
        for name, value in super().__repr_args__():
            if name not in defaults or value != defaults[name]:
                yield name, value


def whole(value: Any) -> Any:
    """Read 1e9 as the whole number it is; leave everything else to the field."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


def plain_value(value: Any) -> Any:
    """Read an array, a series, a range or a set as the plain values it holds."""
    if isinstance(value, range | set | frozenset):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else value


def several(value: Any) -> Any:
    """Read one value as a list of one, and None as an empty one."""
    plain = plain_value(value)
    if plain is None:
        return ()
    return plain if isinstance(plain, list | tuple) else (plain,)


def by_name(value: Any) -> Any:
    """Read the values of a mapping as plain ones, and None as an empty mapping."""
    if not isinstance(value, Mapping):
        return {} if value is None else value
    return {name: plain_value(entry) for name, entry in value.items()}


def _path(value: Any) -> str:
    if isinstance(value, str | PathLike) and isinstance(path := fspath(value), str):
        if path and "\0" not in path:
            return path
    raise SpecError(
        f"{shown(value)} is no path. Write one such as 'runs/digits'.",
        code="not_a_path",
    )


def _scalar(value: Any) -> Scalar:
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{value} is not a finite number.", code="not_finite")
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        raise SpecError(
            f"whole numbers go up to {MAX_COUNT:.0e}.", code="number_too_large"
        )
    if isinstance(value, str | int | float) and value != "":
        return value
    raise SpecError(
        f"{shown(value)} is not a text, a number, true or false.", code="not_a_scalar"
    )


def _json(value: Any) -> Any:
    if value is None or value == "":
        return value
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _json(item) for key, item in value.items()}
    return _scalar(value)


def _environment_value(value: Any) -> str:
    if isinstance(value, bool):
        raise SpecError(
            f"{str(value).lower()} is ambiguous in an environment variable. Write 0, 1 "
            "or the quoted text.",
            code="ambiguous_variable",
        )

    # The value may be a secret, and messages go to logs.
    if not isinstance(value, str | int | float):
        raise SpecError(
            "the value of an environment variable is a text or a number.",
            code="not_a_variable",
        )

    text = "" if value == "" else str(_scalar(value))
    if "\0" in text:
        raise SpecError(
            "an environment variable cannot hold a NUL character.",
            code="nul_in_variable",
        )

    return text


def _read_by(parse: Callable[[str], Any], otherwise: str) -> PlainValidator:
    # otherwise: what is wrong with a value that is no text
    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise SpecError(f"{shown(value)} {otherwise}", code="not_text")
        return parse(value)

    return PlainValidator(read)


def _amount(parse: Callable[[str], float], noun: str, examples: str) -> PlainValidator:
    def read(value: Any) -> float:
        if isinstance(value, str):
            return parse(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpecError(
                f"{shown(value)} is not a {noun}. Write {examples}.",
                code="not_a_quantity",
            )

        if not 0 < value < MAX_AMOUNT:
            raise SpecError(
                f"{shown(value)} is not a {noun}: it must be greater than 0 and less "
                f"than {MAX_AMOUNT:.0e}.",
                code="quantity_out_of_range",
            )

        return float(value)

    return PlainValidator(read)


def read_price(value: Any) -> Money:
    """Read a number or a text as a price."""
    if isinstance(value, str):
        return parse_money(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(
            f"{shown(value)} is not a price. Write 2.5 or '2.5usd'.", code="not_a_price"
        )
    return positive_money(value, getattr(value, "currency", ""))


class _OneOrMany:
    # A single value makes a list of one, duplicates are dropped.

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            self._listed, handler(source)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        many = {**handler(schema), "minItems": 1}
        return {"anyOf": [many["items"], many]}

    @staticmethod
    def _listed(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return (value,)
        if not value:
            raise SpecError("is empty. Write at least one value.", code="empty_list")
        # 1, 1.0 and true are equal for Python, not for whoever wrote them.
        return tuple({(type(item), repr(item)): item for item in value}.values())


OneOrMany = Annotated[tuple[T, ...], _OneOrMany()]
"""One value, or a list of them."""

Count = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT), BeforeValidator(whole)]
CountOrZero = Annotated[
    int, Field(strict=True, ge=0, le=MAX_COUNT), BeforeValidator(whole)
]
LocalBatchLimit = Annotated[int, Field(strict=True, ge=1, le=2**20)]


class Range(Section):
    """Whole numbers from one to another: both, and the doublings between them.

    >>> Range.model_validate({"from": 3, "to": 20}).doublings
    (3, 6, 12, 20)
    """

    first: Count = Field(alias="from", description="The smallest.")
    last: Count = Field(alias="to", description="The largest.")

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if self.first > self.last:
            raise SpecError(
                f"from {self.first} to {self.last} is no range. Write the smaller "
                "first.",
                code="empty_range",
            )
        return self

    @property
    def doublings(self) -> tuple[int, ...]:
        """The numbers that the range stands for."""
        powers = range((self.last // self.first).bit_length())
        doubled = [self.first << power for power in powers]
        return (*(size for size in doubled if size < self.last), self.last)


def _spread(value: Any) -> Any:
    if isinstance(value, Mapping) and not {"from", "to"}.isdisjoint(value):
        for name in value.keys() - {"from", "to"}:
            raise SpecError(
                f"a range has no {shown(name)}: {{from: 1, to: 8}} stands for its ends "
                "and the doublings between them. List other numbers: [1, 4, 7].",
                code="unknown_key_of_range",
            )
        return Range.model_validate(value).doublings
    return value


class _OrRange:
    # A list of whole numbers, or a range that stands for one

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_spread, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler(schema)
        return {"anyOf": [*found.get("anyOf", [found]), Range.model_json_schema()]}


OrRange = _OrRange()
"""Beside numbers, ``{from: 1, to: 64}`` is taken, too: its ends and doublings."""

DeviceCount = Annotated[int, Field(strict=True, ge=1, le=MAX_DEVICES)]
Seed = Annotated[int, Field(strict=True, ge=0, le=2**32 - 1)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e18)]
Fraction = Annotated[float, Field(strict=True, gt=0, lt=1)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=8_000)]
AxisName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Word = Annotated[str, StringConstraints(strict=True, pattern=r"^\S{1,500}$")]
OptionValue = Annotated[
    Scalar,
    PlainValidator(_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
Json = Annotated[Any, PlainValidator(_json), WithJsonSchema({})]
EnvironmentValue = Annotated[
    str,
    PlainValidator(_environment_value),
    WithJsonSchema({"type": ["string", "number"]}),
]
PathText = Annotated[str, PlainValidator(_path)]
PlainCount = Annotated[Count | None, BeforeValidator(plain_value)]
Names = Annotated[tuple[Text, ...], BeforeValidator(several)]
Texts = Annotated[dict[Text, Text], BeforeValidator(by_name)]
Values = Annotated[dict[Text, OptionValue], BeforeValidator(by_name)]
_TEXT = WithJsonSchema({"type": "string"})
_NUMBER_OR_TEXT = WithJsonSchema({"type": ["number", "string"]})
Duration = Annotated[
    float,
    _read_by(parse_duration, "has no unit. Write '4h', '90min', '1h30min' or '30s'."),
    _TEXT,
]
_WORDS_OF_LENGTH = dict(zip(("auto", "none"), (math.inf, 0.0), strict=True))
LongTrial = Annotated[
    float,
    _read_by(
        lambda text: (
            _WORDS_OF_LENGTH[text] if text in _WORDS_OF_LENGTH else parse_duration(text)
        ),
        "has no unit. Write auto, none, or a duration such as '40s'.",
    ),
    _TEXT,
]
Size = Annotated[
    int, _read_by(parse_bytes, "has no unit. Write '16GB' or '512MB'."), _TEXT
]
Bandwidth = Annotated[
    float,
    _read_by(parse_bandwidth, "has no unit. Write '100Gbit/s' or '12.5GB/s'."),
    _TEXT,
]
Latency = Annotated[
    float, _read_by(parse_latency, "has no unit. Write '5us' or '0.2ms'."), _TEXT
]
Price = Annotated[
    Money, PlainValidator(read_price), PlainSerializer(str), _NUMBER_OR_TEXT
]
Watts = Annotated[
    float, _amount(parse_power, "power", "400 or '400W'"), _NUMBER_OR_TEXT
]
Effectiveness = Annotated[float, Field(strict=True, ge=1, lt=10)]
CarbonRate = Annotated[float, Field(strict=True, ge=0, lt=10_000)]
Currency = Annotated[str, _read_by(known_currency, "is no currency."), _TEXT]
TargetText = Annotated[
    Target,
    _read_by(
        Target.parse,
        "is not a target. Write a metric, >= or <=, and a number, such as 'val_loss <= "
        "2.9'.",
    ),
    PlainSerializer(str, return_type=str),
    _TEXT,
]
LinkText = Annotated[
    Link, _read_by(Link.parse, "is no link. Write one such as '100Gbit/s 5us'."), _TEXT
]
ConditionText = Annotated[
    Condition,
    _read_by(
        Condition.parse,
        "is not a condition. Write a metric, one of >=, <=, > and <, and a number, "
        "such as 'val_acc >= 0.9'.",
    ),
    PlainSerializer(str, return_type=str),
    _TEXT,
]
