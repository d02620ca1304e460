"""What happens to jobs, nodes and the driver while a sweep runs on a real SLURM."""

import batch_scenarios
import pytest
from slurm_sweeps import Swept
from throwaway_slurm import ThrowawaySlurm
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.repetition
def test_fifty_trials_survive_the_loss_of_job_nanny_and_worker(
    slurm: ThrowawaySlurm,
) -> None:
    swept = Swept(slurm, "lossy", batch_scenarios.FIFTY_FOUR, nodes=2)
    said = batch_scenarios.loses_a_job_a_nanny_and_a_worker(swept)
    assert "ended: CANCELLED." in said, said


def test_a_killed_driver_leaves_nothing_and_is_succeeded(
    slurm: ThrowawaySlurm,
) -> None:
    trials = batch_scenarios.TWENTY_SEVEN
    swept = Swept(slurm, "killed", trials, nodes=2, max_jobs=2)
    batch_scenarios.loses_its_driver(swept)


@pytest.mark.repetition
def test_a_preempted_job_and_a_restarted_controller_cost_nothing_but_time(
    slurm: ThrowawaySlurm,
) -> None:
    def preempt() -> None:
        urgent = ["sbatch", "-N4", "--exclusive", "-p", "high", "--wrap=sleep 3"]
        slurm.run(urgent)
        running = ["squeue", "-h", "-t", "R", "-o", "%P"]
        wait_until(lambda: "high" in slurm.run(running), "it runs")

    swept = Swept(slurm, "outbid", batch_scenarios.TWELVE, nodes=1)
    said, lost = batch_scenarios.is_preempted_and_left_alone(
        swept, preempt, slurm.restart_controller
    )
    assert "PREEMPTED" in said, said
    assert set(lost["outcome"]) == {"preempted"}, lost["reason"].to_list()


@pytest.mark.repetition
def test_a_node_that_goes_down_is_done_without(slurm: ThrowawaySlurm) -> None:
    hosts = []

    def take_down() -> str:
        host = slurm.run(["squeue", "-h", "-t", "R", "-o", "%N"]).split()[0]
        hosts.append(host)
        slurm.stop_node(host)
        down = ["state=down", "reason=power"]
        slurm.run(["scontrol", "update", f"nodename={host}", *down], user="root")
        return host

    swept = Swept(slurm, "down", batch_scenarios.TWELVE_ON_TWO_NODES, nodes=2)
    try:
        batch_scenarios.loses_a_host(swept, take_down)
    finally:
        for host in hosts:
            slurm.start_node(host)
        wait_until(slurm.is_idle, "the node is back")
