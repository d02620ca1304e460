from collections.abc import Callable
from pathlib import Path

import pytest
from sentences import refused

from scalelab.cluster.batch.queue import (
    JobState,
    cancel,
    job_log,
    look_at,
    submit_driver,
    waiting_driver,
)
from scalelab.errors import ClusterError, StoreError
from scalelab.records.control.job_list import DriverRecord
from scalelab.site.choice import site_of

SITE = site_of(
    {
        "scheduler": "slurm",
        "device_type": "cpu",
        "gpus_per_node": 2,
        "driver_job": {"walltime": "1h"},
    }
)
SCRIPT = "#!/bin/sh\n/bin/cat $1 >>{path}.scripts\necho Submitted batch job 17\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "vit"
    run.mkdir()
    return run


def program(
    programs: Callable[..., None], tmp_path: Path, name: str, text: str
) -> Path:
    programs(name)
    path = tmp_path / "programs" / name
    path.write_text(text.format(path=path))
    return path


def test_jobs_are_submitted_one_after_the_other(
    programs: Callable[..., None], run: Path, tmp_path: Path
) -> None:
    sbatch = program(programs, tmp_path, "sbatch", SCRIPT)
    first = submit_driver(SITE, run, ["sweep", "x.yaml"])
    assert first == DriverRecord(
        scheduler="slurm", name="vit-driver-1", job_id="17", number=1
    )
    assert DriverRecord.read(run) == first
    second = submit_driver(SITE, run, ["sweep", "x.yaml"], after="17")
    assert second.name == "vit-driver-2"
    scripts = sbatch.with_suffix(".scripts").read_text()
    assert f"--output={job_log(run, 'vit-driver-1')}\n" in scripts
    assert f"cd {tmp_path}\n" in scripts
    assert scripts.count("--dependency=afterany:17") == 1
    assert f"sweep x.yaml >>{run}/driver.log 2>&1" in scripts


def test_a_refusal_is_told_in_the_batch_systems_words(
    programs: Callable[..., None], run: Path, tmp_path: Path
) -> None:
    refusal = "#!/bin/sh\necho sbatch: error: invalid account >&2\nexit 1\n"
    program(programs, tmp_path, "sbatch", refusal)
    with pytest.raises(ClusterError, match=r"job vit-driver-1: sbatch: .* account\."):
        submit_driver(SITE, run, ["sweep"])
    assert DriverRecord.read(run) is None
    with refused("no_driver_job"):
        submit_driver(SITE.model_copy(update={"driver_job": None}), run, ["sweep"])


def test_a_place_that_cannot_be_written_is_said(run: Path) -> None:
    (run / "cluster").write_text("a file")
    with pytest.raises(StoreError, match="cluster is a link or no folder"):
        submit_driver(SITE, run, ["sweep"])


def test_waiting_jobs_are_found_and_cancelled(
    programs: Callable[..., None], run: Path, tmp_path: Path
) -> None:
    assert waiting_driver(run) is None
    program(programs, tmp_path, "sbatch", SCRIPT)
    record = submit_driver(SITE, run, ["sweep"])
    programs("squeue", ("--jobs=17", "17|PENDING|Priority|N/A|1:00:00\n"))
    found = waiting_driver(run)
    assert found is not None
    assert (found[0], found[1].reason) == (record, "Priority")
    programs("squeue", ("--jobs=17", "17|RUNNING|None|N/A|1:00:00\n"))
    assert waiting_driver(run) is None
    view = look_at(record)
    assert view is not None
    assert view.state is JobState.RUNNING
    record.leave_queue(run)
    (tmp_path / "programs" / "squeue").unlink()
    assert waiting_driver(run) is None, "and nobody is asked about it"
    assert submit_driver(SITE, run, ["sweep"]).name == "vit-driver-2"
    asked = "#!/bin/sh\necho $* >{path}.asked\n"
    scancel = program(programs, tmp_path, "scancel", asked)
    cancel(record)
    assert scancel.with_suffix(".asked").read_text() == "--name=vit-driver-1 17\n"
    scancel.unlink()
    with pytest.raises(ClusterError, match="job 17 could not be cancelled"):
        cancel(record)
