"""Error messages about values: pydantic's errors as one sentence each.

Pydantic is imported where something is validated: commands that validate nothing, such
as ``scalelab --help``, would take twice as long with it.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from scalelab.errors import SpecError
from scalelab.inputs.wording import Call

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

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
    """Validate values, the keys of a file or the arguments of a call."""
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
    return paragraph(f"{where}{sentence}")


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
