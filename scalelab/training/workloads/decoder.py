"""A decoder-only Transformer: pre-norm blocks, causal attention, tied embeddings."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from scalelab.training.workloads.transformer_shape import VOCABULARY, TransformerShape

INITIAL_DEVIATION = 0.02


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
        if not self.training:
            output: torch.Tensor = self.block(hidden)
            return output
        output = checkpoint(self.block, hidden, use_reentrant=False)
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
