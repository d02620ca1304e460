"""What happens to jobs, hosts and drivers of a sweep on PBS, or on its stand-in."""

import os
import re
import signal
import subprocess
import sys

import batch_scenarios
import pytest
from batch_scenarios import running_job
from own_jobs import own_jobs
from pbs_sweeps import SMALL, Pbs, Swept
from waiting import wait_until
from watching import is_running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.repetition
def test_fifty_trials_survive_the_loss_of_job_nanny_and_worker(pbs: Pbs) -> None:
    swept = Swept(pbs, "lossy", batch_scenarios.FIFTY_FOUR, nodes=2)
    said = batch_scenarios.loses_a_job_a_nanny_and_a_worker(swept)
    assert "ended: the batch system does not know it any more." in said, said


@pytest.mark.repetition
def test_a_killed_driver_leaves_nothing_and_is_succeeded(pbs: Pbs) -> None:
    trials = batch_scenarios.TWENTY_SEVEN
    swept = Swept(pbs, "killed", trials, nodes=2, max_jobs=2)
    batch_scenarios.loses_its_driver(swept)


@pytest.mark.repetition
def test_preempted_jobs_and_a_restarted_server_cost_nothing_but_time(
    pbs: Pbs,
) -> None:
    def preempt() -> None:
        pbs.admin("suspend", running_job(swept))

    def preempt_and_restart_server() -> None:
        job = running_job(swept)
        pbs.admin("preempt", job)
        wait_until(lambda: job not in pbs.jobs(), "it is deleted, not requeued")
        pbs.admin("stop-server")
        seen = "cannot connect to server"
        wait_until(lambda: seen in swept.status(), "the sweep has noticed")
        pbs.admin("start-server")

    swept = Swept(pbs, "outbid", batch_scenarios.TWELVE, nodes=1)
    said, lost = batch_scenarios.is_preempted_and_left_alone(
        swept, preempt, preempt_and_restart_server
    )
    assert "ended: suspended, so it was given up." in said, said
    # Of a job that has gone PBS does not say why.
    outcomes = set(lost["outcome"])
    assert outcomes == {"preempted", "node_fail"}, lost["reason"].to_list()


@pytest.mark.repetition
def test_how_a_job_ended_is_read_in_the_history_where_one_is_kept(pbs: Pbs) -> None:
    pbs.admin("keep-history")
    swept = Swept(pbs, "timeout-study", batch_scenarios.TWELVE, nodes=1)
    swept.start()
    swept.wait_for_trials(3)
    pbs.cancel(running_job(swept))
    code, said = swept.end()
    assert code == 0, said + swept.job_logs()
    swept.check_complete(12)
    assert re.search(r"ended with status 271\. .* and terminated by \S+@", said), said
    lost = swept.observations().query("outcome != 'completed'")
    # Though the run is called so.
    assert set(lost["outcome"]) == {"node_fail"}, lost["reason"].to_list()


@pytest.mark.repetition
def test_a_host_that_goes_down_is_done_without(pbs: Pbs) -> None:
    def take_down() -> str:
        host = pbs.admin("host-of", running_job(swept))
        pbs.admin("cut-power", host)
        return host

    swept = Swept(pbs, "down", batch_scenarios.TWELVE_ON_TWO_NODES, nodes=2)
    batch_scenarios.loses_a_host(swept, take_down)


@pytest.mark.repetition
def test_what_waits_says_why_and_a_deleted_job_is_replaced(pbs: Pbs) -> None:
    if pbs.is_real:
        pytest.skip("holds all GPUs of the stand-in")
    # All GPUs are held by somebody else's job.
    other = pbs.home / "other.sh"
    other.write_text(
        "#PBS -N 7\n#PBS -l select=4:ncpus=1:ngpus=2\n#PBS -o other.log\nsleep 100\n"
    )
    held = pbs.run("qsub", str(other)).strip()
    swept = Swept(pbs, "queued", {**SMALL, "gpus": [1]})
    why = "pending, Not Running: Insufficient amount of resource: ngpus"
    batch_scenarios.loses_a_job_that_waits(swept, 3, held, why)


KILLED = """
import os, signal, subprocess, sys, time
from pathlib import Path
from pbs_sweeps import Pbs

home, is_real = sys.argv[1:]
pbs = Pbs(Path(home), is_real=bool(is_real))
job = "#PBS -N lasting\\n#PBS -l select=1:ncpus=1\\n#PBS -o lasting.log\\nsleep 600\\n"
(pbs.home / "job.sh").write_text(job)
# As a driver does, it submits another job for the one that is lost.
drive = 'while true; do job=$(qsub job.sh); while qstat -f "$job"; do :; done; done'
driver = subprocess.Popen(
    ["bash", "-c", f"({drive}) >/dev/null 2>&1"], cwd=pbs.home, env=pbs.env
)
while not pbs.jobs():
    time.sleep(0.1)
print(*pbs.jobs(), driver.pid, pbs.env.get("STANDIN_PBS", ""))
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.repetition
def test_a_test_that_is_killed_leaves_no_job_and_no_driver(pbs: Pbs) -> None:
    home = pbs.home / "of-the-killed"
    home.mkdir()
    search_path = os.pathsep.join(sys.path)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(home), "real" if pbs.is_real else ""],
        env={**os.environ, "PYTHONPATH": search_path},
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    job, driver, *state = killed.stdout.split()
    if not pbs.is_real:
        pbs.env |= {"STANDIN_PBS": state[0]}
    wait_until(lambda: not is_running(int(driver)), "the driver has gone")
    wait_until(
        lambda: "Unknown Job Id" in pbs.complaints("qstat", "-f", job), "it has gone"
    )
    own = lambda: own_jobs(str(home), pbs.env)  # noqa: E731
    wait_until(lambda: not own(), "and so has any other")
