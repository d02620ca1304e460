"""Commands that could not start are refused when the experiment is read."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from scalelab.errors import SpecError
from scalelab.reading.scripts.first_words import with_program_beside
from scalelab.running.sweep import Sweep

REST = """\
uses: SCALELAB_LOCAL_BATCH_SIZE
metrics: {regex: 'step (?P<step>\\d+)'}
gpus: 1
local_batch_size: 8
"""
ELSEWHERE = "site: {scheduler: allocation, device_type: cpu, gpus_per_node: 2}"


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], Sweep]:
    """Read an experiment in a folder that holds train.py and an interpreter."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "model.py").write_text("")
    program = tmp_path / "envs" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    def read_text(text: str) -> Sweep:
        path = tmp_path / "mine.yaml"
        path.write_text(f"name: mine\n{text}\n{REST}")
        return Sweep.read(path, directory=tmp_path / "run")

    return read_text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "command: ../no/bin/python train.py",
            r"mine\.yaml: command: '\.\./no/bin/python' is no program that can be",
        ),
        ("command: /no/bin/python train.py", "'/no/bin/python' is no program that"),
        ("command: python /no/train.py", r"'/no/train\.py' is no file in"),
        ("command: pyhton train.py", "'pyhton' is no program that can be executed in"),
        ("command: ./train.py", r"'\./train\.py' is no program that can be executed"),
        (
            f"command: ../no/python train.py\n{ELSEWHERE}",
            r"'\.\./no/python' is no program that can be executed",
        ),
        (
            "command: python trian.py",
            r"command: 'trian\.py' is no file in .*\. Did you mean 'train\.py'\? Give ",
        ),
        (
            "command: python train.py\ncode: {snapshot: trian.py}",
            r"mine\.yaml: code\.snapshot: 'trian\.py' does not .* mean 'train\.py'\?",
        ),
        (
            "command: python train.py\ncode: {snapshot: model.py}",
            r"'train\.py' is not among code\.snapshot=\['model\.py'\], .* Add it\.$",
        ),
        (
            "command: python train.py\ncode: {root: absent}",
            r"mine\.yaml: code\.root: there is no folder .*absent\. Give the folder",
        ),
    ],
)
def test_what_is_not_there_is_refused_at_once(
    read: Callable[[str], Sweep], text: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "command: python train.py",
        "command: python -m somewhere",
        "command: envs/bin/python train.py\ncode: {snapshot: train.py}",
        "command: envs/bin/python train.py\ncode: {snapshot: .}",
        "command: '{interpreter} train.py'\noptions: {interpreter: [a]}",
        # What a cluster's nodes have is not known here.
        f"command: /no/python train.py\n{ELSEWHERE}",
        f"command: python /no/train.py\n{ELSEWHERE}",
        # The copy has nothing to do with it.
        f"command: python {__file__}\ncode: {{snapshot: model.py}}",
    ],
)
def test_what_may_start_is_planned(read: Callable[[str], Sweep], text: str) -> None:
    assert read(text).plan.trials


def test_a_program_beside_the_code_is_found_from_the_copy(tmp_path: Path) -> None:
    copy, root = tmp_path / "run" / "code" / "1a2b", tmp_path / "root"
    program = tmp_path / "env s" / "bin" / "python"
    for folder in (copy, root, program.parent):
        folder.mkdir(parents=True)
    program.symlink_to("/usr/bin/env")
    (copy / "run.sh").write_text("")

    def words(command: str) -> list[str]:
        return shlex.split(with_program_beside(command, root, copy))

    assert words("'../env s/bin/python' a.py {x}") == [str(program), "a.py", "{x}"]
    for same in ("python a.py", "./run.sh", "../no/python a.py", "/usr/bin/env a"):
        assert with_program_beside(same, root, copy) == same
