"""The job script of an answer, submitted to a real SLURM: it trains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from batch_sweeps import BatchSweep
from job_scripts import EXPERIMENT, TRAIN
from slurm_sweeps import SITE, Swept
from throwaway_slurm import ThrowawaySlurm
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def swept(slurm: ThrowawaySlurm) -> Swept:
    (slurm.home / "train.py").write_text(TRAIN)
    swept = Swept(slurm, "answered", EXPERIMENT, SITE)
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    return swept


def script(slurm: ThrowawaySlurm, swept: BatchSweep, *site: str) -> str:
    asked = ("runs/answered", "--select", "world_size=4", "--sbatch", *site)
    code, said = slurm.scalelab("recommend", *asked)
    assert code == 0, said
    return said


def on_two_nodes(slurm: ThrowawaySlurm, swept: Swept) -> Path:
    """Write the script of the answer on two nodes into a directory with the code."""
    directory = slurm.home / "job"
    slurm.run(["mkdir", "-p", str(directory)])
    slurm.run(["cp", "train.py", str(directory)])
    return directory


def test_the_script_of_the_answer_trains_on_two_nodes(
    slurm: ThrowawaySlurm, swept: Swept
) -> None:
    directory = on_two_nodes(slurm, swept)
    text = script(slurm, swept)
    assert "#SBATCH --nodes=2" in text
    assert "{" not in re.sub(r"\$\{[^}]*\}", "", text)
    (directory / "job.sh").write_text(text)
    job = slurm.run(["sbatch", "--parsable", "job.sh"], directory=directory).strip()
    wait_until(lambda: job not in slurm.jobs(), "the job has ended", within_s=120)
    logs = "".join(each.read_text() for each in directory.glob("slurm-*.out"))
    ranks = sorted(directory.glob("rank-*.json"))
    assert len(ranks) == 4, text + logs
    known = [json.loads(each.read_text()) for each in ranks]
    assert {each["job"] for each in known} == {job}
    assert len({each["host"] for each in known}) == 2
    assert sorted(each["local_rank"] for each in known) == ["0", "0", "1", "1"]
    weights = {json.dumps(row) for each in known for row in each["weights"]}
    assert len(weights) == 1, "all ranks have learnt the same"
    measured = swept.observations().set_index("world_size")
    for each in known:
        out, precision, batch, trial_id, label, rank = each["argv"]
        assert (out, precision, batch, label) == (".", "bf16", "8", "a b")
        assert trial_id == measured.loc[4, "trial_id"]
        assert (int(rank), each["me"]) == (each["rank"], f"rank {each['rank']}")
        assert (each["mode"], each["seed"]) == ("off line's", "0")


def test_a_chain_goes_on_after_a_job_that_ended_too_soon_and_then_stops(
    slurm: ThrowawaySlurm, swept: Swept
) -> None:
    site = json.loads((slurm.home / "answered-site.yaml").read_text())
    (slurm.home / "short.yaml").write_text(json.dumps({**site, "walltime": "4min"}))
    directory = on_two_nodes(slurm, swept)
    for left in [*directory.glob("rank-*"), *directory.glob("slurm-*")]:
        left.unlink()
    text = script(slurm, swept, "--site", "./short.yaml")
    parts = re.search(r"for part in ([\d ]+); do", text)
    assert parts is not None, text
    (directory / "job.sh").write_text(text)
    environment = {"STOP_AT": "15"}
    said = slurm.run(["bash", "job.sh"], directory=directory, env=environment)
    jobs = re.findall(r"Submitted job \d: (\d+)", said)
    assert len(jobs) == len(parts[1].split()) >= 3, said
    wait_until(lambda: not {*jobs} & slurm.jobs().keys(), "the jobs end", within_s=150)
    known = json.loads((directory / "rank-0.json").read_text())
    # The first was stopped at step 15, the second went on, the third was not needed.
    assert (known["first"], known["job"]) == (16, jobs[1])
    logs = {each.name for each in directory.glob("slurm-*.out")}
    assert logs == {f"slurm-{job}.out" for job in jobs[:2]}
