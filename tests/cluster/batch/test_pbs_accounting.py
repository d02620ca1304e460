"""What ``qstat -x -f`` prints of a job that has ended, read: as OpenPBS prints it."""

from pathlib import Path

import pytest
from fake_programs import FakePrograms

from scalelab.cluster.batch.pbs import PbsClient
from scalelab.errors import ClusterError, SpecError

ENDED = """Job Id: 17.server
    Job_Name = vit
    resources_used.cput = 08:00:00
    resources_used.mem = 2097152kb
    resources_used.walltime = 01:00:00
    job_state = F
    ctime = Fri Nov 20 03:00:00 2026
    stime = Fri Nov 20 03:10:00 2026
    Output_Path = login:{log}
    Exit_status = 0
    Resource_List.mem = 16gb
    Resource_List.ncpus = 16
    Resource_List.ngpus = 8
    Resource_List.nodect = 2
    Resource_List.walltime = 02:00:00
"""


def test_a_job_of_the_history_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = FakePrograms(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(programs.folder))
    log = tmp_path / "vit.o17"
    log.write_text("step 1")
    asked = programs.says("qstat", ENDED.format(log=log))
    job = PbsClient.accounted(["17"])["17"]
    assert asked.read_text().split() == ["-x", "-f", "17"]
    assert (job.job_id, job.name, job.num_nodes) == ("17.server", "vit", 2)
    assert (job.num_cores, job.num_gpus) == (16, 8)
    assert (job.elapsed_s, job.limit_s, job.queue_wait_s) == (3600, 7200, 600)
    assert (job.cpu_s, job.memory_asked_bytes) == (28800, 16 * 2**30)
    assert job.memory_used_bytes == 2 * 2**30
    assert job.did_complete
    assert job.log == str(log)

    programs.says("qstat", ENDED.replace("Exit_status = 0", "Exit_status = 271"))
    failed = PbsClient.accounted(["17.server"])["17.server"]
    assert not failed.did_complete
    assert failed.state == "ended with status 271"
    assert failed.log is None


@pytest.mark.parametrize("size", ["0kb", "0b", "", "many"])
def test_a_job_that_ended_before_it_was_looked_at_has_no_peak(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = FakePrograms(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(programs.folder))
    programs.says("qstat", ENDED.replace("2097152kb", size).format(log="none"))
    job = PbsClient.accounted(["17"])["17"]
    assert job.memory_used_bytes is None
    assert job.memory_asked_bytes == 16 * 2**30


UNKNOWN = "/bin/cat $in.err >&2; exit 153"
SERVER = "Server: server\n    server_state = Active\n"


@pytest.mark.parametrize("job_id", ["17", "17.server"])
def test_an_array_is_asked_about_by_its_jobs(
    job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = FakePrograms(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(programs.folder))
    array = ENDED.replace("17.server", "17[].server").format(log="none")
    programs.does(
        "qstat",
        f'case "$*" in *"[]"*) /bin/cat $in.out ;; *) {UNKNOWN} ;; esac',
        out=array.replace("    job_state", "    array = True\n    job_state"),
        err=f"qstat: Unknown Job Id {job_id}",
    )
    for asked in (job_id, job_id.replace("17", "17[]")):
        words = r"17\[\].server is an array .* such as 17\[1\].server"
        with pytest.raises(SpecError, match=words):
            PbsClient.accounted([asked])


def test_a_server_without_history_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = FakePrograms(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(programs.folder))
    script = f'case "$*" in *-B*) /bin/cat $in.out ;; *) {UNKNOWN} ;; esac'
    unknown = "qstat: Unknown Job Id 17.server"
    programs.does("qstat", script, out=SERVER, err=unknown)
    with pytest.raises(ClusterError, match="keeps no history"):
        PbsClient.accounted(["17.server"])

    kept = f"{SERVER}    job_history_enable = True\n"
    programs.does("qstat", script, out=kept, err=unknown)
    assert PbsClient.accounted(["17.server"]) == {}


def test_a_job_that_the_server_does_not_know_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = FakePrograms(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(programs.folder))
    programs.says("qstat", errors="qstat: Unknown Job Id 17.server", status=153)
    assert PbsClient.accounted(["17.server"]) == {}
    with pytest.raises(ClusterError, match="shows no waits"):
        PbsClient.queue_waits(None)
