"""A language model over bytes: a decoder-only Transformer on any text.

Its blocks are pre-norm, with causal attention; embeddings are tied.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from scalelab.errors import SpecError
from scalelab.training.feed import Batch
from scalelab.training.pipeline.splitting import split
from scalelab.training.workloads.base import Workload, check_schedule, schedule_factor
from scalelab.training.workloads.text import Bytes, Text, num_sequences
from scalelab.training.workloads.transformer_shape import VOCABULARY, TransformerShape

BETAS = (0.9, 0.95)
INITIAL_DEVIATION = 0.02
_SHAPE, _TEXT = TransformerShape(), Text()


class TransformerLm(Workload):
    """Predicts the next byte of a text; a sample is one sequence.

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
    ) -> None:
        check_schedule(schedule)
        if not isinstance(activation_checkpointing, bool):
            raise SpecError(
                f"activation_checkpointing={activation_checkpointing!r} must be true "
                "or false.",
                code="not_a_flag",
            )

        self.shape = TransformerShape(
            layers=layers, width=width, heads=heads, sequence_length=sequence_length
        )
        self.text = Text(data=data, held_out_fraction=held_out_fraction)
        self.activation_checkpointing = activation_checkpointing
        self.schedule = schedule
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
        """Return AdamW, whose weight decay spares biases and the gains of norms."""
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
            weight_decay=0.1,
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


class Decoder(nn.Module):
    """The network of GPT-2 over bytes, without dropout.

    Parameters
    ----------
    activation_checkpointing
        Keep only what enters each block, and compute its inside again for the backward
        pass: less memory for about a third more computation.

    References
    ----------
    Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section
    2.3: normalisation before each part, and the initialisation, which divides the
    deviation of what is added to the residual stream by the root of the number of
    additions.
    """

    def __init__(
        self, shape: TransformerShape, *, activation_checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.activation_checkpointing = activation_checkpointing
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(shape.sequence_length, shape.width)
        self.blocks = nn.ModuleList(
            Block(shape.width, shape.heads) for _ in range(shape.layers)
        )
        self.norm = nn.LayerNorm(shape.width)
        self._initialise(shape.layers)

    def _initialise(self, layers: int) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_DEVIATION)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

        deviation = INITIAL_DEVIATION / math.sqrt(2 * layers)
        for block in self.blocks:
            assert isinstance(block, Block)
            nn.init.normal_(block.from_heads.weight, std=deviation)
            nn.init.normal_(block.narrow.weight, std=deviation)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of the next byte.

        Parameters
        ----------
        tokens : Tensor of int64, shape (samples, tokens)
            At most as many tokens as the shape's ``sequence_length``.

        Returns
        -------
        Tensor, shape (samples, tokens, 256)
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        return F.linear(self.norm(hidden), self.tokens.weight)

    def layers(self) -> list[nn.Module]:
        """Return modules that compute the same one after the other.

        The first and the last one share the embedding of bytes.
        """
        blocks: list[nn.Module] = list(self.blocks)
        if self.activation_checkpointing:
            blocks = [Recomputed(block) for block in blocks]
        return [
            Embedded(self.tokens, self.positions),
            *blocks,
            Scored(self.norm, self.tokens),
        ]


class Embedded(nn.Module):
    """Sums of the embeddings of bytes and of their places."""

    def __init__(self, tokens: nn.Embedding, positions: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return embeddings, shape (samples, tokens, width)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: torch.Tensor = self.tokens(tokens) + self.positions(places)
        return embedded


class Scored(nn.Module):
    """Scores of the next byte, by the embedding of bytes."""

    def __init__(self, norm: nn.LayerNorm, tokens: nn.Embedding) -> None:
        super().__init__()
        self.norm = norm
        self.tokens = tokens

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return scores, shape (samples, tokens, 256)."""
        return F.linear(self.norm(hidden), self.tokens.weight)


class Recomputed(nn.Module):
    """A block whose inside is computed again for the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        output: torch.Tensor = (
            checkpoint(self.block, hidden, use_reentrant=False)
            if self.training
            else self.block(hidden)
        )
        return output


class Block(nn.Module):
    """Causal self-attention and a perceptron, each added to what enters it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.to_heads = nn.Linear(width, 3 * width)
        self.from_heads = nn.Linear(width, width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the block's output, of the shape of its input."""
        hidden = hidden + self._attend(self.attention_norm(hidden))
        inner = F.gelu(self.widen(self.perceptron_norm(hidden)), approximate="tanh")
        output: torch.Tensor = hidden + self.narrow(inner)
        return output

    def _attend(self, hidden: torch.Tensor) -> torch.Tensor:
        samples, tokens, width = hidden.shape
        parts = self.to_heads(hidden).view(samples, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined = mixed.transpose(1, 2).reshape(samples, tokens, width)
        output: torch.Tensor = self.from_heads(joined)
        return output
