"""What is checked of a site, without SLURM or PBS: programs answer as both do."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_programs import FakePrograms

from scalelab.cluster.batch.queue import JobState, JobView
from scalelab.cluster.survey import visit as site_visit
from scalelab.doctor import site as site_doctor
from scalelab.doctor import site_trial
from scalelab.doctor.site import (
    Finding,
    Health,
    clock_finding,
    examine_site,
    note,
    of_each_group,
    ok,
)
from scalelab.records.control.job_list import DriverRecord
from scalelab.site.choice import site_of
from scalelab.site.profile import Site

SLURM = {
    "name": "hpc",
    "scheduler": "slurm",
    "partition": "gpu",
    "device_type": "cuda",
    "gpus_per_node": 4,
    "cores_per_node": 32,
    "memory_per_node": "100GB",
    "walltime": "4h",
    "driver_interface": "lo",
}
PBS = {
    "name": "hpc",
    "scheduler": "pbs",
    "device_type": "cuda",
    "gpus_per_node": 4,
    "driver_interface": "lo",
}
SINFO = """\
gpu*|up|1-00:00:00|8|64|515000|gpu:a100:4(S:0-1)
old|drain|infinite|2|8|1|(null)
"""
TAKEN = "sbatch: Job 5 to start at 2026-11-21T03:00:00 using 64 processors on nodes n1"
NODES = {"nodes": {"n1": {"resources_available": {"ncpus": 64, "ngpus": 4}}}}
QUEUE = {"queue_type": "Execution", "enabled": "True", "started": "True"}
SERVER = {"Server": {"pbs": {"default_queue": "gpu"}}}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put a program on the path, alone there, that runs a line of shell."""
    programs = FakePrograms(tmp_path / "programs")
    monkeypatch.setenv("PATH", str(programs.folder))
    return programs.does


Program = Callable[..., Path]


@pytest.fixture
def slurm(program: Program) -> Program:
    for name in ("squeue", "scancel"):
        program(name)
    program("sinfo", "/bin/cat $in.out", out=SINFO)
    program("scontrol", 'echo "PartitionName=gpu AllocNodes=ALL Default=YES"')
    program("sbatch", f'echo "{TAKEN}" >&2')
    return program


def examined(values: dict, runs: Path) -> dict[str, Finding]:
    site = site_of(values)
    return {each.subject: each for each in examine_site(site, runs)}


def broken(found: dict[str, Finding]) -> dict[str, str]:
    return {
        name: each.text for name, each in found.items() if each.health is Health.BROKEN
    }


