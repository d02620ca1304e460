"""What a driver appends to a run's events, and what readers make of them."""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from scalelab.errors import StoreError
from scalelab.inputs.outcome import Outcome
from scalelab.records.control.events import (
    EVENTS,
    KINDS,
    Event,
    EventLog,
    NodeLost,
    NodeSilent,
    NodeUp,
    Progress,
    Resumed,
    Stopping,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
    Unreadable,
    Waiting,
    events_of_last_sweep,
)

PROGRESS = Progress(
    num_done=1,
    num_failed=0,
    num_running=2,
    num_waiting=3,
    used_gpu_s=4.5,
    num_devices=2,
)
STARTED = SweepStarted(host="h", pid=7, frameworks=("torch",))
EVERY: tuple[Event, ...] = (
    STARTED,
    Resumed(num_finished=1),
    NodeUp(node="n", host="h", num_devices=2),
    NodeSilent(node="n", silent_s=61.5, lost_after_s=120.0),
    NodeLost(node="n"),
    TrialStarted(
        trial_id="t", attempt=1, title="t", directory="/r/t", progress=PROGRESS
    ),
    TrialEnded(
        trial_id="t",
        attempt=1,
        title="t",
        program=None,
        outcome=Outcome.FAILED,
        reason="No.",
        input_error=None,
        log="/r/t/rank-0.log",
        runs_again=False,
        progress=PROGRESS,
    ),
    Waiting(reason='a word "kind":"sweep_started" in it'),
    Unreadable(reason="u"),
    Stopping(reason="s", num_running=1),
    SweepEnded(stopped=None),
)


def write(run: Path, *events: Event) -> None:
    with closing(EventLog(run)) as log:
        for event in events:
            log.append(event)


def test_every_kind_comes_back_as_it_was(tmp_path: Path) -> None:
    assert {type(event) for event in EVERY} == {*KINDS.values()}
    write(tmp_path, *EVERY)
    assert tuple(events_of_last_sweep(tmp_path)) == EVERY
    lines = [json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]
    assert [line["kind"] for line in lines] == list(KINDS)
    assert {line["version"] for line in lines} == {1}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)


def test_only_the_last_sweep_is_read_and_the_kinds_that_are_wanted(
    tmp_path: Path,
) -> None:
    write(tmp_path, *EVERY)
    second = replace(STARTED, pid=8)
    write(tmp_path, second, Waiting(reason="w"), SweepEnded(stopped="s"))
    assert list(events_of_last_sweep(tmp_path, (SweepStarted, SweepEnded))) == [
        second,
        SweepEnded(stopped="s"),
    ]


def test_a_run_of_an_older_version_has_none(tmp_path: Path) -> None:
    assert list(events_of_last_sweep(tmp_path)) == []


def test_half_a_line_of_a_killed_driver_hides_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, STARTED)
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"version":1,"time":"2026')
    assert list(events_of_last_sweep(tmp_path)) == [STARTED]
    write(tmp_path, Waiting(reason="w"))
    assert list(events_of_last_sweep(tmp_path)) == [STARTED, Waiting(reason="w")]


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, STARTED)
    others = [
        {"version": 1, "time": "", "kind": "later"},
        {"version": 2, "time": "", "kind": "waiting", "reason": "w"},
        {"version": 1, "time": "", "kind": "waiting", "reason": {"a": 1}},
        ["waiting"],
        {"version": 1, "time": "", "kind": "waiting", "reason": "w", "more": 1},
    ]
    with (tmp_path / EVENTS).open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in others)
    assert list(events_of_last_sweep(tmp_path)) == [STARTED, Waiting(reason="w")]


@pytest.mark.parametrize("exists", [True, False])
def test_events_are_never_written_behind_a_link(tmp_path: Path, exists: bool) -> None:
    mine = tmp_path / "mine"
    if exists:
        mine.write_text("mine")
    (tmp_path / EVENTS).symlink_to(mine)
    said = r"events\.jsonl cannot be written: it is a link"
    with pytest.raises(StoreError, match=said):
        EventLog(tmp_path)
    assert mine.exists() == exists
    assert not exists or mine.read_text() == "mine"


def test_no_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / EVENTS)
    with pytest.raises(StoreError, match="cannot be written: it is no regular file"):
        EventLog(tmp_path)
