"""Jobs of a real SLURM with accounting, held against the answer afterwards.

Each is the answer's own job script, run as it is or with one thing changed from
outside: half the batch, a node that is slowed, or a file system that is throttled.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from promised import skip_or_fail
from slurm_sweeps import SITE, Swept
from throwaway_slurm import ACCOUNTING_PROGRAMS, PROGRAMS, ThrowawaySlurm
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]

# A sample is read in half a millisecond, plus what the file that stands for the file
# system's load says; a forward pass takes 25 ms.
TRAIN = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Samples(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.0005 + float(Path(sys.argv[2]).read_text()))
        return torch.full((4,), float(index % 7))

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = Samples()
sampler = DistributedSampler(data)
step = 0
for batch in DataLoader(data, batch_size=int(sys.argv[1]), sampler=sampler):
    time.sleep(0.025)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step == 100:
        break
dist.barrier()
dist.destroy_process_group()
"""
EXPERIMENT: dict[str, Any] = {
    "command": "python -u train.py {local_batch_size} /SLURM_HOME/load",
    "measure": {
        "long_trial": "none",
        "kind": "throughput",
        "warmup_steps": 3,
        "steps": 40,
        "repeats": 3,
    },
    "gpus": [1, 2],
    "local_batch_size": 8,
    "job": {"samples": 1600},
}


@pytest.fixture(scope="module")
def slurm() -> Iterator[ThrowawaySlurm]:
    """Two nodes with a fake GPU each, and accounting."""
    for program in (*PROGRAMS, *ACCOUNTING_PROGRAMS):
        if not any(
            Path(folder, program).exists() for folder in ("/usr/bin", "/usr/sbin")
        ):
            skip_or_fail(f"{program} is not installed")
    if os.geteuid() != 0:
        skip_or_fail("a SLURM for several users is started by root only")
    with ThrowawaySlurm(2, 1, has_accounting=True) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def swept(slurm: ThrowawaySlurm) -> Swept:
    (slurm.home / "train.py").write_text(TRAIN)
    (slurm.home / "load").write_text("0")
    text = json.dumps(EXPERIMENT).replace("/SLURM_HOME", str(slurm.home))
    site = {"gpus_per_node": 1, "cores_per_node": 1}
    swept = Swept(slurm, "answered", json.loads(text), SITE, **site)
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    return swept


@pytest.fixture(scope="module")
def script(slurm: ThrowawaySlurm, swept: Swept) -> str:
    asked = ("runs/answered", "--select", "world_size=2", "--sbatch")
    code, said = slurm.scalelab("recommend", *asked)
    assert code == 0, said
    assert "SCALELAB_PROBE=" in said
    return said


def submitted(slurm: ThrowawaySlurm, script: str) -> str:
    (slurm.home / "job.sh").write_text(script)
    return slurm.run(["sbatch", "--parsable", "job.sh"]).strip()


def followed(slurm: ThrowawaySlurm, job: str) -> dict[str, Any]:
    wait_until(lambda: job not in slurm.jobs(), "the job has ended", within_s=200)
    wait_until(lambda: is_accounted(slurm, job), "the job is accounted")
    code, said = slurm.scalelab("follow", "runs/answered", job, "--json")
    assert code == 0, said
    print(slurm.scalelab("follow", "runs/answered", job)[1])
    return dict(json.loads(said))


def is_accounted(slurm: ThrowawaySlurm, job: str) -> bool:
    """Tell whether all of a job is in the accounts.

    Where its end comes before its start is written, it is called "allocation" first.
    """
    asked = ["sacct", "-X", "-n", "-o", "State,JobName", "-j", job]
    known = slurm.run(asked).split()
    return known[:1] == ["COMPLETED"] and known[1:] != ["allocation"]


@contextmanager
def slowed(slurm: ThrowawaySlurm, node: str) -> Iterator[None]:
    """Have the user's processes of a node run two thirds of the time only."""
    namespace = slurm.run(["readlink", "/proc/self/ns/net"], node=node).strip()
    is_over = threading.Event()

    def slow() -> None:
        while not is_over.is_set():
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for process in slurm.user_processes():
                    try:
                        at = os.readlink(f"/proc/{process.pid}/ns/net")
                        if at == namespace:
                            process.send_signal(number)
                    except (OSError, psutil.NoSuchProcess):
                        continue
                time.sleep(0.04 if number == signal.SIGSTOP else 0.02)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


