"""Engine of ``parameter_server``: workers train alone and exchange with servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from scalelab.kinds.strategy_options import communication_window, num_servers
from scalelab.training.engines.local_sgd import LocalModel, averaged
from scalelab.training.engines.spread import Observers, SpreadModel
from scalelab.training.engines.training import TrainingEngine
from scalelab.training.probes.meter import Phase
from scalelab.training.servers.link import ServerLink
from scalelab.training.servers.rules import rule_of
from scalelab.training.servers.served import Staleness, fill, flat


class ParameterServerEngine(TrainingEngine):
    """Takes steps alone; after every window of them it exchanges with the servers.

    A step of the trial is as many optimiser steps as there are workers, taken by
    whichever of them are free: the first server deals them out one by one, so that a
    slow worker takes fewer. Each worker computes its share of one global batch after
    the other, and has asked for the next step while it takes one. At the end of a
    series all wait for the last steps, so that the clocks of all ranks agree.

    Momentum, buffers and the loss scale stay each worker's own. An evaluation is of the
    served parameters and of the mean of all buffers.
    """

    def observes_gradients(self) -> bool:
        """Tell whether the rank's gradient is that of all: there is no other rank."""
        return self.context.world_size == 1

    def spread(self, model: nn.Module, observers: Observers) -> SpreadModel:
        """Return the rank's own model; the servers are given its parameters."""
        options = self.trial.options
        self._window = communication_window(options)
        self._rule = rule_of(options, self.context.world_size)
        self._num_own_steps = self._num_claimed = self._limit = 0
        self._loss: torch.Tensor | None = None
        self._fetched = flat(model.parameters())
        self._versions = [0] * num_servers(options)
        if self._link is not None and self.context.is_first:
            self._link.load(self._fetched, self._versions, 0)
        return LocalModel(model)

    @property
    def _link(self) -> ServerLink | None:
        return self.context.servers

    def begin(self, step: int, num_steps: int) -> None:
        """Prepare a series of steps; all ranks call it, and no clock runs."""
        super().begin(step, num_steps)
        self._num_series_steps = num_steps
        self._limit = (step + num_steps) * self.context.world_size
        if self._link is not None and self.context.is_first:
            self._link.begin(step + num_steps)
        if self._link is not None:
            self._link.claim(self._limit)

    def step(self, step: int) -> None:
        """Take optimiser steps until all workers together have begun enough."""
        link, wanted = self._link, (step + 1) * self.context.world_size
        if link is None:
            super().step(step)
            return
        while self._num_claimed < wanted and self._claim(link):
            self._loss = self._optimiser_step(step)
            self._num_own_steps += 1
            if self._num_own_steps % self._window == 0:
                self._exchange(link)
        if wanted == self._limit:
            self.context.sum([0])
        self._clock.mark(Phase.EXPOSED_SYNC)
        self._clock.end_step()
        if self._loss is not None:
            self._losses.append(self._loss)

    def _claim(self, link: ServerLink) -> bool:
        """Wait for the step that was asked for; ask for the next, for meanwhile."""
        is_granted, self._num_claimed = link.claimed()
        if self._num_claimed < self._limit:
            link.claim(self._limit)
        self._clock.mark(Phase.EXPOSED_SYNC)
        return is_granted

    def _exchange(self, link: ServerLink) -> None:
        own = flat(self._model.parameters())
        message = self._rule.message(own, self._fetched)
        answer, self._versions = link.exchange(message, self._versions)
        self._fetched = self._rule.adopt(own, answer)
        fill(self._model.parameters(), self._fetched)
        self._clock.mark(Phase.EXPOSED_SYNC)

    def drain_losses(self) -> list[float]:
        """Return the last loss of this rank at each step since the last call.

        A rank may take no step while the others take as many as a step of the trial
        has. Before its first one the loss is that of its first; a series in which it
        took none has no losses.
        """
        losses = super().drain_losses()
        num_missing = self._num_series_steps - len(losses)
        return losses[:1] * num_missing + losses

    def evaluate(self, step: int) -> dict[str, Any]:
        """Return metrics of the served parameters, and how stale messages were."""
        if self._link is None:
            return super().evaluate(step)
        served, _, staleness = self._link.read(self._fetched)
        with averaged(list(self._model.buffers())), self._holding(served):
            metrics = super().evaluate(step)
        return metrics | _columns(staleness) if self.context.is_first else metrics

    @contextmanager
    def _holding(self, parameters: torch.Tensor) -> Iterator[None]:
        own = [each.detach().clone() for each in self._model.parameters()]
        fill(self._model.parameters(), parameters)
        yield
        for parameter, value in zip(self._model.parameters(), own, strict=True):
            parameter.detach().copy_(value)

    def description(self) -> dict[str, Any]:
        """Return the columns known without measuring, and how stale messages were."""
        if self._link is None:
            return super().description()
        _, _, staleness = self._link.read(self._fetched)
        return super().description() | _columns(staleness)

    def state(self) -> tuple[dict[str, Any], Any]:
        """Return the servers' state, and all that is this worker's own."""
        own, noise = super().state()
        rank_state = (own, noise, self._num_own_steps, self._fetched, self._versions)
        if self._link is None:
            return {}, rank_state
        parameters, versions, _ = self._link.read(self._fetched)
        return {"parameters": parameters, "versions": versions}, rank_state

    def restore(self, step: int, state: dict[str, Any], rank_state: Any) -> None:
        """Restore a state, to continue after a step."""
        own, noise, num_own_steps, self._fetched, self._versions = rank_state
        super().restore(step, own, noise)
        if self._link is None:
            return
        self._num_own_steps = num_own_steps
        self._num_claimed = step * self.context.world_size
        self._start_feed(num_own_steps)
        if self.context.is_first:
            self._link.load(state["parameters"], state["versions"], self._num_claimed)


def _columns(staleness: Staleness) -> dict[str, Any]:
    return {"staleness_mean": staleness.mean, "staleness_max": staleness.maximum}
