"""Whole sweeps on a real SLURM."""

import re

import batch_scenarios
import pytest
from slurm_sweeps import EMULATED, Swept
from throwaway_slurm import ThrowawaySlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_pool_of_one_node_jobs_runs_trials_on_one_to_four_nodes(
    slurm: ThrowawaySlurm,
) -> None:
    swept = Swept(slurm, "pool", {**EMULATED, "gpus": [1, 2, 4, 8]})
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    rows = swept.check_complete(4).set_index("world_size")
    assert rows["num_nodes"].to_dict() == {1: 1, 2: 1, 4: 2, 8: 4}
    hosts = {host for each in rows["hosts"] for host in each}
    assert hosts == {"n1", "n2", "n3", "n4"}
    assert set(rows["device_type"]) == {"cpu"}


def test_a_command_runs_on_two_nodes_of_one_job(slurm: ThrowawaySlurm) -> None:
    (slurm.home / "train.py").write_text(SCRIPT)
    experiment = {
        "command": "python train.py {local_batch_size}",
        "launcher": "torchrun",
        "metrics": {"jsonl": "$SCALELAB_METRICS"},
        "measure": {
            "long_trial": "none",
            "kind": "throughput",
            "warmup_steps": 2,
            "steps": 10,
            "repeats": 1,
        },
        "gpus": [2, 4],
        "local_batch_size": [16],
    }
    swept = Swept(slurm, "command", experiment, provision="one_job")
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    rows = swept.check_complete(2).set_index("world_size")
    assert rows["num_nodes"].to_dict() == {2: 1, 4: 2}
    assert len(set(rows.loc[4, "hosts"])) == 2


@pytest.mark.repetition
def test_an_allocation_that_is_held_is_used(slurm: ThrowawaySlurm) -> None:
    settings = {"scheduler": "allocation", "device_type": "cpu", "gpus_per_node": 2}
    swept = Swept(slurm, "held", {**EMULATED, "gpus": [2, 4]}, settings)
    hold = ["salloc", "--quiet", "-N2", "--gres=gpu:2", "-c2", "--mem=1G"]
    said = slurm.run([*hold, "scalelab", "sweep", *swept.arguments])
    rows = swept.check_complete(2).set_index("world_size")
    assert rows["num_nodes"].to_dict() == {2: 1, 4: 2}, said


SCRIPT = """
import json, os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
with open(os.environ["SCALELAB_METRICS"], "a", buffering=1) as metrics:
    for step in range(1, 14):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
        samples = step * int(sys.argv[1]) * dist.get_world_size()
        if dist.get_rank() == 0:
            print(json.dumps({"step": step, "samples": samples}), file=metrics)
dist.barrier()
dist.destroy_process_group()
"""


def test_what_waits_says_why_and_a_cancelled_job_is_replaced(
    slurm: ThrowawaySlurm,
) -> None:
    hold = ["sbatch", "-N4", "--exclusive", "--job-name=other", "--wrap=sleep 300"]
    other = slurm.run(hold).split()[-1]
    swept = Swept(slurm, "queued", {**EMULATED, "gpus": [1]})
    batch_scenarios.loses_a_job_that_waits(swept, 1, other, "pending, Resources")


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"gpus_per_node": 9}, "Requested node configuration is not available"),
        pytest.param(
            {"partition": "nowhere"},
            "invalid partition specified: nowhere",
            marks=pytest.mark.repetition,
        ),
        (
            {"partition": "short", "walltime": "1h"},
            r"job \d+ can never run: PartitionTimeLimit",
        ),
        (
            {"python": "/nowhere/python"},
            r"(?s)The end of its log:.*/nowhere/python: No such file.*3 times in a row",
        ),
    ],
)
def test_what_cannot_be_is_said_in_slurms_own_words(
    slurm: ThrowawaySlurm, site: dict[str, object], words: str
) -> None:
    name = f"refused-{next(iter(site.values()))}".replace("/", "")
    swept = Swept(slurm, name, {**EMULATED, "gpus": [1]}, **site)
    code, said = swept.run()
    assert code == 3, said
    assert re.search(words, said), said
    swept.check_nothing_is_left()
