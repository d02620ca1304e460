"""One slow worker on purpose: a rank that takes so many times as long for a step."""

from __future__ import annotations

import time

import torch

from scalelab.experiment.trial import Trial
from scalelab.kinds.strategies import slow_rank_factor
from scalelab.training.context import RankContext


class SlowRank:
    """Lets a rank sleep in proportion to what it has just computed.

    Before each step it sleeps as many times as long as its last step has computed, so
    that it takes ``factor`` times as long, whatever it computes. Waits for data and for
    other ranks are not computation. The first step is as fast as it is. With a factor
    of 1 nothing is measured and nothing slept.
    """

    def __init__(self, factor: float, device: torch.device) -> None:
        self._factor = factor
        self._device = device
        self._computed_s = 0.0
        self._began: float | None = None

    @classmethod
    def of(cls, trial: Trial, context: RankContext) -> SlowRank:
        """Return that of a rank: the last one of several is slow, if the trial says."""
        is_last = context.rank == context.world_size - 1 > 0
        factor = slow_rank_factor(trial.options) if is_last else 1.0
        return cls(factor, context.device)

    def wait(self) -> None:
        """Sleep for what the last step has computed, at the beginning of a step."""
        if self._computed_s:
            time.sleep((self._factor - 1) * self._computed_s)
            self._computed_s = 0.0

    def begin(self) -> None:
        """Begin to compute."""
        if self._factor > 1:
            self._began = self._now()

    def end(self) -> None:
        """End what was begun; once is enough."""
        if self._began is not None:
            self._computed_s += self._now() - self._began
            self._began = None

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
