"""A language model over bytes: a decoder-only Transformer on any text."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from scalelab.errors import SpecError
from scalelab.training.feed import Batch
from scalelab.training.pipeline.splitting import split
from scalelab.training.workloads.base import Workload, check_schedule, schedule_factor
from scalelab.training.workloads.decoder import Decoder
from scalelab.training.workloads.text import Bytes, Text, num_sequences
from scalelab.training.workloads.transformer_shape import TransformerShape

BETAS = (0.9, 0.95)
_SHAPE, _TEXT = TransformerShape(), Text()


class TransformerLm(Workload):
    """Predicts the next byte of a text; a sample is one sequence.

    Parameters
    ----------
    weight_decay
        Of AdamW, for matrices only; not for biases and the gains of norms.

    Notes
    -----
    ``val_loss`` is the mean cross entropy in nats per byte.
    """

    default_learning_rate = 1e-3
    default_metric = "val_loss"

    def __init__(
        self,
        layers: int = _SHAPE.layers,
        width: int = _SHAPE.width,
        heads: int = _SHAPE.heads,
        sequence_length: int = _SHAPE.sequence_length,
        data: str | Sequence[str] | None = _TEXT.data,
        held_out_fraction: float = _TEXT.held_out_fraction,
        activation_checkpointing: bool = False,
        schedule: str = "constant",
        weight_decay: float = 0.1,
    ) -> None:
        check_schedule(schedule)
        if not isinstance(activation_checkpointing, bool):
            raise SpecError(
                f"activation_checkpointing={activation_checkpointing!r} must be true "
                "or false."
            )
        self.shape = TransformerShape(
            layers=layers, width=width, heads=heads, sequence_length=sequence_length
        )
        self.text = Text(data=data, held_out_fraction=held_out_fraction)
        self.activation_checkpointing = activation_checkpointing
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.dataset_name = self.text.name
        self.tokens_per_sample = sequence_length
        self.flops_per_sample = self.shape.flops_per_sample

    def build_model(self) -> nn.Module:
        """Return the network."""
        return Decoder(
            self.shape, activation_checkpointing=self.activation_checkpointing
        )

    def training_data(self) -> TensorDataset:
        """Return sequences of uint8, shape (samples, sequence_length + 1)."""
        self.text.check(self.shape.sequence_length)
        return self._sequences(self.text.training_part())

    def held_out_data(self) -> TensorDataset:
        """Return the sequences of the held-out part."""
        return self._sequences(self.text.held_out_part())

    def _sequences(self, content: Bytes) -> TensorDataset:
        """Cut a text into sequences, the last byte of each the first of the next."""
        length = self.shape.sequence_length
        num_bytes = num_sequences(len(content), length) * length + 1
        whole = torch.from_numpy(content[:num_bytes])
        return TensorDataset(whole.unfold(0, length + 1, length))

    def stages(self, model: nn.Module, num_stages: int) -> Sequence[nn.Module]:
        """Return stages whose largest number of parameters is as small as can be.

        The embedding of bytes, which also scores them, is on the first and the last.
        """
        assert isinstance(model, Decoder)
        return split(model.layers(), num_stages)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy of the next byte, in nats."""
        return _cross_entropy(model, batch, reduction="mean")

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return ``val_loss``, each sequence's mean summed over the sequences."""
        total = _cross_entropy(model, batch, reduction="sum")
        return {"val_loss": total / self.shape.sequence_length}

    def build_optimizer(
        self, model: nn.Module, learning_rate: float
    ) -> torch.optim.Optimizer:
        """Return AdamW."""
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        vectors = [p for p in model.parameters() if p.dim() < 2]
        groups: list[dict[str, Any]] = [
            {"params": matrices},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            groups,
            lr=learning_rate,
            betas=BETAS,
            weight_decay=self.weight_decay,
        )

    def learning_rate_factor(self, fraction: float) -> float:
        """Return the factor on the learning rate."""
        return schedule_factor(self.schedule, fraction)


def _cross_entropy(model: nn.Module, batch: Batch, *, reduction: str) -> torch.Tensor:
    (sequences,) = batch
    tokens = sequences.long()
    scores = model(tokens[:, :-1])
    return F.cross_entropy(
        scores.flatten(0, 1), tokens[:, 1:].flatten(), reduction=reduction
    )
