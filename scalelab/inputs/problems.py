"""Messages about values and options, as the command line or Python has them.

``--max-batch 64`` on the command line is ``max_batch=64`` in Python. Messages hold the
option as a value, which writes itself for whoever reads: Python, unless the command
line has said that it does. Errors of pydantic become one sentence each; pydantic is
imported where something is validated, since commands that validate nothing, such as
``scalelab --help``, would take twice as long with it.
"""

from __future__ import annotations

import difflib
import shlex
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from scalelab.errors import SpecError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

_is_command_line: ContextVar[bool] = ContextVar("is_command_line", default=False)
_holds_options: ContextVar[bool] = ContextVar("holds_options", default=False)
_SHORTER = {
    "max_cost_usd": "max_cost",
    "directory": "run",
    "budget": "sweep_budget",
}


@contextmanager
def for_the_command_line() -> Iterator[None]:
    """Write options as the command line has them, in this block."""
    token = _is_command_line.set(True)
    try:
        yield
    finally:
        _is_command_line.reset(token)


class Placeholder(str):
    """A word that stands for a number, as in ``tokens_per_sample=N``."""

    __slots__ = ()
    __repr__ = str.__str__


class Option(NamedTuple):
    """An option of the command line, which is an argument in Python.

    >>> constant = Option("constant", "8", key="gpus_per_node")
    >>> print(constant, Option("axis", ["zero stage"]), Option("per_device", True))
    constant={'gpus_per_node': '8'} axis=['zero stage'] per_device=True
    >>> with for_the_command_line():
    ...     print(constant, Option("axis", ["zero stage"]), Option("per_device", True))
    --constant gpus_per_node=8 --axis 'zero stage' --per-device
    """

    name: str  # of the argument, such as max_batch; job.steps for a key of one
    # None: the name alone; True: a switch; a list: an option that may come repeatedly
    value: Any = None
    key: str = ""  # the name in an option that says NAME=VALUE

    def __str__(self) -> str:
        value = self.value
        if not _is_command_line.get():
            if value is None:
                return self.name
            return f"{self.name}={ {self.key: value} if self.key else value!r}"

        name = self.name.removeprefix("job.")
        option = f"--{_SHORTER.get(name, name).replace('_', '-')}"
        if value is None or value is True:
            return option

        text = shlex.quote(str(value[0] if isinstance(value, list) else value))
        return f"{option} {self.key}={text}" if self.key else f"{option} {text}"


class Command(NamedTuple):
    """A command of the command line with its options, which is a call in Python.

    >>> ask = Command("recommend", ("runs/vit",), {"max_time": "4h", "gpus": [8, 16]})
    >>> print(ask)
    scalelab.load('runs/vit').recommend(max_time='4h', gpus=[8, 16])
    >>> with for_the_command_line():
    ...     print(ask)
    scalelab recommend runs/vit --max-time 4h --gpus 8,16
    """

    name: str
    subjects: tuple[str, ...]
    options: Mapping[str, Any]

    def __str__(self) -> str:
        subjects = [*self.subjects]
        if _is_command_line.get():
            words = [self.name, *map(shlex.quote, subjects)]
            options = (_options(*option) for option in self.options.items())
            return " ".join(["scalelab", *words, *chain(*options)])

        given = {
            name: argument
            for name, argument in self.options.items()
            if name != "sbatch"
        }
        arguments = [f"{name}={value!r}" for name, value in given.items()]
        if self.name == "recommend":
            run = f"scalelab.load({subjects[0]!r})"
            answer = f"recommend({', '.join(arguments)})"
            if "sbatch" in self.options:
                return f"run = {run}; print(run.job_script(run.{answer}))"
            return f"{run}.{answer}"

        name = {"import": "import_table"}.get(self.name, self.name)
        return f"scalelab.{name}({', '.join([*map(repr, subjects), *arguments])})"


