"""What is made of the answers of SLURM and PBS, by programs that repeat them."""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from fake_programs import FakePrograms

from scalelab.cluster.batch import queue as batch_queue
from scalelab.cluster.batch.queue import (
    EndCause,
    JobState,
    JobView,
    batch_client,
    cancelled,
    submitted,
)
from scalelab.errors import BusyError, ClusterError

Program = Callable[..., Path]


@pytest.fixture
def program(fake_programs: FakePrograms) -> Program:
    """Put a program on the path that says and returns the same whatever it is asked."""
    return fake_programs.says


def look(scheduler: str, **jobs: str) -> dict[str, JobView]:
    return asyncio.run(batch_client(scheduler).look(jobs))


SLURM_LINES = """\
11|PENDING|Priority|2026-11-21T03:00:00|10:00
12|PENDING|PartitionTimeLimit|N/A|1:00:00
13|RUNNING|None|2026-11-20T08:00:00|9:58
14|SUSPENDED|None|2026-11-20T08:00:00|UNLIMITED
15|CANCELLED|None|2026-11-20T08:00:00|9:00
16|TIMEOUT|TimeLimit|2026-11-20T08:00:00|0:00
17|COMPLETING|None|2026-11-20T08:00:00|0:10
18|PENDING|QOSMaxGRESPerJob|N/A|10:00
19|PENDING|AssocGrpGRES|N/A|10:00
20|PREEMPTED|None|2026-11-20T08:00:00|9:00
21|NODE_FAIL|None|2026-11-20T08:00:00|9:00
22|COMPLETING|TimeLimit|2026-11-20T08:00:00|0:00
"""


def test_slurm_shows_jobs(program: Program) -> None:
    asked = program("squeue", SLURM_LINES)
    ids = {f"job{number}": str(number) for number in range(11, 24)}
    views = look("slurm", **ids)
    assert "--jobs=11,12,13,14,15,16,17,18,19,20,21,22,23" in asked.read_text().split()
    pending, running, ended = JobState.PENDING, JobState.RUNNING, JobState.ENDED
    assert views == {
        "job11": JobView(
            state=pending, reason="Priority", estimated_start="2026-11-21T03:00:00"
        ),
        "job12": JobView(
            state=pending, reason="PartitionTimeLimit", can_never_run=True
        ),
        "job13": JobView(
            state=running, remaining_s=598, estimated_start="2026-11-20T08:00:00"
        ),
        "job14": JobView(
            state=running,
            reason="SUSPENDED",
            estimated_start="2026-11-20T08:00:00",
            is_suspended=True,
            end_cause=EndCause.PREEMPTED,
        ),
        "job15": JobView(
            state=ended, reason="CANCELLED", estimated_start="2026-11-20T08:00:00"
        ),
        "job16": JobView(
            state=ended,
            reason="TIMEOUT (TimeLimit)",
            estimated_start="2026-11-20T08:00:00",
            end_cause=EndCause.TIME_LIMIT,
        ),
        "job17": JobView(
            state=running,
            reason="COMPLETING",
            estimated_start="2026-11-20T08:00:00",
            is_leaving=True,
        ),
        "job18": JobView(state=pending, reason="QOSMaxGRESPerJob", can_never_run=True),
        "job19": JobView(state=pending, reason="AssocGrpGRES"),
        "job20": JobView(
            state=ended,
            reason="PREEMPTED",
            estimated_start="2026-11-20T08:00:00",
            end_cause=EndCause.PREEMPTED,
        ),
        "job21": JobView(
            state=ended, reason="NODE_FAIL", estimated_start="2026-11-20T08:00:00"
        ),
        "job22": JobView(
            state=running,
            reason="COMPLETING (TimeLimit)",
            estimated_start="2026-11-20T08:00:00",
            is_leaving=True,
            end_cause=EndCause.TIME_LIMIT,
        ),
    }


def test_slurm_has_forgotten_a_job(program: Program) -> None:
    error = "slurm_load_jobs error: Invalid job id specified"
    program("squeue", errors=error, status=1)
    assert look("slurm", a="1") == {}


def test_a_batch_system_that_does_not_answer_is_an_error_in_its_words(
    program: Program,
) -> None:
    error = "slurm_load_jobs error: Unable to contact slurm controller"
    program("squeue", errors=error, status=1)
    with pytest.raises(ClusterError, match=f"squeue: {error}"):
        look("slurm", a="1")
    program("qstat", errors="Connection refused\nqstat: cannot connect", status=111)
    with pytest.raises(ClusterError, match="qstat: Connection refused"):
        look("pbs", a="1")
    program("qstat", output="Job Id: 2.head\n    job_state = R\n")
    with pytest.raises(ClusterError, match=r"neither shows job 1\.head nor says"):
        look("pbs", a="1.head", b="2.head")


def test_a_program_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="qstat cannot be run here: No such file"):
        look("pbs", a="1")


