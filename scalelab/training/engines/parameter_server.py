"""Engine of ``parameter_server``: workers train alone and exchange with servers."""

import math
import time
from typing import Any

import torch
from torch import nn

from scalelab.kinds.strategies import ParameterServer
from scalelab.training.engines.local_sgd import averaged
from scalelab.training.engines.spread import Observers, SpreadModel
from scalelab.training.engines.training import TrainingEngine, kept
from scalelab.training.probes.meter import Phase
from scalelab.training.servers.link import ServerLink
from scalelab.training.servers.rules import rule_of
from scalelab.training.servers.served import Staleness, fill, flat
from scalelab.training.servers.step_times import StepTimes

ASK_AHEAD_BELOW_S = 0.1
"""A longer step is asked for when it may begin: the answer takes a thousandth of it."""


class ParameterServerEngine(TrainingEngine):
    """Takes steps alone; after every window of them it exchanges with the servers.

    A step of the trial is as many optimiser steps as there are workers, taken by
    whichever of them are free: the first server deals them out one by one, so that a
    slow worker takes fewer, and notes when each has ended. Each worker computes its
    share of one global batch after the other. No worker waits for another one.

    Momentum, buffers and the loss scale stay each worker's own. An evaluation is of the
    served parameters and of the mean of all buffers.
    """

    is_replicated = False

    def spread(self, model: nn.Module, observers: Observers) -> SpreadModel:
        """Return the rank's own model; the servers are given its parameters."""
        options = ParameterServer.Options.of(self.trial.options)
        self._window = options.communication_window
        self._rule = rule_of(self.trial.options, self.context.world_size)
        self._link = self.context.servers
        self._num_own_steps = self._num_unreported = self.num_granted = 0
        self._own_step_s, self._has_asked = math.inf, False
        self._steps_of_losses: list[int] = []
        self._last_loss: float | None = None
        self._fetched = flat(model.parameters())
        self._versions = [0] * options.num_servers

        if self._link is not None and self.context.is_first:
            self._link.load(self._fetched, self._versions, 0)

        return SpreadModel(model)

    def begin(self, step: int, num_steps: int) -> None:
        """Prepare a series of steps; all ranks call it, and no clock runs."""
        super().begin(step, num_steps)
        if self._link is None:
            return
        self._num_drained = self._num_timed = step
        self._times = StepTimes(self.context.world_size)
        if self.context.is_first:
            self._link.begin((step + num_steps) * self.context.world_size)
        self.context.sum([0])  # nobody claims a step before the series has begun

    def take(self) -> int | None:
        """Take one optimiser step as soon as it is granted.

        A worker whose steps are short asks for the next one before it takes one, so
        that it need not wait for the answer. Others ask after it: what they held beside
        the one that they take would be waited for at the end of the series.
        """
        link = self._link
        assert link is not None
        if not self._has_asked:
            self._claim(link)

        is_granted, num_claimed = link.claimed()
        self._has_asked = False

        asks_ahead = is_granted and self._own_step_s < ASK_AHEAD_BELOW_S
        if not asks_ahead and self._num_unreported:
            link.tell_ended(self._num_unreported)
            self._num_unreported = 0
        if not is_granted:
            self.num_granted = num_claimed // self.context.world_size
            return None

        self._clock.mark(Phase.EXPOSED_SYNC)
        started_s = time.perf_counter()
        if asks_ahead:
            self._claim(link)

        step = (num_claimed - 1) // self.context.world_size
        loss = self._optimiser_step(step)
        if self.context.is_first:
            self._losses.append(loss)
            self._steps_of_losses.append(step)

        self._num_own_steps += 1
        self._num_unreported += 1
        self._own_step_s = time.perf_counter() - started_s

        if not asks_ahead:
            self._claim(link)
        if self._num_own_steps % self._window == 0:
            self._exchange(link)

        self._clock.mark(Phase.EXPOSED_SYNC)
        self._clock.end_step()
        return step + 1

    def _claim(self, link: ServerLink) -> None:
        link.claim(self._num_unreported)
        self._num_unreported, self._has_asked = 0, True

    def _exchange(self, link: ServerLink) -> None:
        weights = flat(self._model.parameters())
        message = self._rule.message(weights, self._fetched)
        answer, self._versions = link.exchange(message, self._versions)
        self._fetched = self._rule.adopt(weights, answer)
        fill(self._model.parameters(), self._fetched)

    def halt(self, origin: int, cycle: int) -> None:
        """Let the series end early, at whole cycles of steps from ``origin``."""
        assert self._link is not None
        num_workers = self.context.world_size
        self._link.halt(origin * num_workers, cycle * num_workers)

    def step_times_s(self, *, is_over: bool = False) -> list[float]:
        """Return the seconds of the steps since the last call, on rank 0."""
        assert self._link is not None
        times_s = self._times.of(self._link.log())
        if is_over:
            times_s += self._times.of_the_rest()
        self._num_timed += len(times_s)
        return times_s

    def drain_losses(self) -> list[float]:
        """Return rank 0's last loss at each step that was timed since the last call.

        It may take no step while the others take as many as a step of the trial has.
        Before its first one the loss is that of its first; until then there is none.
        """
        if self._link is None:
            return super().drain_losses()
        num_due = sum(step < self._num_timed for step in self._steps_of_losses)
        due, self._losses = self._losses[:num_due], self._losses[num_due:]
        steps = self._steps_of_losses[:num_due]
        del self._steps_of_losses[:num_due]
        values: list[float] = torch.stack(due).tolist() if due else []
        last = dict(zip(steps, values, strict=True))

        if self._last_loss is None and values:
            self._last_loss = values[0]

        losses = []
        for step in range(self._num_drained, self._num_timed):
            self._last_loss = last.get(step, self._last_loss)
            losses.append(self._last_loss)

        self._num_drained = self._num_timed
        return [loss for loss in losses if loss is not None]

    def evaluate(self, step: int) -> dict[str, Any]:
        """Return metrics of the served parameters, and how stale messages were."""
        if self._link is None:
            return super().evaluate(step)
        served, _, staleness = self._link.read(self._fetched)
        buffers = list(self._model.buffers())
        with averaged(buffers), kept(self._model.parameters()):
            fill(self._model.parameters(), served)
            metrics = super().evaluate(step)
        return metrics | _columns(staleness) if self.context.is_first else metrics

    def description(self) -> dict[str, Any]:
        """Return the columns known without measuring, and how stale messages were."""
        if self._link is None:
            return super().description()
        _, _, staleness = self._link.read(self._fetched)
        return super().description() | _columns(staleness)

    def state(self) -> tuple[dict[str, Any], Any]:
        """Return the servers' state, and all that is this worker's own."""
        _, own_state = super().state()
        rank_state = (*own_state, self._num_own_steps, self._fetched, self._versions)
        if self._link is None:
            return {}, rank_state
        parameters, versions, _ = self._link.read(self._fetched)
        return {"parameters": parameters, "versions": versions}, rank_state

    def restore(self, step: int, state: dict[str, Any], rank_state: Any) -> None:
        """Restore a state, to continue after a step."""
        *engine_state, num_own_steps, self._fetched, self._versions = rank_state
        super().restore(step, state, engine_state)
        if self._link is None:
            return
        self._num_own_steps = num_own_steps
        self._start_feed(num_own_steps)
        if self.context.is_first:
            num_claimed = step * self.context.world_size
            self._link.load(state["parameters"], state["versions"], num_claimed)


def _columns(staleness: Staleness) -> dict[str, Any]:
    return {"staleness_mean": staleness.mean, "staleness_max": staleness.maximum}
