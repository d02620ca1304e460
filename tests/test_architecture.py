"""Rooms import only what lies before them; importing scalelab stays light."""

import ast
import dataclasses
import re
import subprocess
import sys
from enum import Enum
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import is_typeddict

import pytest
from pydantic import BaseModel

import scalelab

PACKAGE = Path(scalelab.__file__).parent
GROUND = ("inputs", "kinds", "site", "experiment", "plan", "records", "reading")
RUNNING = ("launch", "cluster", "scheduling", "running", "doctor")
LAWS = ("laws", "recommend")
ANALYSIS = (*LAWS, "search", "report")
ALONE = ("errors", "_version")
HEAVY_ON_RUNNING_SIDE = {"torch", "dask", "distributed", "dask_jobqueue"}
MOST_FILES = 16
# Of all rooms but `testing`. An issue raises the statements at most by the share that
# it names, with a line in the changelog; the functions above the complexity, never.
# Shapes go down again with "One question, one table".
MOST_STATEMENTS = 35_670
MOST_SHAPES = 390
MOST_COMPLEX_FUNCTIONS = 23
COMPLEXITY, MOST_COMPLEXITY = 15, 21
MOST_LINES = 600
# Of functions of ten lines or more; well-read packages of the field have a tenth.
LEAST_BLANK_SHARE, LONG_LINES = 0.08, 10
# They say nothing of what a value holds.
NO_NAMES = {"each", "of", "own", "said", "told"}
BRANCHES = (
    *(ast.If, ast.IfExp, ast.match_case, ast.ExceptHandler),
    *(ast.For, ast.AsyncFor, ast.While, ast.comprehension),
)


# Modules that open files by themselves, and which.
OPENING = {
    "scalelab.inputs.plain_files": "the one way",
    **dict.fromkeys(
        (
            "scalelab.cluster.network",
            "scalelab.inside.scalelab_probe.ranks",
            "scalelab.launch.command.command_supervisor",
            "scalelab.launch.command.sight",
            "scalelab.launch.process_tree",
            "scalelab.launch.ranks.server",
            "scalelab.site.profile",
            "scalelab.training.rank",
        ),
        "the kernel's",
    ),
    **dict.fromkeys(
        (
            "scalelab.errors",
            "scalelab.report.html",
            "scalelab.training.workloads.introspection",
        ),
        "those of an installed package",
    ),
    **dict.fromkeys(
        (
            "scalelab.cli.init_command",
            "scalelab.doctor.site_profile",
            "scalelab.inside.scalelab_probe.stream",
            "scalelab.records.attempt",
            "scalelab.records.control.lease",
        ),
        "new ones, which must not exist or be links",
    ),
    **dict.fromkeys(
        (
            "scalelab.cli.main",
            "scalelab.cluster.batch.programs",
            "scalelab.launch.command.open_mpi",
            "scalelab.launch.scratch",
        ),
        "in memory, /dev/null, or in a directory that only this user can write",
    ),
    **dict.fromkeys(
        ("scalelab.reading.scripts.options", "scalelab.reading.scripts.script"),
        "scripts, which were found to be files",
    ),
    "scalelab.kinds.batch_systems": "the list of hosts of a batch job",
    "scalelab.records.code": "the user's code, which was found to be files",
    **dict.fromkeys(
        (
            "scalelab.training.workloads.image_folder",
            "scalelab.training.feeding.pictures",
            "scalelab.training.feeding.stream",
            "scalelab.training.workloads.cifar10",
        ),
        "data sets",
    ),
}


def up_to(rooms: tuple[str, ...], last: str) -> set[str]:
    return {*rooms[: rooms.index(last) + 1]}