@pytest.mark.usefixtures("slurm")
class TestSlurm:
    def test_a_sound_site(self, tmp_path: Path) -> None:
        values = {
            **SLURM,
            "provision": "one_job",
            "nodes": 6,
            "driver_job": {"walltime": "2h"},
        }
        found = examined(values, tmp_path / "runs")
        assert broken(found) == {}
        sizes = [name for name in found if name.startswith("job of ")]
        assert sizes == [
            *("job of 1 node", "job of 2 nodes", "job of 4 nodes", "job of 6 nodes"),
            "job of the driver",
        ]
        assert found["job of 1 node"].text == (
            "to start at 2026-11-21T03:00:00 using 64 processors on nodes n1"
        )
        assert found["network"].text == "nodes will reach this machine at 127.0.0.1"
        assert found["submit from nodes"].text == "allowed by the configuration"
        assert found["partition"].text.startswith("gpu: 8 x (64 cores")

    @pytest.mark.parametrize(
        ("change", "subject", "words"),
        [
            ({"partition": "gpus"}, "partition", "no partition 'gpus'. Set partition:"),
            ({"partition": "old"}, "partition", "takes or starts no jobs now."),
            ({"gpus_per_node": 8}, "partition", "no node with 32 cores, 8 GPUs"),
            ({"cores_per_node": 65}, "partition", "no node with 65 cores"),
            ({"memory_per_node": "1TB"}, "partition", "GPUs, 931.3 GiB, only 8 x"),
            ({"walltime": "25h"}, "walltime", "90000 s is more than the 86400 s of"),
            ({"python": "/no/python"}, "interpreter", "Correct python in the site."),
            ({"driver_interface": "ib9"}, "network", "no network interface 'ib9'"),
        ],
    )
    def test_a_broken_site(
        self, tmp_path: Path, change: dict, subject: str, words: str
    ) -> None:
        found = broken(examined({**SLURM, **change}, tmp_path / "runs"))
        assert list(found) == [subject]
        assert words in found[subject]

    def test_a_folder_without_logs(self, tmp_path: Path) -> None:
        found = broken(examined(SLURM, tmp_path / "50%"))
        assert list(found) == ["run directory"]
        assert "slurm does not take in the path of a log." in found["run directory"]

    def test_a_refused_job(self, slurm: Program, tmp_path: Path) -> None:
        words = "sbatch: error: Memory specification can not be satisfied"
        slurm("sbatch", f'echo "{words}" >&2; exit 1')
        found = broken(examined(SLURM, tmp_path))
        assert found == {
            "job of 1 node": "Memory specification can not be satisfied. "
            "Correct the site."
        }

    def test_accounts(self, slurm: Program, tmp_path: Path) -> None:
        slurm("sacctmgr", "echo ml")
        found = examined({**SLURM, "account": "ml"}, tmp_path)
        assert found["account"].text == "ml may be charged"
        found = examined({**SLURM, "account": "mi"}, tmp_path)
        assert broken(found) == {"account": "mi is none of yours. Set account: ml."}

    def test_nodes_that_may_not_submit(self, slurm: Program, tmp_path: Path) -> None:
        slurm("scontrol", 'echo "PartitionName=gpu AllocNodes=login1,login2"')
        found = examined(SLURM, tmp_path)["submit from nodes"]
        assert (found.health, found.text[:10]) == (Health.NOTE, "forbidden:")
        values = {**SLURM, "driver_job": {"walltime": "2h"}}
        assert (
            "remove driver_job"
            in broken(examined(values, tmp_path))["submit from nodes"]
        )

    def test_a_batch_system_that_does_not_answer(
        self, slurm: Program, tmp_path: Path
    ) -> None:
        slurm("sinfo", "echo slurm_load_partitions: Unable to contact >&2; exit 1")
        found = broken(examined(SLURM, tmp_path))
        assert found["batch system"] == (
            "sinfo has no cluster here (slurm_load_partitions: Unable to contact). Run "
            "this on a login node of the cluster, or again once it answers there."
        )

    def test_what_is_only_known_on_nodes(self, tmp_path: Path) -> None:
        found = examined({**SLURM, "python": "python-of-module"}, tmp_path)
        assert found["interpreter"].health is Health.NOTE


def test_without_programs(program: Program, tmp_path: Path) -> None:
    program("sbatch")
    found = broken(examined(SLURM, tmp_path))
    assert list(found) == ["programs"]
    assert (
        "squeue, scancel cannot be run here. Work on a login node of hpc"
        in (found["programs"])
    )