PBS_JOBS = """\
Job Id: 1.head
    Job_Name = dask-worker
    job_state = Q
    Resource_List.ngpus = 2
    comment = Not Running: Insufficient ng
\tpus

Job Id: 2.head
    job_state = Q
    comment = Can Never Run: Insufficient ngpus (A: 6)

Job Id: 3.head
    job_state = H
    comment = held by a user

Job Id: 4.head
    job_state = R
    comment = Job run at Fri Nov 20
    Resource_List.walltime = 00:10:00
    resources_used.walltime = 00:00:20

Job Id: 5.head
    job_state = R
    Resource_List.walltime = 01:00:00

Job Id: 6.head
    Job_Name = 7
    job_state = S

Job Id: 7.head
    job_state = F
    Exit_status = -29

Job Id: 8.head
    job_state = E
    Exit_status = 271

Job Id: 9.head
    job_state = Q
    estimated.start_time = Sat Nov 21 03:00:00
"""


def test_pbs_shows_jobs(program: Program) -> None:
    errors = "qstat: Unknown Job Id 10.head"
    asked = program("qstat", output=PBS_JOBS, errors=errors, status=153)
    views = look("pbs", **{f"job{n}": f"{n}.head" for n in range(1, 11)})
    # All at once, and in the form that shows all of them.
    ids = " ".join(f"{number}.head" for number in range(1, 11))
    assert asked.read_text() == f"-f {ids}\n"
    pending, running, ended = JobState.PENDING, JobState.RUNNING, JobState.ENDED
    assert views == {
        "job1": JobView(state=pending, reason="Not Running: Insufficient ngpus"),
        "job2": JobView(
            state=pending,
            reason="Can Never Run: Insufficient ngpus (A: 6)",
            can_never_run=True,
        ),
        "job3": JobView(
            state=pending, reason="held. held by a user", can_never_run=True
        ),
        "job4": JobView(state=running, remaining_s=580),
        "job5": JobView(state=running, remaining_s=3600),
        "job6": JobView(
            state=running,
            reason="suspended",
            is_suspended=True,
            end_cause=EndCause.PREEMPTED,
        ),
        "job7": JobView(
            state=ended,
            reason="ended with status -29",
            end_cause=EndCause.TIME_LIMIT,
        ),
        "job8": JobView(state=ended, reason="ended with status 271", is_leaving=True),
        "job9": JobView(state=pending, estimated_start="Sat Nov 21 03:00:00"),
    }


@pytest.mark.parametrize(
    ("began_s", "used", "left_s"),
    [
        (200, "00:02:30", 400),  # of the time used the node has not told for 50 s
        (5, None, 595),
        (-3600, "00:00:10", 590),  # the server's clock is an hour ahead
        (3600, "00:00:10", 460),  # or behind: a node tells every two minutes
    ],
)
def test_pbs_counts_the_walltime_from_the_start_of_the_job(
    program: Program, began_s: float, used: str | None, left_s: float
) -> None:
    started = time.ctime(time.time() - began_s)
    lines = [f"stime = {started}", "Resource_List.walltime = 00:10:00"]
    lines += [f"resources_used.walltime = {used}"] if used else []
    shown = "".join(f"    {line}\n" for line in ["job_state = R", *lines])
    program("qstat", output=f"Job Id: 1.head\n{shown}")
    view = look("pbs", a="1.head")["a"]
    assert view.remaining_s == pytest.approx(left_s, abs=30)


def test_a_job_of_pbs_ends_with_its_reservation(fake_programs: FakePrograms) -> None:
    job = "    job_state = R\n    queue = R109\n    Resource_List.walltime = 00:10:00\n"
    end = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(time.time() + 150))
    asked = fake_programs.says(
        "pbs_rstat", f"Resv ID: R109.head\nreserve_end = {end}\n"
    )
    fake_programs.says("qstat", f"Job Id: 1.head\n{job}")
    client = batch_client("pbs")

    async def looks() -> list[JobView]:
        return [(await client.look({"a": "1.head"}))["a"] for _ in range(2)]

    for view in asyncio.run(looks()):
        assert view.remaining_s == pytest.approx(150, abs=30)
    assert asked.read_text() == "-f R109\n", "asked once"
    fake_programs.says("pbs_rstat", errors="Unknown Reservation Id", status=236)
    assert look("pbs", a="1.head")["a"].remaining_s == 600


def test_pbs_tells_from_its_history_how_a_job_ended(
    fake_programs: FakePrograms,
) -> None:
    kept = "".join(
        f"Job Id: {number}.head\n    job_state = F\n    Exit_status = {status}\n"
        f"    comment = {comment}\n\n"
        for number, status, comment in [
            (1, 271, "terminated by alice@pbshead"),
            (2, -29, "walltime 27 exceeded limit 20"),
        ]
    )
    gone = "has finished, use -x or -H to obtain historical job information"
    asked = fake_programs.does(
        "qstat",
        'case "$*" in -x*) exec /bin/cat $in.kept;; esac\n'
        f'echo "qstat: 1.head Job {gone}" >&2\n'
        f'echo "qstat: 2.head Job {gone}" >&2\n'
        'echo "qstat: Unknown Job Id 3.head" >&2; exit 153',
        kept=kept,
    )
    assert look("pbs", a="1.head", b="2.head", c="3.head") == {
        "a": JobView(
            state=JobState.ENDED,
            reason="ended with status 271. terminated by alice@pbshead",
        ),
        "b": JobView(
            state=JobState.ENDED,
            reason="ended with status -29. walltime 27 exceeded limit 20",
            end_cause=EndCause.TIME_LIMIT,
        ),
    }
    assert asked.read_text().splitlines()[-1] == "-x -f 1.head 2.head"


