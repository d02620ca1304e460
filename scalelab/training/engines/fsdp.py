"""Engine of ``fsdp``: parameters, gradients and optimiser state spread over ranks."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import Dataset

from scalelab.kinds.strategies import Fsdp
from scalelab.training import feed
from scalelab.training.engines.spread import (
    Observers,
    SpreadModel,
    call_before_exchange_ends,
)
from scalelab.training.engines.training import TrainingEngine

GATHERED = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""State is gathered on rank 0, so that a checkpoint is that of a plain module."""


class FsdpModel(SpreadModel):
    """A module whose parameters torch's FSDP2 has sharded; on one rank, a plain one.

    The mesh is that of a shard group, or of replicas x shard group; None: one rank.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Iterable[nn.Module],
        mesh: DeviceMesh | None,
        observers: Observers,
    ) -> None:
        super().__init__(model)
        self._observers = observers
        if mesh is not None:
            for block in blocks:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        self._is_exchanging = mesh is not None

    def watch(self, loss: torch.Tensor) -> None:
        """Report to the observers the backward pass that begins at this loss."""
        if self._is_exchanging:
            call_before_exchange_ends(loss, self._observers.on_own_gradients_ready)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients accumulate on the rank, without an exchange, in this block."""
        if not isinstance(self.model, FSDPModule):
            yield
            return
        self._is_exchanging = False
        self.model.set_requires_gradient_sync(False)
        yield
        self.model.set_requires_gradient_sync(True)
        self._is_exchanging = True


class FsdpEngine(TrainingEngine):
    """Trains with FSDP2; ``shard_group`` ranks hold a copy of the state between them.

    References
    ----------
    Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
    Parallel"; hybrid sharding is in section 3.2.2.
    """

    def observes_gradients(self) -> bool:
        """Tell whether the rank holds whole gradients: there is no other rank."""
        return self.context.world_size == 1

    def spread(self, model: nn.Module, observers: Observers) -> SpreadModel:
        """Return the model spread over the ranks of the process group."""
        world_size, device_type = self.context.world_size, self.context.device.type
        size = Fsdp.Options.of(self.trial.options).shard_group or world_size
        mesh = None
        if size < world_size:
            shape, names = (world_size // size, size), ("replicas", "shard_group")
            mesh = init_device_mesh(device_type, shape, mesh_dim_names=names)
        elif world_size > 1:
            mesh = init_device_mesh(device_type, (world_size,))
        return FsdpModel(model, self.workload.blocks(model), mesh, observers)

    def _evaluation_batches(
        self, held_out: Dataset[Any]
    ) -> Iterator[tuple[feed.Batch, int]]:
        """Yield as many batches on every rank, since each pass gathers parameters.

        Those that a rank lacks are of one sample, which does not count.
        """
        num_batches = 0
        for batch in super()._evaluation_batches(held_out):
            yield batch
            num_batches += 1

        most_samples = -(-feed.num_samples_of(held_out) // self.context.world_size)
        most_batches = -(-most_samples // self._evaluation_batch_size)

        one_sample = feed.held_out_batches(
            held_out, rank=0, world_size=1, batch_size=1, device=self.context.device
        )
        for batch, _ in islice(one_sample, most_batches - num_batches):
            yield batch, 0

    def _trained_state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(
            self._model, self._optimizer, options=GATHERED
        )
        return {"model": model, "optimizer": optimizer}

    def _restore_trained(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=GATHERED,
        )
