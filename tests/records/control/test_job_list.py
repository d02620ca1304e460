import json
from pathlib import Path

import pytest

from scalelab.records.control.job_list import JobLine, JobList

JOBS = JobList(
    jobs=(
        JobLine(name="vit-1", job_id="17", num_nodes=2, state="up"),
        JobLine(
            name="vit-2",
            job_id="18",
            num_nodes=1,
            state="pending",
            reason="Resources",
            estimated_start="2026-11-21T04:00:00",
        ),
        JobLine(name="vit-3", job_id=None, num_nodes=1, state="pending"),
    ),
    waiting=("squeue does not answer",),
    last_number=3,
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    JOBS.write(tmp_path)
    assert JobList.read(tmp_path) == JOBS


LINE = {"name": "vit-1", "job_id": "17", "num_nodes": 1, "state": "up"}


def with_line(**wrong: object) -> str:
    return json.dumps({"jobs": [LINE | wrong], "waiting": [], "last_number": 1})


@pytest.mark.parametrize(
    "content",
    [
        *(None, "", "{}", '{"jobs": [{"id": 1}]}', "[]"),
        *(with_line(job_id=17), with_line(name=["x"]), with_line(num_nodes="2")),
    ],
)
def test_where_there_is_no_list_there_are_no_jobs(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "jobs.json").write_text(content)
    assert JobList.read(tmp_path) == JobList()


def test_jobs_are_told_in_a_line() -> None:
    assert [str(line) for line in JOBS.jobs] == [
        "vit-1 (job 17, 2 nodes): up",
        "vit-2 (job 18, 1 node): pending, Resources, "
        "start expected 2026-11-21T04:00:00",
        "vit-3 (being submitted, 1 node): pending",
    ]
