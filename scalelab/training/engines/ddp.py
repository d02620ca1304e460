"""Engine of ``ddp``: every rank holds the model, gradients are averaged each step."""

# No postponed annotations here: torch checks those of a communication hook by identity.

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

from scalelab.kinds.strategies import Ddp
from scalelab.training.engines.power_sgd import PowerSgd
from scalelab.training.engines.spread import (
    Observers,
    SpreadModel,
    call_before_exchange_ends,
)
from scalelab.training.engines.sync_batch_norm import synchronised
from scalelab.training.engines.training import TrainingEngine

# Only evaluation reads the buffers, and takes those of rank 0 then. torch 2.13 renamed
# the argument that saves the broadcast in every forward pass.
BUFFER_ARGUMENT = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


Exchange = Callable[..., Any]
"""A communication hook: a process group and a bucket to a future of the averages."""
EXCHANGES: dict[str, Exchange] = {
    "none": allreduce_hook,
    "fp16": fp16_compress_hook,
    "bf16": bf16_compress_hook,
}
"""torch's hooks, by value of the option ``gradient_compression``."""


class DdpModel(SpreadModel):
    """``DistributedDataParallel``; on one rank the plain module without exchange.

    Gradients are exchanged in pieces of ``bucket_cap_mb`` MiB, or of torch's own size.
    With ``static_graph`` every pass uses the same parameters in the same order, which
    saves torch the search for them; the first pass must exchange.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        observers: Observers,
        *,
        bucket_cap_mb: float | None = None,
        exchange: Exchange = allreduce_hook,
        exchanges_alone: bool = False,
        static_graph: bool = False,
    ) -> None:
        super().__init__(model)
        self._observers = observers
        self._average = exchange

        arguments: dict[str, Any] = {BUFFER_ARGUMENT: False}
        if bucket_cap_mb is not None:
            arguments["bucket_cap_mb"] = bucket_cap_mb

        if dist.get_world_size() > 1 or exchanges_alone:
            self.model = DistributedDataParallel(
                model,
                device_ids=[device.index] if device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                static_graph=static_graph,
                **arguments,
            )
            if observers.on_own_gradients or exchange is not allreduce_hook:
                self.model.register_comm_hook(dist.group.WORLD, self._exchange)

    def watch(self, loss: torch.Tensor) -> None:
        """Report to the observers the backward pass that begins at this loss."""
        if (
            isinstance(self.model, DistributedDataParallel)
            and self.model.require_backward_grad_sync
        ):
            call_before_exchange_ends(loss, self._observers.on_own_gradients_ready)

    def no_sync(self) -> AbstractContextManager[None]:
        """Let gradients accumulate on the rank, without an exchange, in this block."""
        if isinstance(self.model, DistributedDataParallel):
            return self.model.no_sync()
        return super().no_sync()

    def _exchange(
        self, group: dist.ProcessGroup, bucket: GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        if self._observers.on_own_gradients is not None:
            self._observers.on_own_gradients(bucket.buffer())
        future: Any = self._average(group, bucket)
        return future  # type: ignore[no-any-return]


class DdpEngine(TrainingEngine):
    """Trains with ``DistributedDataParallel``."""

    _power_sgd: PowerSgd | None = None

    @property
    def _options(self) -> Ddp.Options:
        return Ddp.Options.of(self.trial.options)

    def build_model(self) -> nn.Module:
        """Return the workload's model, its batch norm synchronised if asked."""
        model = super().build_model()
        if not self._options.sync_batch_norm:
            return model
        return synchronised(model, self.context.device)

    def observes_gradients(self) -> bool:
        """Tell whether ranks have the average of all gradients; PowerSGD has none."""
        return not self._options.uses_powersgd

    def spread(self, model: nn.Module, observers: Observers) -> SpreadModel:
        """Return the model spread over the ranks of the process group."""
        options = self._options
        if options.uses_powersgd:
            self._power_sgd = PowerSgd(
                model.parameters(), rank=options.powersgd_rank, seed=self.trial.seed
            )
            exchange: Exchange = self._power_sgd.exchange
        else:
            exchange = EXCHANGES[options.gradient_compression]

        return DdpModel(
            model,
            self.context.device,
            observers,
            bucket_cap_mb=options.bucket_cap_mb,
            exchange=exchange,
            exchanges_alone=self._power_sgd is not None,
            static_graph=options.static_graph,
        )

    def _prepare(self) -> None:
        super()._prepare()
        if self._power_sgd is not None:
            self._power_sgd.forget()

    def _update(self, step: int) -> None:
        scale = self._scaler.get_scale() if self._power_sgd else 1.0
        super()._update(step)
        if self._power_sgd is not None:
            self._power_sgd.rescale(self._scaler.get_scale() / scale)

    def state(self) -> tuple[dict[str, Any], Any]:
        """Return the state for a checkpoint: the shared part and this rank's own."""
        shared, rank_state = super().state()
        if self._power_sgd is None:
            return shared, rank_state
        rights, errors = self._power_sgd.state()
        return shared | {"power_sgd": rights}, (errors, rank_state)

    def restore(self, step: int, state: dict[str, Any], rank_state: Any) -> None:
        """Restore a state, to continue after a step."""
        if self._power_sgd is not None:
            errors, rank_state = rank_state
            self._power_sgd.restore(state["power_sgd"], errors)
        super().restore(step, state, rank_state)