def test_pbs(program: Program, tmp_path: Path) -> None:
    for name in ("qsub", "qdel"):
        program(name)
    program("pbsnodes", "/bin/cat $in.out", out=json.dumps(NODES))
    program(
        "qstat",
        'case "$*" in *-Q*) /bin/cat $in.queues;; *json*) /bin/cat $in.server;;'
        ' *) echo "    flatuid = True";; esac',
        queues=json.dumps({"Queue": {"gpu": QUEUE}}),
        server=json.dumps(SERVER),
    )
    found = examined(PBS, tmp_path)
    assert broken(found) == {}
    assert found["queue"].text == "gpu: 1 x (64 cores, 4 GPUs)"
    assert found["submission"].health is Health.NOTE
    assert found["submit from nodes"].text.startswith("allowed by the configuration;")
    away = {"n1": {**NODES["nodes"]["n1"], "state": "offline,job-busy"}}
    program("pbsnodes", "/bin/cat $in.out", out=json.dumps({"nodes": away}))
    words = "none of 1 node of gpu takes jobs now; jobs wait until one does"
    assert note("queue", words) in examine_site(site_of(PBS), tmp_path)
    program("qstat", "/bin/cat $in.queues", queues='{"Queue": {}, "Server": {}}')
    found = examined(PBS, tmp_path)
    assert broken(found) == {"queue": "pbs has no default queue. Set queue: ."}
    assert found["submit from nodes"].health is Health.NOTE