@pytest.mark.parametrize(
    ("errors", "status"),
    [
        ("qstat: Unknown Job Id 1.head", 153),
        ("qstat: 1.head Job has finished, use -x or -H to obtain information", 35),
        ("", 35),
    ],
)
def test_pbs_knows_only_jobs_that_have_not_ended(
    program: Program, errors: str, status: int
) -> None:
    program("qstat", errors=errors, status=status)
    assert look("pbs", a="1.head") == {}


def test_a_qstat_that_shows_one_of_several_jobs_is_asked_about_each(
    fake_programs: FakePrograms,
) -> None:
    one, two = (f"Job Id: {n}.head\n    job_state = R\n" for n in (1, 2))
    asked = fake_programs.answers("qstat", ("1.head", one), ("2.head", two))
    views = look("pbs", a="1.head", b="2.head")
    assert {name: view.state for name, view in views.items()} == {
        "a": JobState.RUNNING,
        "b": JobState.RUNNING,
    }
    assert asked.read_text().splitlines() == ["-f 1.head 2.head", "-f 2.head"]


@pytest.mark.parametrize(
    ("scheduler", "submit", "answer", "cancel", "job_id"),
    [
        ("slurm", "sbatch", "Submitted batch job 17", "scancel", "17"),
        ("pbs", "qsub", "17.head\n", "qdel", "17.head"),
    ],
)
def test_jobs_are_submitted_as_they_are_and_cancelled(
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheduler: str,
    submit: str,
    answer: str,
    cancel: str,
    job_id: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    asked, cancelled = program(submit, answer), program(cancel)
    job = batch_client(scheduler).job("vit-1", "#!/bin/sh\ntrue\n")

    async def live() -> None:
        await job.start()
        await job.close()

    asyncio.run(live())
    assert job.job_id == job_id
    assert len(asked.read_text().split()) == 1, "the script, and no option"
    assert cancelled.read_text().split()[-1] == job_id


def test_a_refusal_is_told_in_the_schedulers_words(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    errors = "sbatch: error: invalid partition specified: x\nsbatch: error: no"
    program("sbatch", errors=errors, status=1)
    job = batch_client("slurm").job("vit-1", "#!/bin/sh\n")
    with pytest.raises(ClusterError) as caught:
        asyncio.run(submitted(job))
    assert not isinstance(caught.value, BusyError)
    assert str(caught.value) == errors.replace("\n", " ")


@pytest.mark.parametrize(
    ("scheduler", "submit", "words"),
    [
        (
            "slurm",
            "sbatch",
            "Batch job submission failed: Socket timed out on send/recv",
        ),
        ("slurm", "sbatch", "Batch job submission failed: Zero Bytes were transmitted"),
        ("slurm", "sbatch", "Batch job submission failed: Unexpected message received"),
        ("slurm", "sbatch", "Batch job submission failed: Message receive failure"),
        ("slurm", "sbatch", "QOSMaxSubmitJobPerUserLimit: Job violates QOS policy"),
        ("slurm", "sbatch", "Unable to contact slurm controller (connect failure)"),
        ("pbs", "qsub", "cannot connect to server head (errno=15010)"),
        ("pbs", "qsub", "would exceed queue generic's per-user limit of jobs"),
        ("pbs", "qsub", "Maximum number of jobs already in queue"),
        ("pbs", "qsub", "End of File"),
    ],
)
def test_a_batch_system_that_takes_no_job_now_is_busy(
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheduler: str,
    submit: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    program(submit, errors=f"{submit}: error: {words}", status=1)
    job = batch_client(scheduler).job("vit-1", "#!/bin/sh\n")
    with pytest.raises(BusyError, match=re.escape(words)):
        asyncio.run(submitted(job))


class StuckJob:
    job_id = None

    async def start(self) -> None:
        await asyncio.sleep(60)

    close = start


@pytest.mark.parametrize("call", [submitted, cancelled])
def test_a_batch_system_that_stands_still_is_said_to(
    monkeypatch: pytest.MonkeyPatch, call: Callable[..., Coroutine[None, None, None]]
) -> None:
    monkeypatch.setattr(batch_queue, "CALL_TIMEOUT_S", 0.05)
    with pytest.raises(BusyError, match=r"it did not answer within 0\.05 s"):
        asyncio.run(call(StuckJob()))
