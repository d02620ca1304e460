"""Whole sweeps on PBS, or on what stands in for it where there is none."""

import re

import batch_scenarios
import pytest
from pbs_sweeps import SMALL, Pbs, Swept

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

ONCE = {**SMALL["measure"], "repeats": 1}


@pytest.mark.repetition
def test_trials_run_on_one_to_four_nodes_of_one_job(pbs: Pbs) -> None:
    experiment = {**SMALL, "gpus": [1, 2, 4, 8], "measure": ONCE}
    swept = Swept(pbs, "sizes", experiment, nodes=4, provision="one_job")
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    rows = swept.check_complete(4).set_index("world_size")
    assert rows["num_nodes"].to_dict() == {1: 1, 2: 1, 4: 2, 8: 4}
    assert [len(set(hosts)) for hosts in rows["hosts"]] == list(rows["num_nodes"])


@pytest.mark.parametrize(
    ("site", "words"),
    [
        pytest.param(
            {"queue": "nowhere"},
            "refused a job: qsub: Unknown queue",
            marks=pytest.mark.repetition,
        ),
        (
            {"gpus_per_node": 9, "cores_per_node": 1},
            r"can never run: Can Never Run: Insufficient .* ngpus",
        ),
        pytest.param(
            {"python": "/nowhere/python"},
            r"(?s)does not know it any more.*The end of its log:.*/nowhere/python",
            marks=pytest.mark.repetition,
        ),
    ],
)
def test_what_cannot_be_is_said_in_the_words_of_pbs(
    pbs: Pbs, site: dict[str, object], words: str
) -> None:
    swept = Swept(pbs, "refused", {**SMALL, "gpus": [1]}, **site)
    code, said = swept.run()
    assert code == 3, said
    assert re.search(words, said), said
    swept.check_nothing_is_left()


@pytest.mark.repetition
def test_chunks_ask_for_what_else_a_host_must_have(pbs: Pbs) -> None:
    if pbs.is_real:
        pytest.skip("takes a resource that the stand-in has")
    experiment = {**SMALL, "gpus": [4], "measure": ONCE}
    # A folder and a job whose names PBS would not take.
    swept = Swept(pbs, "fast", experiment, nodes=2, chunk=["fast=True", "mpiprocs=1"])
    run = ["--run", "runs/fast,x=1"]
    code, said = pbs.scalelab("sweep", *swept.arguments, *run)
    assert code == 0, said
    swept.directory = pbs.home / "runs" / "fast,x=1"
    rows = swept.check_complete(1)
    assert set(rows["hosts"].iloc[0]) == {"n1", "n2"}


@pytest.mark.repetition
def test_a_trial_longer_than_the_walltime_goes_on_in_the_next_job(pbs: Pbs) -> None:
    swept = Swept(pbs, "long", batch_scenarios.LONG, nodes=1, walltime="38s")
    batch_scenarios.outlasts_a_walltime(swept)
