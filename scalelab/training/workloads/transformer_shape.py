"""The shape of a decoder-only Transformer: its parameters and operations, counted.

Importing this needs no torch, so a plan can check a shape before any node starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from scalelab.errors import SpecError
from scalelab.kinds.trainers import DataDemand
from scalelab.training.workloads.text import Text

VOCABULARY = 256
"""Tokens are bytes."""


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """The sizes of a decoder-only Transformer over bytes.

    Parameters
    ----------
    heads
        Attention heads of a block; they divide the width.

    Examples
    --------
    GPT-2's smallest shape with its vocabulary replaced by bytes:

    >>> gpt2 = TransformerShape(layers=12, width=768, heads=12, sequence_length=1024)
    >>> gpt2.num_parameters
    86039040
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    sequence_length: int = 128

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpecError(
                    f"{field.name}={value!r} must be a whole number, at least 1.",
                    code="not_a_count",
                )

        if self.width % self.heads:
            raise SpecError(
                f"width={self.width} cannot be divided among heads={self.heads}: each "
                "head takes an equal part. Change one of them.",
                code="width_does_not_divide",
            )

    @property
    def num_parameters(self) -> int:
        """Trainable parameters; the output layer shares those of the embedding."""
        block = 12 * self.width**2 + 13 * self.width
        embeddings = (VOCABULARY + self.sequence_length) * self.width
        return embeddings + self.layers * block + 2 * self.width

    @property
    def flops_per_sample(self) -> float:
        """Floating-point operations of the model per training sample.

        ``6 N + 12 L W S`` per token: a parameter takes a multiplication and an addition
        forward and twice as many backward, and so do the scores of attention. Position
        embeddings, which multiply nothing, are not in ``N``; what activation
        checkpointing computes again is not the model's.

        References
        ----------
        Chowdhery et al. 2022, *PaLM*, appendix B; nanoGPT's ``estimate_mfu`` counts so.
        """
        multiplied = self.num_parameters - self.sequence_length * self.width
        attention = 12 * self.layers * self.width * self.sequence_length
        return float((6 * multiplied + attention) * self.sequence_length)


def check_transformer(parameters: Mapping[str, Any], demand: DataDemand) -> None:
    """Refuse parameters of ``transformer_lm`` that no trial could run with."""
    shape = TransformerShape(**_known(TransformerShape, parameters))
    text = Text(**_known(Text, parameters))
    if demand.has_files:
        text.check(shape.sequence_length, demand.global_batch_size)


def _known(kind: type[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in parameters.items() if name in names}
