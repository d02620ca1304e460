"""Runs that an earlier ScaleLab wrote are read, answered from and resumed.

``data/runs`` holds them as they were written, but for what may be missing: caches,
reports and empty logs. The answers beside them are of the same version.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from warm_interpreter import WarmInterpreter

import scalelab
from scalelab.cli import main
from scalelab.records.columns import SCHEMA_VERSION

DATA = Path(__file__).parent / "data"
RUNS = ("command", "digits", "emulated", "table")
SWEPT = ("command", "digits", "emulated")
JOB = ("--samples", "10000000")
QUESTIONS = {
    "command": ("command",),
    "digits": ("digits",),
    "digits_target": ("digits", "--target", "val_acc >= 0.7"),
    "emulated": ("emulated",),
    "table": ("table", *JOB),
    "table_limits": (
        *("table", *JOB, "--gpus", "24"),
        *("--max-time", "2h", "--max-cost", "50usd", "--price", "2usd"),
    ),
}
RELATIVE = 1e-6
ENDED = {"command": 1}  # two of its trials had failed and are not tried again
MISSING = {"8c211180ec1e", "b8d960f1c4db", "7d683901e63f"}
PATIENCE_S = 100


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with copies of the runs, and no site profiles."""
    shutil.copytree(DATA / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command prints that ends well."""
    capsys.readouterr()
    code = main.run(arguments)
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    return printed.out


def differences(golden: Any, found: Any, where: str = "$") -> list[str]:
    """Return where two JSON values differ by more than rounding."""
    if isinstance(golden, dict) and isinstance(found, dict):
        if list(golden) != list(found):
            return [f"{where}: {list(golden)} != {list(found)}"]
        pairs = [(f"{where}.{name}", golden[name], found[name]) for name in golden]
        return [each for at, a, b in pairs for each in differences(a, b, at)]
    if isinstance(golden, list) and isinstance(found, list):
        if len(golden) != len(found):
            return [f"{where}: {len(golden)} != {len(found)} values"]
        pairs = [
            (f"{where}[{i}]", a, b)
            for i, (a, b) in enumerate(zip(golden, found, strict=True))
        ]
        return [each for at, a, b in pairs for each in differences(a, b, at)]
    if is_number(golden) and is_number(found):
        is_close = math.isclose(golden, found, rel_tol=RELATIVE, abs_tol=1e-12)
        return [] if is_close else [f"{where}: {golden} != {found}"]
    return [] if golden == found else [f"{where}: {golden!r} != {found!r}"]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def observed(run: str) -> dict[str, Any]:
    """Return the golden columns of a run's observations, as plain JSON values."""
    golden = json.loads((DATA / "observations" / f"{run}.json").read_text())
    frame = scalelab.load(f"runs/{run}").observations[golden["columns"]]
    rows = json.loads(frame.to_json(orient="values", double_precision=15))
    return {"columns": golden["columns"], "rows": rows}


def rows_by_trial(run: str) -> dict[str, list[Any]]:
    found = observed(run)
    trial_id = found["columns"].index("trial_id")
    return {row[trial_id]: row for row in found["rows"]}


def files(folder: Path) -> dict[str, bytes]:
    """Return the records in a folder by name; what is derived of them is left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "cache" not in path.parts
    }


def trial_ids(run: Path) -> set[str]:
    return {path.name for path in (run / "trials").iterdir()}


@pytest.mark.parametrize("run", RUNS)
def test_observations_are_as_they_were(here: Path, run: str) -> None:
    golden = json.loads((DATA / "observations" / f"{run}.json").read_text())
    assert differences(golden, observed(run)) == []


@pytest.mark.parametrize("run", SWEPT)
def test_attempts_say_the_same_without_their_index(here: Path, run: str) -> None:
    Path("runs", run, "ledger.jsonl").unlink()
    golden = json.loads((DATA / "observations" / f"{run}.json").read_text())
    found = observed(run)
    names = golden["columns"]
    for row in golden["rows"]:  # which are made again, in the columns of today
        row[names.index("schema_version")] = SCHEMA_VERSION
    for each in (golden, found):
        each["rows"].sort(key=lambda row: row[names.index("trial_id")])
    assert differences(golden, found) == []


@pytest.mark.parametrize("run", RUNS)
def test_the_status_is_as_it_was(
    here: Path, capsys: pytest.CaptureFixture[str], run: str
) -> None:
    golden = (DATA / "status" / f"{run}.txt").read_text()
    assert ask(capsys, "status", f"runs/{run}") == golden


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_is_as_it_was(
    here: Path, capsys: pytest.CaptureFixture[str], question: str
) -> None:
    run, *options = QUESTIONS[question]
    answer = json.loads(ask(capsys, "recommend", f"runs/{run}", "--json", *options))
    golden = json.loads((DATA / "answers" / f"{question}.json").read_text())
    same = {name: answer.get(name) for name in golden}  # keys are added, none goes
    assert differences(golden, same) == []


def test_reading_changes_no_record(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in RUNS:
        ask(capsys, "status", f"runs/{run}")
        assert len(scalelab.load(f"runs/{run}").observations) > 0
    assert files(here / "runs") == files(DATA / "runs")


def test_a_difference_is_seen() -> None:
    golden = {"a": [1.0, "b", None, True], "c": {"d": 2}}
    assert (
        differences(golden, {"a": [1.0 + 1e-9, "b", None, True], "c": {"d": 2}}) == []
    )
    for other in (
        {"a": [1.0 + 1e-5, "b", None, True], "c": {"d": 2}},
        {"a": [1.0, "B", None, True], "c": {"d": 2}},
        {"a": [1.0, "b", 0.0, True], "c": {"d": 2}},
        {"a": [1.0, "b", None, 1], "c": {"d": 3}},
        {"a": [1.0, "b", None], "c": {"d": 2}},
        {"a": [1.0, "b", None, True], "c": {"e": 2}},
    ):
        assert len(differences(golden, other)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, marks=() if run == "command" else pytest.mark.repetition)
        for run in SWEPT
    ],
)
def test_a_run_that_is_done_is_found_done(
    here: Path, run: str, warm: WarmInterpreter
) -> None:
    folder = here / "runs" / run
    shutil.copy(folder / "experiments" / "0001.yaml", f"{run}.yaml")
    for script in folder.glob("code/*/*.py"):
        shutil.copy(script, here)
    ended = warm("sweep", f"{run}.yaml", timeout_s=PATIENCE_S)
    assert ended.returncode == ENDED.get(run, 0), ended.stderr
    golden, now = files(DATA / "runs" / run), files(folder)
    assert {name: now.get(name) for name in golden} == golden
    assert [name for name in now.keys() - golden.keys() if "trials/" in name] == []


@pytest.mark.repetition
@pytest.mark.slow
def test_a_longer_experiment_runs_only_what_is_missing(
    here: Path, warm: WarmInterpreter
) -> None:
    folder, golden = here / "runs" / "emulated", DATA / "runs" / "emulated"
    shutil.copy(DATA / "emulated_longer.yaml", here)
    before = rows_by_trial("emulated")
    ended = warm("sweep", "emulated_longer.yaml", timeout_s=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    assert trial_ids(folder) - trial_ids(golden) == MISSING
    trials = files(folder / "trials")
    old = {name: trials[name] for name in trials if name[:12] not in MISSING}
    assert old == files(golden / "trials")
    after = rows_by_trial("emulated")
    assert after.keys() == before.keys() | MISSING
    assert {trial_id: after[trial_id] for trial_id in before} == before
    frame = scalelab.load(folder).observations
    new = frame[frame["trial_id"].isin(MISSING)]
    assert new["outcome"].tolist() == ["completed"] * len(MISSING)
    assert sorted(new["world_size"]) == [1, 3, 3]
