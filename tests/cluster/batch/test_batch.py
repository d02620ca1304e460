"""What becomes of requests for jobs, with programs that stand where SLURM's do."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
from fake_programs import FakePrograms
from sentences import refused

from scalelab.cluster.batch import nodes as module
from scalelab.cluster.batch.nodes import BatchNodes
from scalelab.cluster.batch.queue import (
    JobRefused,
    JobState,
    JobSubmitted,
    QueueEvent,
    QueueSeen,
)
from scalelab.cluster.dask_nodes import cluster_of
from scalelab.cluster.hub import AllocationNodes
from scalelab.cluster.local import LocalNodes
from scalelab.errors import ClusterError
from scalelab.experiment.program import WorkloadProgram
from scalelab.records.control.job_list import JobLine, JobList
from scalelab.site.choice import site_of

DIGITS = WorkloadProgram(name="digits_mlp")
SLURM = {
    "scheduler": "slurm",
    "device_type": "cpu",
    "gpus_per_node": 2,
    "driver_interface": "lo",
    "interface": "lo",
}


@pytest.fixture
def program(
    fake_programs: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Put a program on the path; return the file that keeps what it was asked."""
    monkeypatch.chdir(fake_programs.folder)
    return fake_programs.does


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "vit" / "cluster"
    path.mkdir(parents=True)
    return path


def batch(directory: Path, **site: object) -> BatchNodes:
    return BatchNodes(site_of({**SLURM, **site}), run=directory.parent, max_nodes=3)


@pytest.mark.slow
def test_a_job_is_submitted_seen_and_cancelled(
    program: Callable[..., Path], directory: Path
) -> None:
    submitted = program("sbatch", 'cp "$1" script; echo Submitted batch job 17')
    program("squeue", "echo '17|PENDING|Resources|N/A|10:00'")
    cancelled = program("scancel")
    heard: SimpleQueue[QueueEvent] = SimpleQueue()
    with batch(directory) as nodes:
        assert nodes.expected_devices == {None: (2, 2, 2)}
        assert nodes.nodes() == []
        nodes.attend(heard.put)
        assert nodes.request(1) == "vit-1"
        assert heard.get(timeout=60) == JobSubmitted("vit-1", "17")
        assert "--job-name=vit-1" in Path("script").read_text()
        nodes.look()
        seen = heard.get(timeout=60)
        assert isinstance(seen, QueueSeen)
        assert seen.views["vit-1"].state is JobState.PENDING
        assert seen.asked == {"vit-1"}
        line = JobLine(name="vit-1", job_id="17", num_nodes=1, state="pending")
        nodes.write_list([line], ["why"])
        assert JobList.read(directory).last_number == 1
        nodes.give_back("vit-1")
        nodes.look()
        assert heard.get(timeout=60) == QueueSeen({}, frozenset())
        assert nodes.request(1) == "vit-2"
        assert heard.get(timeout=60) == JobSubmitted("vit-2", "17")
    assert len(submitted.read_text().splitlines()) == 2
    assert cancelled.read_text().splitlines() == ["--name=vit-1 17", "--name=vit-2 17"]
    assert JobList.read(directory) == JobList(last_number=2)


@pytest.mark.slow
def test_refusals_and_silence_are_told(
    program: Callable[..., Path], directory: Path
) -> None:
    program("sbatch", "echo sbatch: error: Invalid account >&2; exit 1")
    heard: SimpleQueue[QueueEvent] = SimpleQueue()
    with batch(directory) as nodes:
        nodes.attend(heard.put)
        nodes.request(1)
        assert heard.get(timeout=60) == JobRefused(
            "vit-1", "sbatch: error: Invalid account"
        )
        program("sbatch", "echo Submitted batch job 17")
        program("scancel")
        program("squeue", "echo Unable to contact slurm controller >&2; exit 1")
        nodes.request(1)
        assert isinstance(heard.get(timeout=60), JobSubmitted)
        nodes.look()
        silent = heard.get(timeout=60)
        assert isinstance(silent, QueueSeen)
        assert silent.error == "squeue: Unable to contact slurm controller"
        program("squeue", "echo something else")
        nodes.look()
        strange = heard.get(timeout=60)
        assert isinstance(strange, QueueSeen)
        assert strange.error == "squeue said 'something else', and not all jobs."


def test_a_job_that_cannot_be_asked_for_is_the_callers_error(
    program: Callable[..., Path], tmp_path: Path
) -> None:
    submitted = program("sbatch", "echo Submitted batch job 17")
    with batch(tmp_path / "50%" / "cluster") as nodes:
        with refused("log_path_refused", "slurm"):
            nodes.request(1)
    assert not submitted.exists()
    assert JobList.read(tmp_path / "50%" / "cluster").last_number == 0