# A rule may come before its room.
MAY_IMPORT = {
    "inside": set[str](),  # it runs in processes of users' programs
    **{room: {*ALONE, *up_to(GROUND, room)} for room in GROUND},
    **{room: {*ALONE, *GROUND, *up_to(RUNNING, room)} for room in RUNNING},
    "training": {*ALONE, *GROUND, "launch", "training"},
    **{room: {*ALONE, *GROUND, *up_to(LAWS, room)} for room in LAWS},
    "search": {*ALONE, *GROUND, *LAWS, "search"},
    "report": {*ALONE, *GROUND, *LAWS, "report"},
    "testing": {*ALONE, *GROUND, *RUNNING, "testing"},
    "session": {*ALONE, *GROUND, *ANALYSIS, *RUNNING, "session"},
    "cli": {*ALONE, *GROUND, "running", "doctor", "session", "cli"},
}


def name_of(module: Path) -> str:
    parts = module.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(module): module for module in PACKAGE.rglob("*.py")}


@cache
def nodes_of(module: Path) -> list[ast.AST]:
    """Return all nodes of a module's syntax tree."""
    return list(ast.walk(ast.parse(module.read_text())))


@cache
def imported_names(module: Path) -> set[str]:
    """Return what a module imports, anywhere in it and for its types too."""
    names: set[str] = set()
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_modules(module: Path) -> set[str]:
    """Return the modules of the package that a module imports."""
    found = set()
    for name in imported_names(module):
        if name.partition(".")[0] == "scalelab":
            found.add(name if name in MODULES else name.rpartition(".")[0])
    return found


def room_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else None


def test_every_room_has_a_rule() -> None:
    rooms = {room_of(name) for name in MODULES} - {None, "__main__", *ALONE}
    assert rooms <= set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_only_what_lies_before_them(room: str) -> None:
    wrong = {
        f"{name} imports {imported}"
        for name, module in MODULES.items()
        if room_of(name) == room
        for imported in imported_modules(module)
        if room_of(imported) not in MAY_IMPORT[room]
    }
    assert wrong == set()