def _options(name: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        is_job = name == "job"
        return [
            str(
                Option(f"job.{key}", _plain(entry))
                if is_job
                else Option(name, _plain(entry), key=key)
            )
            for key, entry in value.items()
        ]

    if name == "gpus" and not isinstance(value, int):
        return [str(Option(name, ",".join(map(str, value))))]

    several = value if isinstance(value, list | tuple) else [value]
    return [str(Option(name, _plain(entry))) for entry in several]


def _plain(value: Any) -> Any:
    return f"{value:.15g}" if isinstance(value, float) else value


def key(name: str) -> str:
    """Write a key of YAML; as an option where the command line asks by it."""
    return str(Option(name)) if _holds_options.get() else name


class Call(NamedTuple):
    """A call whose arguments are checked; the command line names the option alone."""

    name: str

    def __str__(self) -> str:
        return "" if _is_command_line.get() else f"{self.name}: "

    def argument(self, path: str) -> str:
        """Return an argument, or a key in it; the job's keys are options themselves."""
        is_nameless = not path or (path == "job" and _is_command_line.get())
        return "" if is_nameless else str(Option(path))

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Write keys as options in this block, if the command line calls."""
        token = _holds_options.set(_is_command_line.get())
        try:
            yield
        finally:
            _holds_options.reset(token)


Model = TypeVar("Model", bound="BaseModel")

_RULES = {
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be one value or a list of values",
    "dict_type": "must be a mapping of keys to values",
    "mapping_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "greater_than": "must be greater than {gt:,.15g}",
    "greater_than_equal": "must be at least {ge:,.15g}",
    "less_than": "must be less than {lt:,.15g}",
    "less_than_equal": "must be at most {le:,.15g}",
    "invalid_key": "must be a word",
}
_LIST_OF_WORDS = "If it is one of several values: a list needs brackets, [a, b]."


def validated(
    model: type[Model], values: Mapping[str, Any], *, source: str | Call
) -> Model:
    """Validate values, the keys of a file or the arguments of a call.

    Raises
    ------
    SpecError
        A value is wrong. Its code is that of the refusal, or the type of pydantic's
        error, such as ``missing`` or ``greater_than``.
    """
    from pydantic import ValidationError

    try:
        with source.checked() if isinstance(source, Call) else nullcontext():
            return model.model_validate(dict(values))
    except ValidationError as error:
        raise _explain(error, model, values, source) from error


def one_of(names: Iterable[str], wrong: str) -> str:
    """Return a sentence with the valid names, and the one that a wrong name resembles.

    >>> one_of(["linear", "sqrt"], "linaer")
    "Did you mean 'linear'? Valid: linear, sqrt."
    """
    valid = list(names)
    return f"{did_you_mean(valid, wrong)}Valid: {', '.join(valid)}."


def did_you_mean(names: Iterable[str], wrong: str) -> str:
    """Return a sentence with the name that a wrong one resembles, and a space after it.

    >>> did_you_mean(["train.py", "model.py"], "trian.py"), did_you_mean(["a"], "trian")
    ("Did you mean 'train.py'? ", '')
    """
    close = difflib.get_close_matches(wrong[:80], list(names), n=1)
    return f"Did you mean {close[0]!r}? " if close else ""


def shown(value: Any) -> str:
    """Return a value as a message shows it: one line, at most 60 characters."""
    if isinstance(value, Mapping | list | tuple) and len(value) > 5:
        kind = "mapping" if isinstance(value, Mapping) else "list"
        return f"a {kind} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def bracketed(value: Any) -> str:
    """Return a hint to write a list in brackets, if values lack them.

    >>> bracketed("1, 2"), bracketed("fast"), bracketed(3)
    (' A list needs brackets: [1, 2].', '', '')
    """
    parts = value.split(",") if isinstance(value, str) else []
    words = ", ".join(part.strip() for part in parts)
    is_list = len(parts) > 1 and all(map(str.strip, parts))
    return f" A list needs brackets: [{words[:60]}]." if is_list else ""


def _explain(
    error: ValidationError,
    model: type[BaseModel],
    values: Mapping[str, Any],
    source: str | Call,
) -> SpecError:
    from scalelab.inputs.document import paragraph

    # A misspelt required key is both unknown and missing: the unknown one tells more.
    details = sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden")

    paths = [_path(item["loc"], values) for item in details]
    if isinstance(source, Call):
        paths = [source.argument(path) for path in paths]

    sentence = _sentence(details[0], paths[0], model)
    if others := [p for p in dict.fromkeys(paths) if p not in ("", paths[0])]:
        sentence += f" Also wrong: {', '.join(others[:5])}."

    where = source if isinstance(source, Call) else f"{source}: "
    refused = details[0].get("ctx", {}).get("error")
    return paragraph(
        f"{where}{sentence}", code=getattr(refused, "code", details[0]["type"])
    )


def _sentence(detail: ErrorDetails, path: str, model: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    owner, field = _owner(model, detail["loc"])
    meaning = f" {field.description}" if field and field.description else ""
    parts = _parts(field.annotation) if field else ()
    is_listed = any(typing.get_origin(part) is tuple for part in parts)
    brackets = bracketed(detail["input"]) if is_listed else ""

    if kind == "value_error":
        return f"{path}: {context['error']}" if path else str(context["error"])
    if kind == "missing":
        return f"{path} is missing.{meaning}"

    if detail["loc"][-1:] == ("[key]",):
        parent = path.removesuffix(f".{detail['loc'][-2]}.[key]")
        return (
            f"{parent}: the key {shown(detail['input'])} is no word. {_LIST_OF_WORDS}"
        )

    if kind == "extra_forbidden":
        wrong = str(detail["loc"][-1])
        hint = f" {_LIST_OF_WORDS}" if detail["input"] is None else ""
        return f"unknown key {shown(path)}. {one_of(owner.model_fields, wrong)}{hint}"

    if kind in ("enum", "literal_error"):
        valid = context["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        hint = brackets or one_of(valid, str(detail["input"]))
        return f"{path}={shown(detail['input'])} is not known. {hint.lstrip()}"

    if brackets:
        return f"{path}={shown(detail['input'])} is one text.{brackets}{meaning}"

    rule = _RULES.get(kind, "has the wrong form").format(**context)
    # A field without repr may hold secrets, and messages go to logs.
    if field is None or field.repr:
        path += f"={shown(detail['input'])}"

    return f"{path} {rule}.{meaning}"


def _path(loc: tuple[int | str, ...], values: Any) -> str:
    path, here = "", values
    for part in loc:
        if isinstance(part, int):
            if isinstance(here, list | tuple):
                path += f"[{part}]"
                here = here[part] if part < len(here) else None
        elif not part.startswith("<"):  # the tag of a discriminated union
            path += f".{part}" if path else part
            here = here.get(part) if isinstance(here, Mapping) else None
    return path


def _owner(
    model: type[BaseModel], loc: tuple[int | str, ...]
) -> tuple[type[BaseModel], FieldInfo | None]:
    owner, field = model, None
    inside: Any = None  # what the words after the field lead into
    for word in loc:
        if isinstance(word, int):
            continue
        if word[0:1] == "<":
            inside = next((a for a in _parts(inside) if _has_tag(a, word)), inside)
            continue
        if inner := model_in(inside):
            owner, field, inside = inner, None, None
        if word in owner.model_fields:
            field = owner.model_fields[word]
            inside = field.annotation

    return owner, field


def _has_tag(annotation: Any, tag: str) -> bool:
    from pydantic import Tag

    marks = getattr(annotation, "__metadata__", ())
    return any(isinstance(mark, Tag) and mark.tag == tag for mark in marks)


def _parts(annotation: Any) -> Iterator[Any]:
    # The type itself, and all that it is made of.
    yield annotation
    for argument in typing.get_args(annotation):
        yield from _parts(argument)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first model that a type is or is made of, if any."""
    from pydantic import BaseModel

    types = (part for part in _parts(annotation) if isinstance(part, type))
    return next((part for part in types if issubclass(part, BaseModel)), None)
