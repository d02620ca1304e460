"""What the probe costs a program: a step, and its start-up.

One process trains a small network in turns of some steps, with the probe's hooks in
place and without them, so that a disturbance meets both. Aim: at most 5 us a step.
Start-up is the CPU time of a Python that imports torch. --device cuda trains on a GPU.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from comparison import median_interval
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import scalelab

INSIDE = Path(scalelab.__file__).parent / "inside"
TURNS, STEPS = 400, 100
STARTS = 15
AIM_US = 5.0
METHODS = (
    (_BaseDataLoaderIter, "__next__"),
    (_BaseDataLoaderIter, "_next_index"),
    (_BaseDataLoaderIter, "_reset"),
)


class Training:
    """A training of which some steps can be made with the probe, others without."""

    def __init__(self, folder: str, device: str) -> None:
        torch.set_num_threads(1)
        self._device = device
        samples = STEPS * 8
        data = TensorDataset(torch.randn(samples, 8), torch.randn(samples, 1))
        self._loader = DataLoader(data, batch_size=8)
        self._model = torch.nn.Linear(8, 1).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._bare = [getattr(owner, name) for owner, name in METHODS]
        sys.path.insert(0, str(INSIDE))
        from scalelab_probe.recorder import Recorder

        Recorder(f"{folder}/probe").hook()
        self._hooks = (
            (pre := optimizers._global_optimizer_pre_hooks, dict(pre)),
            (post := optimizers._global_optimizer_post_hooks, dict(post)),
        )

    @contextmanager
    def without_probe(self) -> Iterator[None]:
        """Make steps as they are without it."""
        probed = [getattr(owner, name) for owner, name in METHODS]
        for (owner, name), method in zip(METHODS, self._bare, strict=True):
            setattr(owner, name, method)
        for hooks, _ in self._hooks:
            hooks.clear()
        yield
        for (owner, name), method in zip(METHODS, probed, strict=True):
            setattr(owner, name, method)
        for hooks, known in self._hooks:
            hooks.update(known)

    def step_us(self) -> float:
        """Train for a turn; return the CPU time of a step."""
        began_s = time.process_time()
        for x, y in self._loader:
            self._optimizer.zero_grad()
            x, y = x.to(self._device), y.to(self._device)
            torch.nn.functional.mse_loss(self._model(x), y).backward()
            self._optimizer.step()
        return 1e6 * (time.process_time() - began_s) / STEPS


def start_up_ms(folder: str, with_probe: bool) -> float:
    """Return the CPU time of a process that imports torch."""
    probe = {"PYTHONPATH": str(INSIDE), "SCALELAB_PROBE": f"{folder}/probe"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", "import torch"],
        env={**os.environ, **(probe if with_probe else {})},
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def cost(pairs: list[tuple[float, float]]) -> tuple[float, float, float, float]:
    """Return what the probe adds, its 95% interval, and what there is without it."""
    added = [probed - bare for probed, bare in pairs]
    low, high = median_interval(added)
    bare = statistics.median(bare for _, bare in pairs)
    return statistics.median(added), low, high, bare


def main() -> None:
    """Print both costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    with tempfile.TemporaryDirectory() as folder:
        starts = [
            (start_up_ms(folder, True), start_up_ms(folder, False))
            for _ in range(STARTS)
        ]
        training, steps = Training(folder, device), []
        for _ in range(TURNS):
            probed_us = training.step_us()
            with training.without_probe():
                steps.append((probed_us, training.step_us()))
    added, low, high, bare = cost(steps)
    print(
        f"a step of {bare:.0f} us of CPU: {added:+.1f} us with the probe, 95% "
        f"interval {low:.1f} to {high:.1f}, {TURNS} pairs of {STEPS} steps; "
        f"{added / 10:.2f}% of a step of 1 ms. Aim {AIM_US:g} us: "
        f"{'met' if high <= AIM_US else 'not met'}"
    )
    added, low, high, bare = cost(starts)
    print(
        f"start-up, importing torch, {bare:.0f} ms of CPU: {added:+.0f} ms with the "
        f"probe, 95% interval {low:.0f} to {high:.0f}, {STARTS} pairs"
    )


if __name__ == "__main__":
    main()
