from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from scalelab.launch.progress import ProgressBoard


@pytest.fixture
def board() -> Iterator[ProgressBoard]:
    board = ProgressBoard(2)
    yield board
    board.close()


def test_new_board_counts_silence_from_its_making(board: ProgressBoard) -> None:
    before = time.monotonic()
    assert before - board.last_sign_s(1) < 5
    assert board.step(0) == 0
    assert board.ready_s(0) is None
    assert board.median_interval_s() is None


def test_report_shows_in_another_mapping_and_in_its_row_only(
    board: ProgressBoard,
) -> None:
    descriptor = os.dup(board.descriptor)
    other = ProgressBoard(2, descriptor)
    silent = board.last_sign_s(0)
    other.reporter(1)(7)
    assert board.step(1) == 7
    assert board.last_sign_s(1) >= silent
    assert (board.step(0), board.last_sign_s(0)) == (0, silent)
    other.close()


def test_ready_is_the_last_sign_before_the_first_step(board: ProgressBoard) -> None:
    report = board.reporter(0)
    report(0)
    first = board.ready_s(0)
    report(0)
    second = board.ready_s(0)
    report(1)
    assert first <= second == board.ready_s(0)


def test_median_interval_leaves_out_start_up_and_signs_within_a_step(
    board: ProgressBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    report = board.reporter(0)
    report(0)
    for step, duration in enumerate((50.0, 1.0, 2.0, 3.0), start=1):
        now += duration / 2
        report(step - 1)
        now += duration / 2
        report(step)
    assert board.median_interval_s() == 2.0


def test_only_the_latest_intervals_count(
    board: ProgressBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    report = board.reporter(0)
    for step in range(1, 200):
        now += 1.0 if step < 150 else 3.0
        report(step)
    assert board.median_interval_s() == 3.0
