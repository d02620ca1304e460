"""The job script of an answer, submitted to PBS or what stands in for it: it trains."""

import json

import pytest
from job_scripts import EXPERIMENT, TRAIN
from pbs_sweeps import Pbs, Swept
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_script_of_the_answer_trains_where_it_was_submitted(pbs: Pbs) -> None:
    (pbs.home / "train.py").write_text(TRAIN)
    swept = Swept(pbs, "answered", {**EXPERIMENT, "gpus": [1, 2]}, nodes=1)
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    asked = ("runs/answered", "--select", "world_size=2", "--sbatch")
    code, text = pbs.scalelab("recommend", *asked)
    assert code == 0, text
    (pbs.home / "job.sh").write_text(text)
    assert pbs.run("qsub", "job.sh").strip()
    wait_until(lambda: not pbs.jobs(), "the job has ended")
    ranks = sorted(pbs.home.glob("rank-*.json"))
    logs = "".join(each.read_text() for each in pbs.home.glob("answered.*"))
    assert len(ranks) == 2, text + logs
    for rank, each in enumerate(ranks):
        known = json.loads(each.read_text())
        assert known["argv"][4:] == ["a b", str(rank)]
        assert (known["mode"], known["me"]) == ("off line's", f"rank {rank}")
