"""Sweeps over node groups of one real SLURM."""

import pytest
from slurm_sweeps import DIGITS, SITE, Swept
from throwaway_slurm import ThrowawaySlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]

GROUPS = {
    "left": {"directives": ["--exclude=n3,n4"], "nodes": 2},
    "right": {
        "directives": ["--exclude=n1,n2"],
        "nodes": 2,
        "partition": "short",
        "gpus_per_node": 1,
        "exclusive": True,
        "prologue": ["export GROUP=right"],
    },
}


@pytest.mark.parametrize("provision", ["pool", "one_job"])
def test_trials_run_on_nodes_of_their_own_group(
    slurm: ThrowawaySlurm, provision: str
) -> None:
    experiment = {**DIGITS, "gpus": [1, 2], "node_group": ["left", "right"]}
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
    assert rows["validity"].map(len).sum() == 0
    code, said = swept.run()
    assert code == 0, said
    assert len(swept.check_complete(4)) == 4
