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
