"""Whole sweeps on PBS, or on what stands in for it where there is none."""

import re

import pytest
from pbs_sweeps import EXPERIMENT, Pbs
from waiting import wait_until

from scalelab.records.job_list import JobList

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def test_a_sweep_runs_on_the_nodes_that_pbs_grants_though_jobs_are_lost(
    pbs: Pbs,
) -> None:
    # Five trials take both nodes, so the one that is lost has to be replaced.
    measure = {**EXPERIMENT["measure"], "steps": 20, "repeats": 5}
    words = pbs.write("pool", {"gpus": [1, 2, 4], "measure": measure}, nodes=2)
    sweep = pbs.start("sweep", *words)
    wait_until(lambda: pbs.num_ended("pool") >= 2, "trials end")
    lost, *_ = pbs.known()
    pbs.run("qdel", lost)
    said, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, said
    rows = pbs.observations("pool")
    done = rows[rows["outcome"] == "completed"]
    assert len(done) == done["trial_id"].nunique() == 15
    assert done.groupby("world_size")["num_nodes"].first().to_dict() == {
        1: 1,
        2: 1,
        4: 2,
    }
    assert set(rows["outcome"]) <= {"completed", "node_fail"}
    cluster = pbs.home / "runs" / "pool" / "cluster"
    assert JobList.read(cluster).last_number >= 3, said
    assert len(list(cluster.glob("*.log"))) >= 3
    wait_until(lambda: not pbs.known(), "no job is left")


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"queue": "nowhere"}, "refused a job: qsub: Unknown queue"),
        (
            {"gpus_per_node": 9, "cores_per_node": 1},
            r"can never run: Can Never Run: Insufficient .* ngpus",
        ),
        (
            {"python": "/nowhere/python"},
            r"(?s)does not know it any more.*The end of its log:.*/nowhere/python",
        ),
    ],
)
def test_what_cannot_be_is_said_in_the_words_of_pbs(
    pbs: Pbs, site: dict[str, object], words: str
) -> None:
    sweep = pbs.start("sweep", *pbs.write("refused", {"gpus": [1]}, **site))
    said, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 3, said
    assert re.search(words, said), said
    assert pbs.known() == []


def test_a_queued_job_that_somebody_deletes_is_replaced(pbs: Pbs) -> None:
    if pbs.is_real:
        pytest.skip("holds all GPUs of the stand-in")
    # All GPUs are held by somebody else's job.
    other = pbs.home / "other.sh"
    other.write_text(
        "#PBS -N 7\n#PBS -l select=2:ncpus=1:ngpus=2\n#PBS -o other.log\nsleep 100\n"
    )
    held = pbs.run("qsub", str(other)).strip()
    sweep = pbs.start("sweep", *pbs.write("queued", {"gpus": [1]}))
    wait_until(lambda: len(pbs.known()) == 2, "the sweep's job waits")
    status = ["status", "runs/queued"]
    wait_until(
        lambda: "Not Running: Insufficient" in pbs.start(*status).communicate()[0],
        "status says why",
    )
    (queued,) = set(pbs.known()) - {held}
    pbs.run("qdel", queued)
    wait_until(lambda: set(pbs.known()) - {held, queued}, "another job waits")
    pbs.run("qdel", held)
    said, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 0, said
    assert len(pbs.observations("queued")) == 3