def test_an_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"scheduler": "allocation", "device_type": "cpu", "gpus_per_node": 2}
    for name in ("SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    found = broken(examined({**values, "driver_interface": "lo"}, tmp_path))
    assert "but this process runs in no batch job" in found["allocation"]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    found = examined({**values, "driver_interface": "lo"}, tmp_path)
    assert found["allocation"].text == "job-7 holds 3 nodes"


def test_clocks() -> None:
    assert clock_finding("clock", 0.3).health is Health.OK
    assert clock_finding("clock", -31.04).text.startswith("-31.0 s against this")


def test_file_systems() -> None:
    assert site_doctor._file_system(Path("/proc")) == "proc"


class TestJob:
    """The job itself runs as a process of this machine."""

    @pytest.fixture(autouse=True)
    def _queue(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.view: JobView | None = JobView(state=JobState.RUNNING)
        self.cancelled: list[str] = []
        # What the queue shows of the job after it was cancelled.
        self.leaving: list[JobView] = []
        self.break_script: Callable[[str], str] = lambda script: script

        def submit(scheduler: object, name: str, script: str) -> DriverRecord:
            self.script = self.break_script(script)
            ended = subprocess.run(
                ["/bin/sh"], input=self.script, text=True, capture_output=True
            )
            if ended.returncode:
                log = next(
                    line.removeprefix("#SBATCH --output=")
                    for line in script.splitlines()
                    if "--output" in line
                )
                if ended.stderr.strip() != "lost":
                    Path(log).write_text(ended.stderr)
                self.view = None
            return DriverRecord(scheduler="slurm", name=name, job_id="5", number=1)

        monkeypatch.setattr(site_trial, "submit_script", submit)

        def look(record: DriverRecord) -> JobView | None:
            if not self.cancelled:
                return self.view
            return self.leaving.pop() if self.leaving else None

        monkeypatch.setattr(site_trial, "look_at", look)
        monkeypatch.setattr(
            site_trial, "cancel", lambda record: self.cancelled.append(record.job_id)
        )
        for name, value in {
            "SOON_S": 0.0,
            "LATE_S": 0.0,
            "_LOOK_AGAIN_S": 0.01,
        }.items():
            monkeypatch.setattr(site_trial, name, value)

    def tried(self, runs: Path, **change: object) -> dict[str, Finding]:
        values = {
            "scheduler": "slurm",
            "device_type": "cpu",
            "gpus_per_node": 2,
            "driver_interface": "lo",
            "interface": "lo",
            **change,
        }
        site = site_of(values)
        found = {each.subject: each for each in site_trial.try_node(site, runs)}
        assert list(runs.iterdir()) == []
        return found

    @pytest.mark.slow
    def test_a_sound_node(self, tmp_path: Path) -> None:
        found = self.tried(tmp_path)
        assert broken(found) == {}
        assert found["job"].text == f"5 ran on {socket.gethostname()} after 0 s queued"
        assert found["driver to node"].text == "reached 127.0.0.1"
        assert found["node's clock"].health is Health.OK
        assert found["torch"].text.endswith(sys.executable)
        assert self.cancelled == ["5"]
        assert "--time=00:05:00" in self.script

    @pytest.mark.slow
    def test_what_a_node_lacks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        found = self.tried(
            tmp_path, device_type="cuda", cores_per_node=512, interface="ib9"
        )
        assert {"node to driver", "devices"} <= set(broken(found))
        assert "does not reach 127.0.0.1:" in found["node to driver"].text
        assert "Ranks will share cores" in found["cores"].text

    def test_the_folder_stays_until_the_job_has_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # PBS copies the log after the job: without its folder the node is blocked.
        leaving = JobView(state=JobState.ENDED, is_leaving=True)
        self.leaving = [leaving, leaving, JobView(state=JobState.RUNNING)]
        self.break_script = lambda script: "echo lost >&2; exit 1"
        folders = []
        monkeypatch.setattr(
            "shutil.rmtree", lambda path, **_: folders.append(Path(path))
        )
        site = site_of({"scheduler": "slurm", "device_type": "cpu", "gpus_per_node": 2})
        list(site_trial.try_node(site, tmp_path))
        assert self.leaving == []
        assert folders == list(tmp_path.iterdir())

    def test_a_job_that_fails(self, tmp_path: Path) -> None:
        self.break_script = lambda script: "echo module: no such thing >&2; exit 1"
        text = broken(self.tried(tmp_path))["job"]
        assert (
            text == "job 5 ended and wrote no findings. Its log: module: no such thing"
        )

    def test_a_folder_that_is_not_shared(self, tmp_path: Path) -> None:
        self.break_script = lambda script: "echo lost >&2; exit 1"
        text = broken(self.tried(tmp_path))["job"]
        assert (
            f"nodes do not share {tmp_path}. Sweep into a folder that they do" in text
        )

    def test_a_folder_that_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> str:
            raise PermissionError(13, "Permission denied", str(tmp_path))

        monkeypatch.setattr(site_trial.tempfile, "mkdtemp", refuse)
        assert broken(self.tried(tmp_path)) == {
            "job": f"[Errno 13] Permission denied: '{tmp_path}'"
        }

    def test_a_folder_where_the_batch_system_writes_no_log(
        self, tmp_path: Path
    ) -> None:
        runs = tmp_path / "50%"
        runs.mkdir()
        assert "slurm does not take" in broken(self.tried(runs))["job"]
        assert self.cancelled == []

    @pytest.mark.parametrize(
        ("can_never_run", "words"),
        [
            (True, "job 5 can never run: BadConstraints. Correct the site."),
            (False, r"did not start within 0 min (BadConstraints) and was cancelled."),
        ],
    )
    def test_a_job_that_does_not_start(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        can_never_run: bool,
        words: str,
    ) -> None:
        monkeypatch.setattr(site_trial, "QUEUED_S", 0.0)
        self.break_script = lambda script: "true"
        self.view = JobView(
            state=JobState.PENDING, reason="BadConstraints", can_never_run=can_never_run
        )
        assert words in broken(self.tried(tmp_path))["job"]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "has_driver_job", [True, pytest.param(False, marks=pytest.mark.repetition)]
    )
    def test_a_node_that_may_not_submit(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        program: Program,
        has_driver_job: bool,
    ) -> None:
        program("sbatch", "echo Access denied >&2; exit 1")
        job = {"driver_job": {"walltime": "2h"}} if has_driver_job else {}
        runs = tmp_path / "runs"
        runs.mkdir()
        finding = self.tried(runs, **job)["submit from nodes"]
        assert (finding.health is Health.BROKEN) == has_driver_job
        assert "may not" in finding.text


def test_a_node_that_is_not_called_back_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_visit, "CALL_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        task = {
            "token": "t",
            "url": f"127.0.0.1:{server.getsockname()[1]}",
            "interface": None,
            "scheduler": "pbs",
            "device_type": "cpu",
            "num_devices": 2,
        }
        (tmp_path / "task.json").write_text(json.dumps(task))
        monkeypatch.setattr("sys.argv", ["visit", str(tmp_path)])
        site_visit.main()
    found = json.loads((tmp_path / "answer.json").read_bytes())
    assert found["is_called_back"] is False
    assert found["may_submit"] is False
    assert len(found["devices"]) == 2


