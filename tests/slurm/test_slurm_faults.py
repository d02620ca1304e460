"""What happens to jobs, nodes and the driver while a sweep runs on a real SLURM."""

import re

import pytest
from slurm_sweeps import Swept, processes_of
from throwaway_slurm import USER_ID, ThrowawaySlurm
from waiting import wait_until

from scalelab.records.job_list import JobList

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]

# Short trials, so that a fault meets one of many.
MANY = {
    "workload": {"name": "emulated", "sample_time_s": 0.002},
    "measure": {
        "kind": "throughput",
        "warmup_steps": 1,
        "steps": 15,
        "repeats": 9,
        "canary_every": 0,
    },
    "local_batch_size": [4, 8, 16],
}


FEW = {**MANY, "measure": {**MANY["measure"], "repeats": 4}}


def running_job(slurm: ThrowawaySlurm) -> str:
    """Return a job that runs."""
    (job, *_) = [job for job, state in slurm.jobs().items() if state == "RUNNING"]
    return job


def test_fifty_trials_survive_the_loss_of_job_nanny_and_worker(
    slurm: ThrowawaySlurm,
) -> None:
    swept = Swept(slurm, "lossy", {**MANY, "gpus": [1, 4]}, nodes=2)
    swept.start()
    swept.wait_for_trials(3)
    slurm.run(["scancel", running_job(slurm)])
    swept.wait_for_trials(12)
    nanny = processes_of(slurm, "scalelab.cluster.node_process")[0]
    nanny.kill()
    swept.wait_for_trials(24)
    worker = processes_of(slurm, "multiprocessing.spawn")[0]
    worker.kill()
    code, said = swept.end()
    assert code == 0, said + swept.job_logs()
    swept.check_complete(54)
    assert len(re.findall(r"^Node \S+ was lost; ", said, re.MULTILINE)) >= 3, said
    assert "ended: CANCELLED." in said, said
    # The nanny's death ends its job, that of the worker does not.
    cluster = swept.directory / "cluster"
    assert JobList.read(cluster).last_number >= 4, said
    assert len(list(cluster.glob("*.log"))) >= 4
    lost = swept.observations().query("outcome != 'completed'")
    assert set(lost["outcome"]) == {"node_fail"}, lost["reason"].to_list()


def test_a_killed_driver_leaves_nothing_and_is_succeeded(
    slurm: ThrowawaySlurm,
) -> None:
    swept = Swept(slurm, "killed", {**MANY, "gpus": [1]}, nodes=2, max_jobs=2)
    swept.start()
    swept.wait_for_trials(4)
    swept.kill_driver()
    wait_until(lambda: not slurm.processes(USER_ID), "the nodes have gone", 60)
    before = swept.num_measured()
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    left = 27 - before
    assert re.search(rf"Continuing .*: {before} trials done, {left} ", said), said
    swept.check_complete(27)


def test_a_preempted_job_and_a_restarted_controller_cost_nothing_but_time(
    slurm: ThrowawaySlurm,
) -> None:
    swept = Swept(slurm, "preempted", {**FEW, "gpus": [2]}, nodes=1)
    swept.start()
    swept.wait_for_trials(3)
    urgent = ["sbatch", "-N4", "--exclusive", "-p", "high", "--wrap=sleep 3"]
    slurm.run(urgent)
    wait_until(
        lambda: "high" in slurm.run(["squeue", "-h", "-t", "R", "-o", "%P"]), "it runs"
    )
    swept.wait_for_trials(6)
    slurm.restart_controller()
    code, said = swept.end()
    assert code == 0, said + swept.job_logs()
    assert "PREEMPTED" in said, said
    swept.check_complete(12)
    lost = swept.observations().query("outcome != 'completed'")
    assert set(lost["outcome"]) == {"preempted"}, lost["reason"].to_list()


def test_a_node_that_goes_down_is_done_without(slurm: ThrowawaySlurm) -> None:
    swept = Swept(slurm, "down", {**FEW, "gpus": [4]}, nodes=2)
    swept.start()
    swept.wait_for_trials(3)
    host = slurm.run(["squeue", "-h", "-t", "R", "-o", "%N"]).split()[0]
    slurm.stop_node(host)
    down = ["state=down", "reason=power"]
    slurm.run(["scontrol", "update", f"nodename={host}", *down], user="root")
    try:
        code, said = swept.end()
        assert code == 0, said + swept.job_logs()
        rows = swept.check_complete(12)
    finally:
        slurm.start_node(host)
        wait_until(slurm.is_idle, "the node is back")
    last = rows.iloc[-1]
    assert host not in last["hosts"]
