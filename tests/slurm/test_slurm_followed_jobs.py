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
from collections.abc import Iterator
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
    "measure": {"kind": "throughput", "warmup_steps": 3, "steps": 40, "repeats": 3},
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
    return "COMPLETED" in slurm.run(["sacct", "-X", "-n", "-o", "State", "-j", job])


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


def test_the_identical_job_has_no_cause(slurm: ThrowawaySlurm, script: str) -> None:
    report = followed(slurm, submitted(slurm, script))
    assert report["causes"] == []
    assert report["steps"]["num_steps"] == 100
    assert report["steps"]["global_batch_size"] == 16


def test_half_the_batch_is_named(slurm: ThrowawaySlurm, script: str) -> None:
    assert "train.py 8 " in script
    half = script.replace("train.py 8 ", "train.py 4 ")
    report = followed(slurm, submitted(slurm, half))
    (cause,) = report["causes"]
    assert cause["kind"] == "another_batch"
    assert cause["values"] == {"true": 8, "asked": 16}


def test_a_slowed_node_is_named(slurm: ThrowawaySlurm, script: str) -> None:
    with slowed(slurm, "n2"):
        job = submitted(slurm, script)
        report = followed(slurm, job)
    assert report["causes"][0]["kind"] == "slower_node"
    assert report["causes"][0]["values"]["hosts"] == ["n2"]


def test_a_throttled_feed_is_named(slurm: ThrowawaySlurm, script: str) -> None:
    (slurm.home / "load").write_text("0.01")
    try:
        report = followed(slurm, submitted(slurm, script))
    finally:
        (slurm.home / "load").write_text("0")
    assert report["causes"][0]["kind"] == "input"
