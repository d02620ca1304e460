import json
from dataclasses import asdict
from pathlib import Path

import pytest

from scalelab.records.control.job_list import DriverRecord

RECORD = DriverRecord(scheduler="pbs", name="vit-driver-1", job_id="7.pbs", number=1)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert DriverRecord.read(tmp_path) is None
    (tmp_path / "cluster").mkdir()
    RECORD.write(tmp_path)
    assert DriverRecord.read(tmp_path) == RECORD


WRONG = [
    {"job_id": 7},
    {"job_id": None},
    {"name": ["x"]},
    {"scheduler": ["slurm"]},
    {"scheduler": None},
    {"number": "1"},
    {"has_left_queue": "no"},
]


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"job_id": "7"}', "3"),
        *(json.dumps(asdict(RECORD) | wrong) for wrong in WRONG),
    ],
)
def test_what_cannot_be_read_is_no_job(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "driver.json").write_text(content)
    assert DriverRecord.read(tmp_path) is None
