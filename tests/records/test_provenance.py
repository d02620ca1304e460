import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalelab.records import header as module
from scalelab.records.header import git_state, provenance, versions
from scalelab.site.profile import affinity


@pytest.fixture
def repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_program: Callable[..., Any]
) -> Path:
    require_program("git")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "a")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.org")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git(tmp_path, "init", "-q")
    return tmp_path


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=directory, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_provenance_is_plain_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    found = provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["host"] == socket.gethostname()
    assert found["environment"]["OMP_NUM_THREADS"] == "3"
    assert "SLURM_JOB_ID" not in found["environment"]
    assert found["processor"]
    assert found["code"] is None
    assert found["cores"] == sorted(os.sched_getaffinity(0))


def test_versions_are_those_that_run() -> None:
    import numpy as np

    found = versions()
    assert found["numpy"] == np.__version__
    assert found["python"] == sys.version.split()[0]


def test_missing_packages_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACKAGES", ("no-such-package", "pytest"))
    assert set(versions.__wrapped__()) == {"python", "pytest"}


def test_affinity_without_the_system_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert affinity() == list(range(os.cpu_count() or 1))


def test_the_state_of_the_code(repository: Path, tmp_path: Path) -> None:
    assert git_state(repository) is None
    code = repository / "code"
    code.mkdir()
    (code / "train.py").write_text("print()\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "first")
    commit = git(repository, "rev-parse", "HEAD")
    assert git_state(code) == {"commit": commit, "is_dirty": False}
    (repository / "elsewhere").write_text("")
    assert git_state(code) == {"commit": commit, "is_dirty": False}
    (code / "train.py").write_text("print(1)\n")
    assert git_state(code) == {"commit": commit, "is_dirty": True}
    assert provenance(code)["code"] == git_state(code)


def test_outside_a_repository_there_is_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_state(tmp_path) is None


def test_without_proc_the_architecture_must_do(monkeypatch: pytest.MonkeyPatch) -> None:
    read_text = Path.read_text

    def refuse(path: Path, *arguments: Any, **options: Any) -> str:
        if path == Path("/proc/cpuinfo"):
            raise OSError
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert provenance()["processor"] == os.uname().machine
