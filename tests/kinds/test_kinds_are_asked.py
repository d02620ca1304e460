"""No room compares the name of a kind: it asks the row."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import scalelab
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.kinds.launchers import LAUNCHERS
from scalelab.kinds.registry import Registry
from scalelab.kinds.resources import RESOURCES
from scalelab.kinds.sources import SOURCES
from scalelab.kinds.strategies import STRATEGIES
from scalelab.training.engines.paths import engine_path

PACKAGE = Path(scalelab.__file__).parent
REGISTRIES: tuple[tuple[Registry[Any], int], ...] = (
    (STRATEGIES, 2),
    (LAUNCHERS, 2),
    (BATCH_SYSTEMS, 3),
    (RESOURCES, 2),
    (SOURCES, 2),
)
"""Each registry, and how many files may name one of its rows."""
ROWS = [
    pytest.param(registry, row, most, id=f"{registry.key}={row.name}")
    for registry, most in REGISTRIES
    for row in registry.built_in
]
ALSO = {
    "none": {
        "scalelab.recommend.knowledge",  # no node group
        "scalelab.recommend.answer.sentences",  # a learning-rate rule
        "scalelab.session.dry_run",
        "scalelab.training.engines.ddp",  # a format of gradients
    },
    "pipeline": {  # a degree of the layout of a command
        "scalelab.experiment.command_values",
        "scalelab.experiment.sections",
        "scalelab.inputs.layout",
        "scalelab.reading.tables.completing",
    },
    "time": {
        "scalelab.doctor.site_trial",  # the clock of a node
        "scalelab.cluster.survey.visit",
        "scalelab.records.control.events",  # when an event was
        "scalelab.records.observations",  # a type of column
        "scalelab.reading.tables.values",
        "scalelab.recommend.answer.text",  # the heading of a column
        "scalelab.site.slurm",  # an option of sbatch
    },
}
"""Modules in which a name means something else."""
ENGINES_BY_NAME = "scalelab.training.engines.paths"


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module."""
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): ast.parse(
            path.read_text()
        )
        for path in PACKAGE.rglob("*.py")
    }


@cache
def comparisons() -> dict[str, tuple[tuple[int, str], ...]]:
    """Return the texts that every module compares, and where."""
    return {name: tuple(compared(tree)) for name, tree in modules().items()}


def own_modules(registry: Registry[Any], row: Any) -> set[str]:
    """Return the modules that a row is written in and those that it names by path."""
    fields = [getattr(row, name) for name in dir(row) if not name.startswith("_")]
    paths = [field for field in fields if isinstance(field, str)]
    if registry is STRATEGIES:
        paths.append(engine_path(row.name))
    named = {path.partition(":")[0] for path in paths if re.match(r"[\w.]+:\w", path)}
    return {table_of(registry, row), *named}


def table_of(registry: Registry[Any], row: Any) -> str:
    """Return the module in which a built-in row is written."""
    table = registry.group.replace("scalelab.", "scalelab.kinds.")
    (found,) = {
        name
        for name, tree in modules().items()
        if f"{name}.".startswith(f"{table}.")
        for node in ast.walk(tree)
        if is_named(node, row.name)
    }
    return found


def is_named(node: ast.AST, name: str) -> bool:
    """Tell whether a node gives a row its name, in its class or where it is made."""
    match node:
        case ast.keyword(arg="name", value=ast.Constant(value=value)):
            return value == name
        case ast.Assign(targets=[ast.Name(id="name")], value=ast.Constant(value=value)):
            return value == name
    return False


def texts(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def compared(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts that a module compares, matches or uses as keys, and where."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for text in texts(node):
                yield node.lineno, text
        elif isinstance(node, ast.MatchValue):
            for text in texts(node):
                yield node.lineno, text
        elif isinstance(node, ast.Dict):
            for key in filter(None, node.keys):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.lineno, key.value
        elif isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.Constant) and isinstance(
                node.slice.value, str
            ):
                yield node.lineno, node.slice.value


def checked(tree: ast.AST) -> Iterator[tuple[int, str, set[str]]]:
    """Yield where instances are told apart, how, and the names that stand there."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass")):
                yield node.lineno, "class", {name.id for name in names(node)}
            case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                sides = (node.left, *node.comparators)
                found = {side.id for side in sides if isinstance(side, ast.Name)}
                yield node.lineno, "identity", found


@cache
def checks() -> dict[str, tuple[tuple[int, str, set[str]], ...]]:
    """Return where every module tells instances apart, see :func:`checked`."""
    return {name: tuple(checked(tree)) for name, tree in modules().items()}


def names(node: ast.AST) -> Iterator[ast.Name]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Name))


@pytest.mark.parametrize(("registry", "row", "most"), ROWS)
def test_only_its_own_files_compare_a_name(
    registry: Registry[Any], row: Any, most: int
) -> None:
    own = own_modules(registry, row) | ALSO.get(row.name, set()) | {ENGINES_BY_NAME}
    elsewhere = [
        f"{name}:{line}"
        for name, found in comparisons().items()
        if name not in own
        for line, text in found
        if text == row.name
    ]
    assert elsewhere == []


@pytest.mark.parametrize(("registry", "row", "most"), ROWS)
def test_few_files_name_a_row(registry: Registry[Any], row: Any, most: int) -> None:
    own = own_modules(registry, row)
    assert own <= set(modules())
    assert len(own) <= most
    print(f"{registry.key}={row.name}: {', '.join(sorted(own))}")


@pytest.mark.parametrize(("registry", "row", "most"), ROWS)
def test_no_room_tells_rows_apart_by_their_objects_or_classes(
    registry: Registry[Any], row: Any, most: int
) -> None:
    table = table_of(registry, row)
    own = own_modules(registry, row)
    classes = {
        node.name
        for name in own - {table}
        for node in modules()[name].body
        if isinstance(node, ast.ClassDef)
    }
    objects = {
        name.id
        for node in modules()[table].body
        if isinstance(node, ast.Assign)
        for name in names(node)
        if name.id.isupper() and isinstance(name.ctx, ast.Store)
    }
    elsewhere = [
        f"{name}:{line}"
        for name, found in checks().items()
        if name not in own
        for line, how, words in found
        if words & (classes if how == "class" else objects)
    ]
    assert elsewhere == []
