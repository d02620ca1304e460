"""What goes on is said while nothing has ended, and where nothing is said for long."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console
from sentences import Golden
from waiting import wait_until

from scalelab.cli import progress as module
from scalelab.cli.progress import Activity, LineView
from scalelab.inputs.numerals import DeviceWords
from scalelab.inputs.outcome import Outcome
from scalelab.records.control.events import (
    Progress,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)

CORES = DeviceWords("CPU slot", "core-h")

PROGRESS = Progress(
    num_done=0,
    num_failed=0,
    num_running=1,
    num_waiting=3,
    used_gpu_s=0,
    num_devices=2,
)


def started(directory: Path) -> TrialStarted:
    return TrialStarted(
        trial_id="t",
        attempt=1,
        title="t",
        directory=str(directory),
        progress=PROGRESS,
    )


def test_nodes_start_then_a_trial_waits_for_its_first_step(
    tmp_path: Path, golden: Golden
) -> None:
    activity = Activity()
    assert activity.of_nodes(90) == "starting nodes"
    activity.take(SweepStarted(host="h", pid=1, frameworks=("torch",)), 100)
    golden(activity.of_nodes(112))
    activity.take(started(tmp_path), 120)
    assert activity.of_trial(120) == "", "it has just begun"
    golden(activity.of_trial(132))
    assert activity.notice == ""
    (tmp_path / "notice.txt").write_text("No step after 60 s.")
    assert activity.notice == "No step after 60 s."
    stream = tmp_path / "stream.jsonl"
    stream.write_text('{"event": "step", "step": 7}\n{"event": "evaluation"}\n{"ev')
    golden(activity.of_trial(133))
    assert activity.notice == ""
    ended = TrialEnded(
        trial_id="t",
        attempt=1,
        title="t",
        program=None,
        outcome=Outcome.COMPLETED,
        reason="",
        input_error=None,
        log=None,
        runs_again=False,
        progress=PROGRESS,
    )
    activity.take(ended, 140)
    assert activity.of_trial(150) == ""


def test_a_line_is_printed_where_nothing_was_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.05)
    console = Console(file=io.StringIO())
    with LineView(console, CORES, is_quiet=False) as lines:
        lines(SweepStarted(host="h", pid=1, frameworks=("torch",)))
        start = "starting nodes: importing torch"
        wait_until(lambda: start in said(console), "a line about the nodes")
    assert said(console).count("\n") >= 1
    (tmp_path / "notice.txt").write_text("No step after 60 s.")
    console = Console(file=io.StringIO())
    with LineView(console, CORES, is_quiet=False) as lines:
        lines(started(tmp_path))
        wait_until(lambda: "No step after 60 s." in said(console), "the notice")
        time.sleep(0.5)
    assert said(console).count("No step after 60 s.") == 1
    quiet = Console(file=io.StringIO())
    with LineView(quiet, CORES, is_quiet=True) as lines:
        lines(SweepStarted(host="h", pid=1, frameworks=("torch",)))
    assert said(quiet) == ""


def said(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()
