"""A YAML reader that returns plain values and reads no text as another type.

Numbers, booleans and null follow the core schema of YAML 1.2: ``1e-3`` is a number,
``1:30`` and ``no`` are text. Whatever could mean two things is refused: repeated keys,
aliases, tags, infinities.
"""

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml

from scalelab.errors import SpecError
from scalelab.inputs.plain_files import opened_by_name

Scalar = str | int | float | bool  # a plain value of YAML or JSON

MAX_BYTES = 262_144
MAX_DEPTH = 20
MAX_DIGITS = 30
MAX_MESSAGE = 1_000

_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+(_[0-9]+)*", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)"
        r"|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012  yaml's own, emptied
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            _refuse("aliases (*name) are not read; write the values out", self)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            _refuse(f"more than {MAX_DEPTH} levels of nesting", self)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def mapping(self, node: yaml.MappingNode) -> dict[Hashable, Any]:
        values: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                _refuse("a key must be a word", key_node)
            key = self.construct_object(key_node)
            if key in values:
                _refuse(f"the key {key!r} stands there twice; keep one", key_node)
            values[key] = self.construct_object(value_node, deep=True)
        return values

    def integer(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MAX_DIGITS:
            _refuse(f"a number of more than {MAX_DIGITS} digits", node)
        try:
            return int(node.value)
        except ValueError:
            _refuse(f"{node.value!r} is not a whole number", node)

    def floating(self, node: yaml.ScalarNode) -> float:
        with suppress(ValueError):
            if math.isfinite(value := float(node.value)):
                return value
        _refuse(f"{node.value[:MAX_DIGITS]} is not a finite number", node)

    def truth(self, node: yaml.ScalarNode) -> bool:
        return bool(node.value.lower() == "true")

    def unknown(self, node: yaml.Node) -> NoReturn:
        _refuse(f"the tag {node.tag} is not read; leave it out", node)


def _refuse(problem: str, at: Any) -> NoReturn:
    place = at if isinstance(at, yaml.Node) else at.peek_event()
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


for _name, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(
        _TAG + _name, re.compile(f"(?:{_pattern})\\Z", re.ASCII), _first
    )
_Loader.yaml_constructors = {
    _TAG + "map": _Loader.mapping,
    _TAG + "seq": _Loader.construct_yaml_seq,
    _TAG + "str": _Loader.construct_yaml_str,
    _TAG + "int": _Loader.integer,
    _TAG + "float": _Loader.floating,
    _TAG + "bool": _Loader.truth,
    _TAG + "null": _Loader.construct_yaml_null,
    None: _Loader.unknown,
}


def read_document(path: Path) -> str:
    """Return the text of a file the user wrote."""
    try:
        with opened_by_name(path, MAX_BYTES) as file:
            content = file.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise paragraph(
            f"{path} cannot be read: {reason}. Check the path.", code="unreadable"
        ) from error

    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise paragraph(
            f"{path} is not UTF-8 text: byte {error.start} is "
            f"0x{content[error.start]:02x}. Save it as UTF-8.",
            code="not_utf8",
        ) from error


def parse_document(text: str, *, source: str) -> dict[str, Any]:
    """Return the mapping that a YAML text holds."""
    values = _loaded(text, source)
    if values is None:
        raise paragraph(
            f"{source} is empty. Write at least one 'key: value' line.",
            code="empty_document",
        )

    if not isinstance(values, dict):
        raise paragraph(
            f"{source} holds a {type(values).__name__}. It must be a mapping: "
            "'key: value' lines.",
            code="not_a_mapping",
        )

    for key in values:
        if not isinstance(key, str):
            raise paragraph(
                f"{source}: the key {key!r} is not a word. Rename it.",
                code="not_a_word",
            )

    return values


def parse_list(text: str, *, source: str) -> list[Any]:
    """Return the list that a YAML text holds."""
    values = _loaded(text, source)
    if not isinstance(values, list):
        kind = "nothing" if values is None else f"a {type(values).__name__}"
        raise paragraph(
            f"{source} holds {kind}. It must be a list: each entry begins with '- '.",
            code="not_a_list",
        )
    return values


def _loaded(text: str, source: str) -> Any:
    if len(text) > MAX_BYTES:
        raise paragraph(
            f"{source} is longer than {MAX_BYTES} characters.", code="document_too_long"
        )
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise paragraph(
            f"{source} is not valid YAML: {_reason(error)}", code="not_yaml"
        ) from error


def with_values(text: str, path: Sequence[str | int], values: Mapping[str, str]) -> str:
    """Return a YAML text with other values in one of its mappings.

    Everything else stays as it was written, comments too.
    """
    found = yaml.compose(text, Loader=_Loader)
    for part in path:
        found = _child(found, part)

    places = [
        (node.start_mark.index, node.end_mark.index, values[name.value])
        for name, node in (found.value if isinstance(found, yaml.MappingNode) else ())
        if name.value in values
    ]
    for start, end, value in reversed(places):
        end = start + len(text[start:end].rstrip())  # a block's text ends in a blank
        quoted = value.replace("'", "''")
        text = f"{text[:start]}'{quoted}'{text[end:]}"

    return text


def _child(node: yaml.Node | None, part: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return dict(enumerate(node.value)).get(part)
    return None


def paragraph(message: str, *, code: str = "") -> SpecError:
    """Return an error whose message is one paragraph of bounded length."""
    words = " ".join(message.split())
    if len(words) > MAX_MESSAGE:
        words = f"{words[: MAX_MESSAGE - 4]} ..."
    return SpecError("".join(c if c.isprintable() else "?" for c in words), code=code)


def _reason(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{error}."
    mark, context = error.problem_mark, f"{error.context}, " if error.context else ""
    remedy = " Indent with spaces." if "\\t" in str(error.problem) else ""
    place = f"(line {mark.line + 1}, column {mark.column + 1})"
    return f"{context}{error.problem} {place}.{remedy}"
