"""Run directories of somebody else, whose files are not what they should be."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measured_runs import measured_run
from sentences import Golden

from scalelab.records.control.lease import this_process


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.with_name("aside").write_text("{}")
    path.symlink_to("aside")


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(scope="module")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured_run(tmp_path_factory.mktemp("good") / "run").directory


@pytest.mark.timeout(30)
@pytest.mark.parametrize("replaced", [pipe, link, endless])
@pytest.mark.parametrize(
    "name", ["run.json", "ledger.jsonl", "driver.lease", "experiments/0001.yaml"]
)
def test_only_regular_files_are_read(
    scalelab: Callable[..., Any],
    here: Path,
    good_run: Path,
    name: str,
    replaced: Callable[[Path], None],
) -> None:
    shutil.copytree(good_run, here / "run")
    path = here / "run" / name
    path.unlink(missing_ok=True)
    replaced(path)
    refused = scalelab("status", "run")
    assert refused.code == 2
    words = "it is no regular file" if replaced is pipe else "it is a link"
    assert words in refused.err


@pytest.mark.parametrize("name", ["../../secret.txt", "/etc/passwd", "0001.yaml/../x"])
def test_the_experiment_is_a_file_of_the_run(
    scalelab: Callable[..., Any], here: Path, good_run: Path, name: str, golden: Golden
) -> None:
    shutil.copytree(good_run, here / "run")
    (here / "secret.txt").write_text("hidden: 1")
    path = here / "run" / "run.json"
    header = json.loads(path.read_text())
    header["versions"][-1]["experiment"] = name
    path.write_text(json.dumps(header))
    refused = scalelab("report", "run")
    assert refused.code == 2
    golden(refused.err)
    assert "hidden" not in refused.err


RECORDS = [
    "run.json",
    "ledger.jsonl",
    "trials/*/001/result.json",
    *(
        pytest.param(name, marks=pytest.mark.repetition)
        for name in (
            "driver.lease",
            "driver.stop",
            "cluster/jobs.json",
            "cluster/driver.json",
            "trials/*/001/attempt.json",
            "trials/*/001/stream.jsonl",
        )
    ),
]
WRONG = [
    None,
    True,
    -1,
    1e300,
    2**70,
    "",
    "\x1b]0;owned\x07\x1b[31m\r",
    "\ud800",
    "../../etc",
    [],
    {},
    [[[]]],
    {"a": {"a": {}}},
]


def places(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in JSON values."""
    found = [path]
    if isinstance(values, dict | list):
        keys = values if isinstance(values, dict) else range(len(values))
        for key in keys:
            found += places(values[key], (*path, key))
    return found


def spoilt(values: Any, place: tuple[Any, ...], wrong: Any) -> Any:
    """Return JSON values with something else at one place."""
    if not place:
        return wrong
    copy = dict(values) if isinstance(values, dict) else list(values)
    copy[place[0]] = spoilt(copy[place[0]], place[1:], wrong)
    return copy


def spoil(file: Path, rng: random.Random) -> str:
    """Put something wrong anywhere into a file of JSON; return what it then holds."""
    made_up = [json.dumps({**this_process(), "beat": 1, "jobs": []})]
    lines = file.read_text().splitlines() if file.exists() else made_up
    at = rng.randrange(len(lines))
    values = json.loads(lines[at])
    wrong = rng.choice([*WRONG, "deep"])
    place = rng.choice(places(values))
    text = json.dumps(spoilt(values, place, "DEEP" if wrong == "deep" else wrong))
    if wrong == "deep":
        text = text.replace('"DEEP"', "[" * 5_000 + "]" * 5_000)
    lines[at] = text
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return text


def test_a_kept_answer_that_is_nested_too_deeply_is_made_again(
    scalelab: Callable[..., Any], here: Path, good_run: Path
) -> None:
    shutil.copytree(good_run, here / "run")
    (here / "run" / "cache").mkdir(exist_ok=True)
    (here / "run" / "cache" / "answers.json").write_text("[" * 200_000)
    assert scalelab("recommend", "run").code == 0


@pytest.mark.slow
def test_half_a_character_in_a_cell_is_shown_as_none(
    scalelab: Callable[..., Any], here: Path
) -> None:
    lines = ["gpus,nodes,local_batch,step_time_s", "1,1,8,0.1", "2,1,8,0.2"]
    (here / "table.csv").write_text("\n".join(lines))
    lone = '--constant=versions={"torch": "\\ud83d"}'
    assert scalelab("import", "table.csv", "run", lone).code == 0
    assert scalelab("report", "run").code == 0
    assert "torch \N{REPLACEMENT CHARACTER}" in (here / "run/report.html").read_text()


def test_a_header_of_zeros_is_refused_in_a_sentence(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    (here / "run").mkdir()
    (here / "run" / "run.json").write_bytes(bytes(900))
    refused = scalelab("status", "run")
    refused.assert_refused()
    golden(refused.err)
    assert len(refused.err) < 400


@pytest.mark.slow
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize(
    "index", [0, *(pytest.param(i, marks=pytest.mark.repetition) for i in range(1, 5))]
)
def test_wrong_records_end_in_a_sentence(
    scalelab: Callable[..., Any], here: Path, good_run: Path, record: str, index: int
) -> None:
    rng = random.Random(f"{record} {index}")
    for number in range(4):
        run = here / f"run-{number}"
        shutil.copytree(good_run, run)
        for attempt in run.glob("trials/*/001"):
            row = {"event": "step", "step": 1, "samples": 4, "loss": 0.5, "t": 0.1}
            (attempt / "stream.jsonl").write_text(json.dumps(row) + "\n")
        files = sorted(run.glob(record)) if "*" in record else [run / record]
        text = spoil(rng.choice(files), rng)
        for command in ("status", "recommend"):
            ended = scalelab(command, run)
            case = (command, record, text[:300], ended)
            assert ended.code in (0, 1, 2, 3), case
            if ended.code:
                assert "Traceback" not in ended.err, case
                assert ended.err.startswith("Error: "), case
                assert "\n" not in ended.err.rstrip("\n"), case
            assert (ended.out + ended.err).replace("\n", "").isprintable(), case
