"""Engine of ``local_sgd``: ranks train alone and now and then average parameters."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalelab.experiment.trial import TrialKind
from scalelab.kinds.strategies import LocalSgd
from scalelab.training.engines.ddp import DdpModel
from scalelab.training.engines.spread import Observers, SpreadModel
from scalelab.training.engines.training import TrainingEngine, kept
from scalelab.training.evaluation import exchange_whole
from scalelab.training.probes.meter import Phase


class LocalSgdEngine(TrainingEngine):
    """Takes steps alone and averages parameters every ``averaging_period`` steps.

    The first ``synchronous_steps`` are those of ``ddp`` (post-local SGD); throughput
    trials leave them out, since they measure the steps that follow. Momentum, buffers
    and the loss scale stay each rank's own. An evaluation is of the averaged model, and
    afterwards each rank goes on from its own: evaluations and checkpoints change
    nothing in the training.

    References
    ----------
    Stich 2019, "Local SGD Converges Fast and Communicates Little", algorithm 1.
    Lin et al. 2020, "Don't Use Large Mini-Batches, Use Local SGD", section 3.
    """

    is_replicated = False

    def spread(self, model: nn.Module, observers: Observers) -> SpreadModel:
        """Return the model of the first step: synchronous, or the rank's own."""
        options = LocalSgd.Options.of(self.trial.options)
        is_throughput = self.trial.kind is TrialKind.THROUGHPUT
        self._averaging_period = options.averaging_period
        self._synchronous_steps = 0 if is_throughput else options.synchronous_steps
        if self._synchronous_steps == 0:
            return SpreadModel(model)
        return DdpModel(model, self.context.device, observers)

    def _update(self, step: int) -> None:
        super()._update(step)
        num_local_steps = step + 1 - self._synchronous_steps
        if num_local_steps == 0:
            self._spread = SpreadModel(self._model)

        is_due = num_local_steps > 0 and num_local_steps % self._averaging_period == 0
        if is_due and self.context.world_size > 1:
            self._slow_rank.end()
            self._clock.mark(Phase.OPTIMIZER)
            average(self._model.parameters())
            self._clock.mark(Phase.EXPOSED_SYNC)

    def evaluate(self, step: int) -> dict[str, Any]:
        """Return held-out metrics of the averaged model on rank 0, {} elsewhere."""
        with averaged([*self._model.parameters(), *self._model.buffers()]):
            return super().evaluate(step)

    def restore(self, step: int, state: dict[str, Any], rank_state: Any) -> None:
        """Restore a state, to continue after a step."""
        super().restore(step, state, rank_state)
        if step >= self._synchronous_steps:
            self._spread = SpreadModel(self._model)


def average(
    tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None
) -> None:
    """Give every rank the mean of all ranks; whole numbers stay each rank's own."""
    size = dist.get_world_size(group)
    exchange_whole(
        filter(torch.is_floating_point, tensors),
        lambda flat: dist.all_reduce(flat.div_(size), group=group),
    )


@contextmanager
def averaged(tensors: list[torch.Tensor]) -> Iterator[None]:
    """Hold the means of all ranks in the tensors for the duration of the block."""
    with kept(tensors):
        average(tensors)
        yield
