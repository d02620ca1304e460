"""The workload of the launch benchmark: a model to wrap, and nothing to load."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from scalelab import Workload


class SmallNetwork(Workload):
    """A perceptron on zeros."""

    def build_model(self) -> nn.Module:
        """Return the perceptron."""
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_data(self) -> TensorDataset:
        """Return 64 samples of nothing."""
        return TensorDataset(torch.zeros(64, 64), torch.zeros(64, dtype=torch.long))