def test_nothing_outside_knows_the_trainer() -> None:
    """It is found by its entry point, as one of another distribution would be."""
    naming = {
        name
        for name, module in MODULES.items()
        if room_of(name) != "training"
        and re.search(r"scalelab[./]training", module.read_text())
    }
    assert naming == {"scalelab"}  # the lazy public Workload


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: imported_modules(module) for name, module in MODULES.items()}
    # The package's own module names its public objects for their types only.
    del graph["scalelab"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


@pytest.mark.parametrize("room", [*GROUND, *ANALYSIS])
def test_ground_and_analysis_need_nothing_that_runs_trials(room: str) -> None:
    for name, module in MODULES.items():
        if room_of(name) == room:
            roots = {imported.split(".")[0] for imported in imported_names(module)}
            assert not roots & HEAVY_ON_RUNNING_SIDE, f"{name} imports {roots}"


def test_pytest_is_imported_by_contracts_alone() -> None:
    for name, module in MODULES.items():
        if room_of(name) != "testing":
            assert "pytest" not in imported_names(module), name


def test_no_module_outgrows_its_lines_and_no_drawers() -> None:
    drawers = {"util", "utils", "helpers", "common", "misc"}
    for name, module in MODULES.items():
        assert len(module.read_text().splitlines()) <= MOST_LINES, name
        assert module.stem not in drawers, name


def opens_files(call: ast.Call) -> bool:
    """Tell whether a call opens a file, and not by `scalelab.inputs.plain_files`."""
    match call.func:
        case ast.Name(id="open"):
            return True
        case ast.Attribute(attr="read_bytes" | "read_text"):
            return True
        case ast.Attribute(attr="write_bytes" | "write_text"):
            return True
        case ast.Attribute(value=ast.Name(id="os"), attr="open" | "truncate"):
            return True
        case ast.Attribute(value=ast.Name(id="path" | "file" | "log"), attr="open"):
            return True
    return False


def test_files_that_others_may_have_written_are_opened_in_one_way() -> None:
    opening = {
        name
        for name, module in MODULES.items()
        if room_of(name) != "testing"
        for node in nodes_of(module)
        if isinstance(node, ast.Call) and opens_files(node)
    }
    assert opening == set(OPENING)


def is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring, of whatever."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def complexity_of(function: ast.AST) -> int:
    """Return 1 + branches, loops, handlers, comprehensions and further operands."""
    complexity = 1
    for node in ast.walk(function):
        complexity += isinstance(node, BRANCHES)
        if isinstance(node, ast.comprehension):
            complexity += len(node.ifs)
        if isinstance(node, ast.BoolOp):
            complexity += len(node.values) - 1
    return complexity


def test_complexity_counts_what_a_reader_must_follow() -> None:
    text = """
def f(a, b):
    if a and b and f:
        return [c if c else d for c in a if c]
    try:
        for d in a:
            def g(): return a or b
    except OSError:
        pass
"""
    assert complexity_of(ast.parse(text)) == 1 + 3 + 3 + 1 + 1 + 1


def test_the_house_stays_within_its_budget() -> None:
    num_statements, complex_functions = 0, []
    for name, module in MODULES.items():
        if room_of(name) == "testing":
            continue

        for node in nodes_of(module):
            if isinstance(node, ast.stmt) and not is_text(node):
                num_statements += 1

            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if (complexity := complexity_of(node)) > COMPLEXITY:
                    complex_functions.append((complexity, f"{name}.{node.name}"))

    assert num_statements <= MOST_STATEMENTS
    assert len(complex_functions) <= MOST_COMPLEX_FUNCTIONS, sorted(complex_functions)
    assert max(complex_functions)[0] <= MOST_COMPLEXITY, max(complex_functions)


def shapes_of(module: str) -> set[type]:
    """Return the data shapes that a module defines, inner ones too."""
    found = set[type]()
    places = [import_module(module)]
    while places:
        for value in vars(places.pop()).values():
            if not isinstance(value, type) or value.__module__ != module:
                continue

            places.append(value)
            is_named_tuple = issubclass(value, tuple) and hasattr(value, "_fields")
            if (
                dataclasses.is_dataclass(value)
                or is_named_tuple
                or is_typeddict(value)
                or issubclass(value, BaseModel | Enum)
            ):
                found.add(value)
    return found


def test_data_shapes_stay_few() -> None:
    """A row of a list that exists is a better place for a value than a new shape."""
    shapes = set[type]()
    for name in MODULES:
        if room_of(name) not in ("testing", "inside", "__main__"):
            shapes |= shapes_of(name)
    assert len(shapes) <= MOST_SHAPES


def test_functions_have_air_between_their_thoughts() -> None:
    num_lines = num_blank = 0
    for module in MODULES.values():
        lines = module.read_text().splitlines()
        for node in nodes_of(module):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue

            body = node.body[is_text(node.body[0]) :]
            first, last = body[0].lineno if body else 0, node.end_lineno or 0
            if body and last - first + 1 >= LONG_LINES:
                num_lines += last - first + 1
                num_blank += [line.strip() for line in lines[first - 1 : last]].count(
                    ""
                )

    assert num_blank >= LEAST_BLANK_SHARE * num_lines


def test_values_are_named_by_what_they_hold() -> None:
    for name, module in MODULES.items():
        for node in nodes_of(module):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assert node.id not in NO_NAMES, f"{name}:{node.lineno}"
            if isinstance(node, ast.arg):
                assert node.arg not in NO_NAMES, f"{name}:{node.lineno}"


def test_no_folder_holds_more_files_than_a_reader_keeps_in_mind() -> None:
    for folder in {module.parent for module in MODULES.values()}:
        files = [file for file in folder.glob("*.py") if file.name != "__init__.py"]
        assert len(files) <= MOST_FILES, f"{folder} holds {len(files)} files"


@pytest.mark.parametrize(
    "statement", ["import scalelab", "import scalelab.cli.main as m; m.build_app()"]
)
def test_importing_is_light(statement: str) -> None:
    heavy = {"torch", "dask", "distributed", "xgboost", "pandas", "scipy", "plotly"}
    heavy |= {"numpy", "pydantic", "yaml", "importlib.metadata"}
    loaded = subprocess.run(
        [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert not heavy & set(loaded)
