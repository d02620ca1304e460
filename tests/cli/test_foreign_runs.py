"""Run directories of somebody else, whose files are not what they should be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measured_runs import measured_run


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
    scalelab: Callable[..., Any], here: Path, good_run: Path, name: str
) -> None:
    shutil.copytree(good_run, here / "run")
    (here / "secret.txt").write_text("hidden: 1")
    path = here / "run" / "run.json"
    header = json.loads(path.read_text())
    header["versions"][-1]["experiment"] = name
    path.write_text(json.dumps(header))
    refused = scalelab("report", "run")
    assert refused.code == 2
    assert "is not the header of a run" in refused.err
    assert "hidden" not in refused.err
