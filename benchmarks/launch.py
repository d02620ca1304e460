"""A 2-rank DDP trial without a step, through the whole path, against torchrun.

The path: driver, Dask, fork server, two ranks that meet and wrap a model, record.
Lines: at least 25 times faster than ``torchrun --nproc-per-node 2`` of an equal script,
by median; at most 2 times a bare fork server that meets and parts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from comparison import Comparison

from scalelab.cluster.local import LocalNodes
from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.kinds.strategies import DEFAULT_STRATEGY
from scalelab.plan.source import Observation, TrialSource
from scalelab.records.open_run import OpenRun
from scalelab.records.store import RunStore
from scalelab.scheduling.driver import Driver
from scalelab.training.trainer import TRAINER

TRIALS = 30
TORCHRUN_EVERY = 3
RANKS = 2
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SCRIPT = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
)
torch.nn.parallel.DistributedDataParallel(model)
dist.barrier()
dist.destroy_process_group()
"""
PROGRAM = WorkloadProgram(
    name="small_network:SmallNetwork", code_directory=str(Path(__file__).parent)
)


class Turns(TrialSource):
    """A source that runs the peers before it hands out each trial."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._forks = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("bare_fork_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._bare()
        self._asked_s = 0.0
        self._is_busy = False
        self.ours_s: list[float] = []
        self.bare_s: list[float] = []
        self.torchrun_s: list[float] = []

    def ask(self) -> Trial | None:
        """Run the peers, then propose the next trial."""
        if self._is_busy or len(self.ours_s) == TRIALS:
            return None
        self.bare_s.append(self._bare())
        if len(self.ours_s) % TORCHRUN_EVERY == 0:
            self.torchrun_s.append(self._torchrun())
        self._is_busy = True
        self._asked_s = time.perf_counter()
        return Trial(
            kind=TrialKind.THROUGHPUT,
            workload=PROGRAM.name,
            allocation=Allocation(devices_per_node=(RANKS,)),
            local_batch_size=32,
            repeat=len(self.ours_s),
            measurement=Measurement(warmup_steps=0, steps=0),
        )

    def tell(self, observation: Observation) -> None:
        """Take the time: the trial is recorded."""
        self.ours_s.append(time.perf_counter() - self._asked_s)
        self._is_busy = False
        assert observation["outcome"] == "completed", observation["reason"]

    def _bare(self) -> float:
        assert self._forks.stdin
        assert self._forks.stdout
        self._forks.stdin.write(f"{self._folder}/store-{time.monotonic_ns()}\n")
        return float(self._forks.stdout.readline())

    def _torchrun(self) -> float:
        script = self._folder / "script.py"
        script.write_text(SCRIPT)
        started = time.perf_counter()
        subprocess.run(
            [*TORCHRUN, "--nproc-per-node", str(RANKS), str(script)],
            check=True,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return time.perf_counter() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore.create(
            Path(folder) / "run", experiment_text="", fingerprint={}
        )
        turns = Turns(Path(folder))
        preload = TRAINER.preload(PROGRAM.name, [DEFAULT_STRATEGY])
        cluster = LocalNodes(1, RANKS, preload=preload, entry=TRAINER.entry)
        with store.lease() as lease, cluster as nodes:
            driver = Driver(
                turns,
                nodes,
                OpenRun.recover(store, lease),
                {None: PROGRAM},
                estimate_duration=lambda *trial: 0.1,
            )
            driver.run()
    every = turns.ours_s[::TORCHRUN_EVERY]
    against_torchrun = Comparison(every, turns.torchrun_s)
    print(against_torchrun.line("times faster than torchrun", limit=25, inverse=True))
    against_bare = Comparison(turns.ours_s, turns.bare_s)
    print(against_bare.line("against a bare fork server", limit=2))
    print(f"ours: median {statistics.median(turns.ours_s) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