def test_every_node_group_is_checked(slurm: Program, tmp_path: Path) -> None:
    groups = {
        "big": {"memory_per_node": "900GB"},
        "small": {"gpus_per_node": 2, "partition": "nowhere"},
    }
    found = examined({**SLURM, "node_groups": groups}, tmp_path)
    assert set(broken(found)) == {"big: partition", "small: partition"}
    assert (
        "has no node with 32 cores, 4 GPUs, 838.2 GiB" in found["big: partition"].text
    )
    assert "has no partition 'nowhere'" in found["small: partition"].text
    assert found["big: job of 1 node"].health is Health.OK
    assert found["small: job of 1 node"].health is Health.OK
    assert found["network"].health is Health.OK


def test_a_finding_names_its_node_groups_and_a_failure_is_said_once() -> None:
    groups = {"big": {}, "small": {"gpus_per_node": 2}, "old": {}}
    site = site_of({**SLURM, "node_groups": groups})

    def check(group: Site) -> Iterator[Finding]:
        yield ok("job", "taken")
        yield note("cores", f"{group.gpus_per_node} GPUs")

    assert [(each.subject, each.text) for each in of_each_group(site, check)] == [
        ("big: job", "taken"),
        ("small: job", "taken"),
        ("old: job", "taken"),
        ("big, old: cores", "4 GPUs"),
        ("small: cores", "2 GPUs"),
    ]


def test_a_failure_of_every_node_group_is_said_once(
    program: Program, tmp_path: Path
) -> None:
    for name in ("sbatch", "squeue", "scancel"):
        program(name, "echo down >&2; exit 1")
    groups = {"big": {}, "small": {"gpus_per_node": 2}}
    found = broken(examined({**SLURM, "node_groups": groups}, tmp_path / "runs"))
    assert list(found) == ["big, small: batch system"]


def test_a_routing_queue_takes_jobs(program: Program, tmp_path: Path) -> None:
    for name in ("qsub", "qdel"):
        program(name)
    program("pbsnodes", "/bin/cat $in.out", out=json.dumps(NODES))
    route = {**QUEUE, "queue_type": "Route", "route_destinations": "gpu"}
    program(
        "qstat",
        'case "$*" in *-Q*) /bin/cat $in.queues;; *json*) /bin/cat $in.server;; esac',
        queues=json.dumps({"Queue": {"r1": route, "gpu": QUEUE}}),
        server=json.dumps(SERVER),
    )
    found = examined({**PBS, "queue": "r1"}, tmp_path)
    assert broken(found) == {}
    assert found["queue"].text == "r1 routes to gpu: 1 x (64 cores, 4 GPUs)"


@pytest.mark.parametrize(
    ("folder", "found"),
    [("it's", '"\'"'), ("läuft", "'ä'"), ("a b", "' '"), ("a\\b", r"'\\'")],
)
def test_pbs_writes_no_log_under_some_names(
    tmp_path: Path, folder: str, found: str
) -> None:
    text = broken(examined(PBS, tmp_path / folder))["run directory"]
    assert f"holds {found}, which pbs does not take in the path of a log." in text
    assert text.endswith("Choose another directory for the run with --runs.")


def test_a_server_that_is_away_is_no_fault_of_the_site(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "qsub: cannot connect to server head (errno=15010)"
    program("qsub", f'echo "{words}" >&2; exit 162')
    job = {each.subject: each for each in site_trial.try_node(site_of(PBS), tmp_path)}
    assert broken(job)["job"] == f"pbs takes no job now: {words}. Try again later."