def test_jobs_that_a_dead_driver_has_left_are_cancelled(
    program: Callable[..., Path], directory: Path
) -> None:
    cancelled = program("scancel")
    left = [
        JobLine(name="vit-3", job_id="17", num_nodes=1, state="pending"),
        JobLine(name="vit-4", job_id=None, num_nodes=1, state="pending"),
    ]
    JobList(jobs=left, last_number=4).write(directory)
    program("sbatch", "echo Submitted batch job 18")
    program("squeue")
    with batch(directory) as nodes:
        assert cancelled.read_text() == "--name=vit-3 17\n"
        assert nodes.request(1) == "vit-5"


def test_a_job_that_cannot_be_cancelled_is_left_to_the_next_driver(
    program: Callable[..., Path], directory: Path
) -> None:
    program("sbatch", "echo Submitted batch job 17")
    program("squeue", "echo '17|PENDING|Resources|N/A|10:00'")
    away = "scancel: error: Unable to contact slurm controller"
    program("scancel", f"echo {away} >&2; exit 1")
    heard: SimpleQueue[QueueEvent] = SimpleQueue()
    with batch(directory) as nodes:
        nodes.attend(heard.put)
        nodes.request(2)
        assert isinstance(heard.get(timeout=60), JobSubmitted)
    left = JobLine(
        name="vit-1",
        job_id="17",
        num_nodes=2,
        state="not cancelled",
        reason=away,
    )
    assert JobList.read(directory) == JobList(jobs=(left,), last_number=1)
    cancelled = program("scancel", "echo Invalid job id specified >&2; exit 1")
    with batch(directory):
        assert cancelled.read_text().splitlines()[-1] == "--name=vit-1 17"
    assert JobList.read(directory) == JobList(last_number=1)


@pytest.mark.slow
def test_jobs_are_kept_where_cancelling_them_takes_too_long(
    program: Callable[..., Path], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_TIMEOUT_S", 1.0)
    left = [
        JobLine(name=f"vit-{number}", job_id=str(number), num_nodes=1, state="up")
        for number in (1, 2)
    ]
    JobList(jobs=left, last_number=2).write(directory)
    program("scancel", "exec sleep 30")
    with batch(directory) as nodes:
        own = JobLine(name="vit-3", job_id="3", num_nodes=1, state="up")
        nodes.write_list([own], [])
        ending = [replace(line, state="being given back") for line in left]
        assert list(JobList.read(directory).jobs) == [own, *ending]
    assert list(JobList.read(directory).jobs) == ending


def test_the_site_decides_where_nodes_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(**site: object) -> AllocationNodes | BatchNodes:
        found = site_of({**SLURM, **site})
        return cluster_of(
            found,
            run=tmp_path / "vit",
            max_nodes=5,
            programs=[DIGITS],
            parallelism=["ddp"],
        )

    assert isinstance(made(), BatchNodes)
    assert made().expected_devices == {None: (2,) * 5}
    assert made(nodes=3).expected_devices == {None: (2,) * 3}
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    held = made(scheduler="allocation")
    assert isinstance(held, AllocationNodes)
    assert held.expected_devices == {None: (2,) * 4}
    local = site_of({"device_type": "cpu", "gpus_per_node": 1})
    assert isinstance(
        cluster_of(
            local, run=tmp_path, max_nodes=1, programs=[DIGITS], parallelism=["ddp"]
        ),
        LocalNodes,
    )


def test_an_allocation_whose_nodes_do_not_answer_is_an_error_with_the_log(
    program: Callable[..., Path], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PBS_JOBID", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    asked = program("srun", "echo no python here; exit 1")
    site = site_of({**SLURM, "scheduler": "allocation"})
    with (
        pytest.raises(ClusterError, match=r"(?s)0 of the 2 nodes of job-17 .*no pyth"),
        AllocationNodes(site, run=directory.parent, max_nodes=2),
    ):
        pass
    assert "--overlap" in asked.read_text()
    assert not list(directory.glob("*.pem"))


NODES = {"nodes": {"n1": {"resources_available": {"ncpus": 8, "ngpus": 6}}}}
QUEUES = {"Queue": {"gpu": {"enabled": "True", "started": "True"}}}
SERVER = {"Server": {"pbs": {"default_queue": "gpu"}}}


def test_a_node_that_is_larger_than_any_is_refused_before_a_job_waits_for_it(
    fake_programs: FakePrograms, directory: Path
) -> None:
    fake_programs.answers("pbsnodes", ("-av", json.dumps(NODES)))
    fake_programs.answers(
        "qstat", ("-Q", json.dumps(QUEUES)), ("-B", json.dumps(SERVER))
    )
    submitted = fake_programs.does("qsub")
    asked = {"scheduler": "pbs", "device_type": "cuda", "gpus_per_node": 7}
    with pytest.raises(ClusterError, match=r"gpu has no node with 7 GPUs, only 1 x "):
        with batch(directory, **asked):
            pass
    with batch(directory, **{**asked, "gpus_per_node": 6}):
        pass
    assert not submitted.exists()
