"""Whatever a user gets wrong: exit code 2, one paragraph, nothing left on disk."""

import itertools
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_experiments import COMMAND, VALID, bad_experiments, bad_files
from bad_tables import bad_tables
from measured_runs import measured_run

SEED = 20261122
TABLES = bad_tables(SEED)


@pytest.fixture
def project(here: Path) -> Path:
    """Return a working directory that has the code the experiments name."""
    (here / "train.py").write_text("")
    (here / "vit").mkdir()
    (here / "vit" / "model.py").write_text("")
    return here


def on_disk(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("values", VALID, ids=["workload", "command"])
def test_what_is_broken_below_was_valid(
    scalelab: Callable[..., Any], project: Path, values: dict[str, Any]
) -> None:
    Path("good.yaml").write_text(yaml.safe_dump(values))
    assert scalelab("plan", "good.yaml").code == 0


def refuse_experiments(
    scalelab: Callable[..., Any], folder: Path, contents: Iterator[bytes]
) -> int:
    commands = itertools.cycle([("plan",), ("sweep", "--yes"), ("plan", "--run", "r")])
    path = folder / "bad.yaml"
    path.write_bytes(b"")
    before, count = on_disk(folder), 0
    for content, options in zip(contents, commands, strict=False):
        path.write_bytes(content)
        scalelab(*options, "bad.yaml").assert_refused()
        assert on_disk(folder) == before
        count += 1
    return count


@pytest.mark.slow
def test_a_hundred_bad_experiments(scalelab: Callable[..., Any], project: Path) -> None:
    contents = (text.encode() for _, text in bad_experiments(100, seed=SEED))
    assert refuse_experiments(scalelab, project, contents) == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.repetition) for n in range(1, 6))]
)
def test_six_hundred_bad_experiments(scalelab: Any, project: Path, part: int) -> None:
    experiments = bad_experiments(100, seed=SEED + 1 + part)
    contents = (text.encode() for _, text in experiments)
    assert refuse_experiments(scalelab, project, contents) == 100


@pytest.mark.slow
def test_files_that_are_no_experiment(
    scalelab: Callable[..., Any], project: Path
) -> None:
    contents = (content for _, content in bad_files(50, seed=SEED))
    assert refuse_experiments(scalelab, project, contents) == 50


@pytest.mark.slow
@pytest.mark.repetition
def test_hundreds_of_bad_tables(scalelab: Any, here: Path) -> None:
    assert len(TABLES) > 300
    refuse_tables(scalelab, here, TABLES)


@pytest.mark.slow
def test_some_bad_tables(scalelab: Callable[..., Any], here: Path) -> None:
    refuse_tables(scalelab, here, TABLES[::15])


def refuse_tables(scalelab: Callable[..., Any], folder: Path, tables: Any) -> None:
    for table in tables:
        path = folder / f"table{table.suffix}"
        path.write_bytes(table.content)
        columns = [
            f"--column={ours}={theirs}" for ours, theirs in table.mapping.items()
        ]
        scalelab("import", path, "run", *columns).assert_refused()
        assert on_disk(folder) == {path.name}, table.name
        path.unlink()


RUN_COMMANDS = (("recommend",), ("report",), ("status",), ("recommend", "--json"))


@pytest.fixture(scope="module")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured_run(tmp_path_factory.mktemp("good") / "run").directory


def absent(run: Path) -> None:
    shutil.rmtree(run)


def a_file(run: Path) -> None:
    shutil.rmtree(run)
    run.write_text("not a directory")


def empty(run: Path) -> None:
    shutil.rmtree(run)
    run.mkdir()


def no_experiment(run: Path) -> None:
    shutil.rmtree(run / "experiments")


def header_is_a_directory(run: Path) -> None:
    (run / "run.json").unlink()
    (run / "run.json").mkdir()


def ledger_is_a_directory(run: Path) -> None:
    (run / "ledger.jsonl").unlink()
    (run / "ledger.jsonl").mkdir()


def header(**changes: Any) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        values = json.loads((run / "run.json").read_bytes())
        (run / "run.json").write_text(json.dumps({**values, **changes}))

    return spoil


def header_text(text: bytes) -> Callable[[Path], None]:
    return lambda run: (run / "run.json").write_bytes(text) and None


def newer_row(run: Path) -> None:
    ledger = (run / "ledger.jsonl").read_text()
    newer = ledger.replace('"schema_version":4', '"schema_version":99')
    assert newer != ledger
    (run / "ledger.jsonl").write_text(newer)


BROKEN_RUNS = [
    absent,
    a_file,
    empty,
    no_experiment,
    header_is_a_directory,
    ledger_is_a_directory,
    newer_row,
    header(schema_version=99),
    header(schema_version="one"),
    header(schema_version=None),
    header(versions=[]),
    header(versions=None),
    header(versions=[{}]),
    header(versions="0001.yaml"),
    header(versions=[{"experiment": 1, "meaning": {}}]),
    header(versions=[{"experiment": "0001.yaml", "meaning": {}, "superseded": 3}]),
    header_text(b""),
    header_text(b"{"),
    header_text(b"[]"),
    header_text(b"null"),
    header_text(b"\xff\xfe\0"),
    header_text(b"\x80\x04\x95pickle"),
]


