"""Sweeps over node groups of one real SLURM."""

import re

import pytest
from slurm_sweeps import EMULATED, SITE, Swept
from throwaway_slurm import ThrowawaySlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]

GROUPS = {
    "left": {"directives": ["--exclude=n3,n4"], "nodes": 1},
    "right": {
        "directives": ["--exclude=n1,n2"],
        "nodes": 2,
        "partition": "short",
        "gpus_per_node": 1,
        "exclusive": True,
        "prologue": ["export GROUP=right"],
    },
}


@pytest.mark.parametrize(
    "provision", ["pool", pytest.param("one_job", marks=pytest.mark.repetition)]
)
def test_trials_run_on_nodes_of_their_own_group(
    slurm: ThrowawaySlurm, provision: str
) -> None:
    experiment = {**EMULATED, "gpus": [1, 2], "node_group": ["left", "right"]}
    name = f"groups-{provision}"
    swept = Swept(
        slurm, name, experiment, SITE, provision=provision, node_groups=GROUPS
    )
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    rows = swept.check_complete(4).set_index(["node_group", "world_size"])
    assert rows["num_nodes"].to_dict() == {
        ("left", 1): 1,
        ("left", 2): 1,
        ("right", 1): 1,
        ("right", 2): 2,
    }
    assert {host for each in rows.loc["left", "hosts"] for host in each} <= {"n1", "n2"}
    assert set(rows.loc[("right", 2), "hosts"]) == {"n3", "n4"}
    # Where the machine is busy, its emulated steps come late.
    assert {mark for each in rows["validity"] for mark in each} <= {"unsteady_clock"}
    code, said = swept.run()
    assert code == 0, said
    assert len(swept.check_complete(4)) == 4


def test_two_groups_of_cpus_of_a_site_with_gpus_are_one_question(
    slurm: ThrowawaySlurm,
) -> None:
    experiment = {
        "workload": "digits_mlp",
        "learning_rate": 0.1,
        "measure": {
            "long_trial": "none",
            "warmup_steps": 5,
            "steps": 60,
            "repeats": 2,
            "canary_every": 0,
        },
        "job": {"epochs": 10, "samples_per_epoch": 1437},
        "gpus": [1, 2],
        "local_batch_size": [32],
        "node_group": ["c4", "r4"],
    }
    of_gpus = {"request_gpus", "gpu_request", "device_type"}
    site = {name: value for name, value in SITE.items() if name not in of_gpus}
    cpus = {"device_type": "cpu", "nodes": 2}
    groups = {
        "c4": {**cpus, "directives": ["--exclude=n3,n4"], "price_per_node_hour": 0.39},
        "r4": {**cpus, "directives": ["--exclude=n1,n2"], "price_per_node_hour": 0.001},
    }
    swept = Swept(
        *(slurm, "cpu-groups", experiment, {**site, "device_type": "cuda"}),
        node_groups=groups,
    )
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    rows = swept.check_complete(8)
    assert set(rows["device_type"]) == {"cpu"}
    code, said = slurm.scalelab("recommend", "runs/cpu-groups", "--explain")
    assert code == 0, said
    # the nodes are alike: the far cheaper group is chosen, however noisy their times
    assert re.match(r"Use [12] CPU slots? \(1 r4 node x [12]\), global batch", said)
    text = " ".join(said.split())
    assert "Chance that r4 is faster than c4: " in text
    assert "; cheaper than c4: > 99%." in text
    assert re.search(r"On c4 instead: [12] CPU slots? \(1x[12]\)", text)
    assert "Price of c4: 0.39 usd per node-h, by the profile of site" in text
    counts = re.findall(r"^[ >](c4|r4) +([12]) ", said, re.MULTILINE)
    assert counts == [("c4", "1"), ("c4", "2"), ("r4", "1"), ("r4", "2")]
    assert "GPU" not in said


@pytest.mark.repetition
def test_every_group_is_checked_and_each_shows_its_script(
    slurm: ThrowawaySlurm,
) -> None:
    experiment = {**EMULATED, "gpus": [1, 2], "node_group": ["left", "right"]}
    Swept(slurm, "groups", experiment, SITE, node_groups=GROUPS)
    code, said = slurm.scalelab("doctor", "--site", "./groups-site.yaml", "--job")
    assert code == 0, said
    for group, host in (("left", "n[12]"), ("right", "n[34]")):
        assert f"ok      {group}: partition" in said
        assert f"ok      {group}: job of 1 node" in said
        assert re.search(rf"ok      {group}: job +\S+ ran on {host} ", said), said
    code, said = slurm.scalelab("plan", "groups.yaml", "--site", "./groups-site.yaml")
    assert code == 0, said
    assert "Job script, for up to 1 left node one by one:" in said
    assert "Job script, for up to 2 right nodes one by one:" in said
    assert said.index("--exclude=n3,n4") < said.index("--exclude=n1,n2")
