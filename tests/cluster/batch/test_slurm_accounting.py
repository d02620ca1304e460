"""What ``sacct`` prints, read: its words were seen from SLURM 22.05.

``sacct`` itself is asked in ``tests/slurm``.
"""

from pathlib import Path

import pytest
from fake_programs import FakePrograms

from scalelab.cluster.batch import slurm
from scalelab.cluster.batch.slurm import accounted_jobs, queue_waits
from scalelab.errors import ClusterError

ROWS = (
    "5|5|a name|COMPLETED|2|8|cpu=8,gres/gpu=4,gres/gpu:a100=4,mem=2G|90|1000|1060"
    "|3600|02:00:00|||/home/me",
    "5.batch|5.batch|batch|COMPLETED|1|4|cpu=4,mem=1G||1060|1060|3600|01:00:00"
    "|cpu=00:00:03,mem=216488K|cpu=00:00:03,gres/gpuutil=61,mem=216488K|",
    "5.0|5.0|train|COMPLETED|2|8|cpu=8,mem=2G||1061|1061|3590|01:00:00"
    "|cpu=01:00:00,mem=1.5G|gres/gpuutil=87|",
    "9|8_3|task|CANCELLED by 1000|1|1|cpu=1,mem=1G|UNLIMITED|1000|Unknown|0|00:00:00"
    "|||/home/me",
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    programs = FakePrograms(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(programs.folder))
    programs.says("scontrol", errors="slurm_load_jobs error", status=1)
    return programs


def test_rows_of_jobs_and_their_steps_are_joined(programs: FakePrograms) -> None:
    output = "\n".join(ROWS).replace("|", "\x1f")
    asked = programs.says("sacct", output)
    found = accounted_jobs(["5", "8_3", "77"])
    assert [*found] == ["5", "8_3"]
    assert "--jobs=5,8_3,77" in asked.read_text()

    job = found["5"]
    assert (job.name, job.state, job.num_nodes) == ("a name", "COMPLETED", 2)
    assert (job.num_cores, job.num_gpus, job.num_devices) == (8, 4, 4)
    assert (job.elapsed_s, job.limit_s, job.queue_wait_s) == (3600, 5400, 60)
    assert job.gpu_type == "a100"
    assert job.cpu_s == 7200
    assert job.memory_asked_bytes == 2 * 2**30
    assert job.memory_used_bytes == 1.5 * 2**30
    assert job.gpu_utilization == 0.87
    assert job.did_complete
    assert job.log is None

    task = found["8_3"]
    assert (task.job_id, task.state, task.num_devices) == ("9", "CANCELLED", 1)
    assert (task.limit_s, task.started_s, task.queue_wait_s) == (None, None, None)
    assert task.memory_used_bytes is None
    assert not task.did_complete


def test_the_log_is_where_the_controller_says_or_where_it_lies_by_default(
    programs: FakePrograms, tmp_path: Path
) -> None:
    row = ROWS[0].replace("/home/me", str(tmp_path)).replace("|", "\x1f")
    programs.says("sacct", row)
    usual, named = tmp_path / "slurm-5.out", tmp_path / "my.log"
    usual.write_text("")
    assert accounted_jobs(["5"])["5"].log == str(usual)
    named.write_text("")
    programs.says("scontrol", f"JobId=5\n   StdErr=x\n   StdOut={named}\n")
    assert accounted_jobs(["5"])["5"].log == str(named)


def test_a_cluster_without_accounts_says_so(programs: FakePrograms) -> None:
    programs.says("sacct", errors="Slurm accounting storage is disabled", status=1)
    with pytest.raises(ClusterError, match=r"Slurm accounting storage is disabled\.$"):
        accounted_jobs(["5"])


def test_waits_are_of_jobs_that_have_started_and_of_pending_ones(
    programs: FakePrograms,
) -> None:
    rows = [
        "COMPLETED|16|cpu=16,gres/gpu=4|60|1000|1600",
        "RUNNING|8|cpu=8|UNLIMITED|2000|2000",
        "PENDING|16|cpu=16,gres/gpu=4|60|3000|Unknown",
        "PENDING|16|cpu=16|60|Unknown|Unknown",  # it depends on another job
        "CANCELLED by 7|16|cpu=16|60|3000|None",  # before it started
    ]
    asked = programs.says("sacct", "\n".join(rows).replace("|", "\x1f"))
    started, running, pending = queue_waits("gpu")
    assert (started.num_devices, started.limit_s, started.wait_s) == (4, 3600, 600)
    assert started.has_started
    assert (running.num_devices, running.limit_s, running.wait_s) == (8, None, 0)
    assert not pending.has_started
    assert pending.wait_s > 10**9
    words = asked.read_text()
    assert "--allusers" in words
    assert "--partition=gpu" in words


def test_accounting_that_does_not_answer_is_given_up(
    programs: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_ANSWER_OF_ALL_S", 0.2)
    programs.does("sacct", "exec /bin/sleep 30")
    with pytest.raises(ClusterError, match=r"sacct did not answer within 0\.2 s"):
        queue_waits(None)