@pytest.mark.slow
@pytest.mark.parametrize("spoil", BROKEN_RUNS)
def test_broken_runs(
    scalelab: Callable[..., Any], here: Path, good_run: Path, spoil: Callable[..., Any]
) -> None:
    run = here / "run"
    shutil.copytree(good_run, run)
    spoil(run)
    before = on_disk(here)
    for command in RUN_COMMANDS:
        if spoil is no_experiment and command == ("status",):
            continue
        scalelab(*command, "run").assert_refused()
    assert on_disk(here) - before <= {"run/cache", "run/cache/observations.parquet"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "ledger.jsonl"])
def test_cut_records_never_end_in_a_traceback(
    scalelab: Callable[..., Any], here: Path, good_run: Path, name: str
) -> None:
    draw = random.Random(SEED)
    whole = (good_run / name).read_bytes()
    for _ in range(10):
        run = here / "run"
        shutil.copytree(good_run, run)
        cut = draw.randrange(len(whole))
        spoilt = draw.choice([whole[:cut], whole[:cut] + b"\0\xff" + whole[cut + 3 :]])
        (run / name).write_bytes(spoilt)
        ended = scalelab("status", "run")
        if ended.code:
            ended.assert_refused()
        shutil.rmtree(run)


def test_a_run_of_something_else_is_not_swept_into(
    scalelab: Callable[..., Any], here: Path, good_run: Path
) -> None:
    text = yaml.safe_dump({**VALID[0], "name": "run"})
    Path("experiment.yaml").write_text(text)
    shutil.copytree(good_run, "runs/run")
    ended = scalelab("sweep", "--yes", "experiment.yaml")
    ended.assert_refused()
    assert "workload: 'emulated' -> 'digits_mlp'" in ended.err


@pytest.mark.parametrize(
    "options",
    [
        ("--sweep-budget", "10 apples"),
        ("--sweep-budget", "-1gpu-h"),
        ("--sweep-budget", ""),
        ("--sweep-budget", "0gpu-h"),
        ("--sweep-budget", "1e999gpu-h"),
        ("--site", "nowhere"),
        ("--site", "./absent.yaml"),
        ("--site", "/dev/null"),
        ("--run", "train.py"),
        ("--run", "."),
        ("--run", "/proc/1/root/x"),
        ("--run", "train.py/below"),
        ("--run", "x" * 300),
        ("--in-process", "--site", "nowhere"),
        ("--retry", "7"),
        ("--accept-changes=yes",),
    ],
)
def test_bad_options_of_a_sweep(
    scalelab: Callable[..., Any], project: Path, options: tuple[Any, ...]
) -> None:
    Path("experiment.yaml").write_text(yaml.safe_dump(VALID[0]))
    before = on_disk(project)
    scalelab("sweep", "--yes", *options, "experiment.yaml").assert_refused()
    assert on_disk(project) == before


def test_a_command_is_not_run_in_process(
    scalelab: Callable[..., Any], project: Path
) -> None:
    Path("experiment.yaml").write_text(yaml.safe_dump(COMMAND))
    ended = scalelab("sweep", "--in-process", "experiment.yaml")
    ended.assert_refused()
    assert "is a program of its own" in ended.err


def test_nobody_to_ask_names_the_option(
    scalelab: Callable[..., Any], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = yaml.safe_dump({**VALID[0], "confirm_above": {"trials": 2}})
    Path("experiment.yaml").write_text(text)
    before = on_disk(project)
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        ended = scalelab("sweep", "experiment.yaml")
    ended.assert_refused()
    assert "There is no terminal to ask on: pass --yes." in ended.err
    assert on_disk(project) == before


def real_cases() -> list[tuple[str, ...]]:
    """Return command lines for the files that the test writes."""
    experiments = [("plan", f"{index}.yaml") for index in range(8)]
    sweeps = [("sweep", "--yes", f"{index}.yaml") for index in range(8, 12)]
    tables = [("import", f"{index}.csv") for index in range(4)]
    runs = [("recommend", "absent"), ("status", "0.yaml"), ("report", ".")]
    usage = [("recommend", "--max-time"), ("swep",), ("doctor", "--colour")]
    return [*experiments, *sweeps, *tables, *runs, *usage]


@pytest.mark.repetition
@pytest.mark.slow
def test_twenty_real_processes(
    command: list[str], environment: dict[str, str], project: Path
) -> None:
    for index, (_, text) in enumerate(bad_experiments(12, seed=SEED)):
        (project / f"{index}.yaml").write_text(text)
    csv = [table for table in TABLES if table.suffix == ".csv" and not table.mapping]
    for index, table in enumerate(random.Random(SEED).sample(csv, 4)):
        (project / f"{index}.csv").write_bytes(table.content)
    before = on_disk(project)
    assert len(real_cases()) >= 20
    for arguments in real_cases():
        ended = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
        )
        assert ended.returncode == 2, (arguments, ended)
        assert ended.stdout == ""
        assert ended.stderr.startswith("Error: ")
        assert ended.stderr.count("\n") == 1
    assert on_disk(project) == before
