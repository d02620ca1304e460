"""The file of jobs that were followed."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from scalelab.errors import StoreError
from scalelab.records.afterwards.followed import (
    KeptJob,
    KeptValue,
    followed_jobs,
    keep_followed,
)

JOB = KeptJob(
    job="7",
    run="vit",
    workload="vit",
    device_name="A100",
    configuration="1x4 batch 16",
    mass=0.8,
    widened_by=0.0,
    was_as_asked=True,
    values={"step_time_s": KeptValue(predicted=0.1, lo=0.09, hi=None, true=0.2)},
    causes=("input",),
)


def test_jobs_are_read_back_and_the_last_line_of_each_counts(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "history"
    other = replace(JOB, job="8")
    for job in (JOB, other, replace(JOB, was_as_asked=False)):
        path = keep_followed(folder, job)
    assert len(path.read_text().splitlines()) == 3
    assert followed_jobs(folder) == (replace(JOB, was_as_asked=False), other)


def test_lines_that_are_no_jobs_are_passed_over(tmp_path: Path) -> None:
    path = keep_followed(tmp_path, JOB)
    content = path.read_text()
    broken = content.replace("0.09", "-1").replace('"7"', '"8"')
    unread = content.replace("true", "wrong").replace('"7"', '"9"')
    path.write_text(f"{content}no JSON\n[]\n{broken}{unread}{content[:40]}")
    assert followed_jobs(tmp_path) == (JOB,)


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert followed_jobs(tmp_path) == ()
    os.mkfifo(tmp_path / "followed.jsonl")  # nobody waits for a writer
    assert followed_jobs(tmp_path) == ()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/followed\.jsonl cannot be written"):
        keep_followed(tmp_path / "file", JOB)
