"""The job script of an answer, submitted to a real SLURM: it trains."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from batch_sweeps import BatchSweep
from slurm_sweeps import SITE, Swept
from throwaway_slurm import ThrowawaySlurm
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(400)]

# Trains over gloo, says what it was started with, and goes on from what it has saved.
TRAIN = """
import json, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist

out, precision, batch, trial_id, label, rank = sys.argv[1:7]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
saved = Path(out, "saved")
first = 1 + (int(saved.read_text()) if saved.exists() else 0)
for step in range(first, 41):
    loss = (model(torch.ones(int(batch), 4)) - dist.get_rank()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    if dist.get_rank() == 0:
        print(f"step {step} samples {step * int(batch) * dist.get_world_size()}")
    if os.environ.get("STOP_AT") == str(step) and "SCALELAB_TRIAL_ID" not in os.environ:
        if dist.get_rank() == 0:
            saved.write_text(str(step))
        dist.barrier()  # the first rank to leave ends all others
        sys.exit(3)
weights = [torch.zeros(4) for _ in range(dist.get_world_size())]
dist.all_gather(weights, next(model.parameters()).detach().flatten())
known = {
    "argv": sys.argv[1:], "first": first, "weights": [w.tolist() for w in weights],
    "mode": os.environ["MODE"], "seed": os.environ["SCALELAB_SEED"],
    "host": os.uname().nodename, "me": os.environ["ME"],
    "job": os.environ.get("SLURM_JOB_ID"),
    "rank": int(os.environ["RANK"]), "local_rank": os.environ["LOCAL_RANK"],
}
(Path(out) / f"rank-{dist.get_rank()}.json").write_text(json.dumps(known))
dist.barrier()
dist.destroy_process_group()
"""
EXPERIMENT: dict[str, Any] = {
    "command": "python -u train.py {trial_dir} {precision} {local_batch_size} "
    "{trial_id} '{label}' {rank}",
    "metrics": {"regex": r"step (?P<step>\d+) samples (?P<samples>\d+)"},
    "measure": {
        "long_trial": "none",
        "kind": "throughput",
        "warmup_steps": 2,
        "steps": 20,
        "repeats": 1,
    },
    "env": {"MODE": "off line's", "ME": "rank {rank}"},
    "uses": ["SCALELAB_SEED"],
    "options": {"label": "a b"},
    "precision": "bf16",
    "gpus": [2, 4],
    "local_batch_size": 8,
    "job": {"samples": 3000},
}


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