# How often each is tried; nine of ten must be named
ROUNDS = 10


def kinds(report: dict[str, Any]) -> list[str]:
    return [cause["kind"] for cause in report["causes"]]


def identical(slurm: ThrowawaySlurm, script: str) -> bool:
    report = followed(slurm, submitted(slurm, script))
    assert report["steps"]["num_steps"] == 100
    assert report["steps"]["global_batch_size"] == 16
    return not kinds(report)


def of_half_the_batch(slurm: ThrowawaySlurm, script: str) -> bool:
    assert "train.py 8 " in script
    half = script.replace("train.py 8 ", "train.py 4 ")
    report = followed(slurm, submitted(slurm, half))
    return kinds(report) == ["another_batch"]


def on_a_slowed_node(slurm: ThrowawaySlurm, script: str) -> bool:
    with slowed(slurm, "n2"):
        report = followed(slurm, submitted(slurm, script))
    # its start-up takes longer, too
    return kinds(report)[:1] == ["slower_node"] and (
        report["causes"][0]["values"]["hosts"] == ["n2"]
    )


def with_a_throttled_feed(slurm: ThrowawaySlurm, script: str) -> bool:
    (slurm.home / "load").write_text("0.01")
    try:
        report = followed(slurm, submitted(slurm, script))
    finally:
        (slurm.home / "load").write_text("0")
    return kinds(report) == ["input"]


JOBS = (identical, of_half_the_batch, on_a_slowed_node, with_a_throttled_feed)


@pytest.mark.repetition
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("job", JOBS)
def test_what_differs_is_named_in_nine_of_ten(
    job: Callable[[ThrowawaySlurm, str], bool], slurm: ThrowawaySlurm, script: str
) -> None:
    assert sum(job(slurm, script) for _ in range(ROUNDS)) >= 0.9 * ROUNDS


def test_half_the_batch_is_named(slurm: ThrowawaySlurm, script: str) -> None:
    assert of_half_the_batch(slurm, script)


def test_a_throttled_feed_is_among_the_causes_and_the_history_learns(
    slurm: ThrowawaySlurm, script: str
) -> None:
    (slurm.home / "load").write_text("0.02")
    try:
        report = followed(slurm, submitted(slurm, script))
    finally:
        (slurm.home / "load").write_text("0")
    assert "input" in kinds(report)
    assert report["accounted"]["num_gpus"] == 2
    assert report["accounted"]["memory_used_bytes"] > 2**20
    code, said = slurm.scalelab("recommend", "runs/answered", "--explain")
    assert code == 0, said
    assert "followed on such" in said
    assert "moved outwards by" in said


def test_a_job_of_ones_own_is_imported_and_says_what_it_used(
    slurm: ThrowawaySlurm, swept: Swept
) -> None:
    lines = "for n in $(seq 1 20); do echo step $n samples $((16 * n)) 50 ms/step; done"
    text = f"#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=1G -t 30 -J mine\n{lines}\nsleep 2"
    job = submitted(slurm, text)
    wait_until(lambda: is_accounted(slurm, job), "the job is accounted", within_s=100)
    code, said = slurm.scalelab("follow", job)
    assert code == 0, said
    assert f"Job {job} (mine) on 1 GPU of 1 node: completed." in said
    assert "of 30 min asked for" in said
    assert "5 min would do" in said
    code, said = slurm.scalelab("import", "--sacct", job, "runs/mine")
    assert code == 0, said
    assert "1 observation is in" in said


def test_the_queue_is_asked_once_and_kept(slurm: ThrowawaySlurm, swept: Swept) -> None:
    code, said = slurm.scalelab("recommend", "runs/answered", "--ask-queue")
    assert code == 0, said
    assert "jobs of 30 days, kept for later answers." in " ".join(said.split())
    assert "In the queue, as of " in said
    kept = json.loads((slurm.home / "runs/answered/waits.json").read_text())
    assert all(job["wait_s"] >= 0 and job["num_devices"] for job in kept["jobs"])
