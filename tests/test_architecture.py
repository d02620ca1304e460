"""Rooms import only what lies before them; importing scalelab stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import scalelab

PACKAGE = Path(scalelab.__file__).parent
RUNNING = ("training", "launch", "cluster", "scheduling")
ANALYSIS = ("laws", "recommend", "report")
PLAIN = ("experiment", "records")
HEAVY_ON_RUNNING_SIDE = {"torch", "dask", "distributed", "dask_jobqueue"}

MAY_IMPORT = {
    "experiment": {"experiment"},
    "records": {"experiment", "records"},
    "training": {*PLAIN, "training"},
    "launch": {*PLAIN, "training", "launch"},
    "cluster": {*PLAIN, "training", "launch", "cluster"},
    "scheduling": {*PLAIN, *RUNNING},
    "laws": {*PLAIN, "laws"},
    "recommend": {*PLAIN, "laws", "recommend"},
    "report": {*PLAIN, "laws", "recommend", "report"},
    "sweeping": {*PLAIN, *RUNNING},
    "debugging": {*PLAIN, *RUNNING},
    "run_status": {*PLAIN},
    "detaching": {*PLAIN, "cluster", "sweeping"},
    "stopping": {*PLAIN, "cluster"},
    "session": {*PLAIN, *ANALYSIS, "run_status", "sweeping"},
    "doctor": {*PLAIN, *RUNNING},
    "site_doctor": {*PLAIN, "cluster", "doctor"},
    "site_trial": {*PLAIN, "cluster", "doctor", "site_doctor"},
}


def imported_names(module: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} imports relatively"
            names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return names


def modules(room: str) -> list[Path]:
    folder = PACKAGE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_only_what_lies_before_them(room: str) -> None:
    rooms = set(MAY_IMPORT) | {"cli"}
    for module in modules(room):
        for name in imported_names(module):
            parts = name.split(".")
            if parts[0] == "scalelab" and len(parts) > 1 and parts[1] in rooms:
                assert parts[1] in MAY_IMPORT[room], f"{module} imports {name}"


@pytest.mark.parametrize("room", [*PLAIN, *ANALYSIS])
def test_analysis_imports_nothing_of_the_running_side(room: str) -> None:
    for module in modules(room):
        roots = {name.split(".")[0] for name in imported_names(module)}
        assert not roots & HEAVY_ON_RUNNING_SIDE, f"{module} imports {roots}"


def test_no_module_outgrows_400_lines_and_no_drawers() -> None:
    drawers = {"util", "utils", "helpers", "common", "misc"}
    for module in PACKAGE.rglob("*.py"):
        assert len(module.read_text().splitlines()) <= 400, module
        assert module.stem not in drawers, module


@pytest.mark.parametrize(
    "statement", ["import scalelab", "import scalelab.cli.main as m; m.build_app()"]
)
def test_importing_is_light(statement: str) -> None:
    heavy = {"torch", "dask", "distributed", "xgboost", "pandas", "scipy", "plotly"}
    loaded = subprocess.run(
        [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert not heavy & set(loaded)
