"""Commands where the address space of a process is limited, as on login nodes."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from measured_runs import measured_run

pytestmark = pytest.mark.slow


def test_an_answer_that_does_not_fit_into_memory_is_said(tmp_path: Path) -> None:
    measured_run(tmp_path / "runs" / "small")
    words = [sys.executable, "-m", "scalelab", "recommend", "runs/small"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))

    ended = subprocess.run(
        words,
        cwd=tmp_path,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: This process may not use more memory.")
    assert "Traceback" not in ended.stderr
