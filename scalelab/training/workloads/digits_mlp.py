"""A multilayer perceptron on scikit-learn's digits: the default, with no download."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from scalelab.errors import SpecError
from scalelab.training.workloads.base import Workload

NUM_HELD_OUT = 360
NUM_PIXELS = 64
NUM_CLASSES = 10


class DigitsMlp(Workload):
    """Classifies 8x8 grey digits; 1,437 to train on, 360 held out.

    Parameters
    ----------
    batch_norm
        Normalise the hidden layers; convergence then depends on the local batch.
    """

    default_learning_rate = 0.1
    dataset_name = "digits"

    def __init__(
        self,
        hidden_sizes: Sequence[int] = (64,),
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        if not isinstance(hidden_sizes, Sequence) or any(
            not isinstance(size, int) or size < 1 for size in hidden_sizes
        ):
            raise SpecError(
                f"hidden_sizes={hidden_sizes!r} must be whole numbers, at least 1, "
                "in a list such as [64].",
                code="bad_sizes",
            )

        if not 0 <= dropout < 1:
            raise SpecError(
                f"dropout={dropout} must be at least 0 and below 1.", code="not_a_share"
            )

        self.hidden_sizes = tuple(hidden_sizes)
        self.batch_norm = batch_norm
        self.dropout = dropout

    def build_model(self) -> nn.Module:
        """Return the perceptron."""
        layers: list[nn.Module] = []
        width = NUM_PIXELS
        for size in self.hidden_sizes:
            layers.append(nn.Linear(width, size))
            if self.batch_norm:
                layers.append(nn.BatchNorm1d(size))
            layers.append(nn.ReLU())
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
            width = size

        return nn.Sequential(*layers, nn.Linear(width, NUM_CLASSES))

    def training_data(self) -> TensorDataset:
        """Return 1,437 images, scaled to [0, 1], and their labels."""
        return _digits()[0]

    def held_out_data(self) -> TensorDataset:
        """Return the other 360."""
        return _digits()[1]


@cache
def _digits() -> tuple[TensorDataset, TensorDataset]:
    # Imported here: the fork server preloads it, everybody else need not pay for it.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    inputs = torch.tensor(images[order] / 16, dtype=torch.float32)
    targets = torch.tensor(labels[order], dtype=torch.int64)

    return (
        TensorDataset(inputs[NUM_HELD_OUT:], targets[NUM_HELD_OUT:]),
        TensorDataset(inputs[:NUM_HELD_OUT], targets[:NUM_HELD_OUT]),
    )
