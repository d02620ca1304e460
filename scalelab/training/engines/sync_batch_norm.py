"""Batch norm whose statistics are those of all ranks, on any device."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the samples of all ranks; torch's own refuses CPU modules.

    Sums are exchanged in double precision, since the variance is the difference of two
    of them.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the input normalised per channel, which is its second dimension."""
        if not self.training:
            return super().forward(input)
        mean, variance, count = _statistics(input)
        if self.track_running_stats:
            self._track(mean, variance * count / max(count - 1, 1))

        shape = [1, -1] + [1] * (input.dim() - 2)
        scale = torch.rsqrt(variance + self.eps)

        normalised = (input - _like(input, mean, shape)) * _like(input, scale, shape)
        if self.affine:
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)

        return normalised

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:  # torch's sign for the mean over all batches so far
            share = 1.0 / self.num_batches_tracked.item()
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Accept inputs of any dimensions, as the layer it replaces has its own."""


def synchronised(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model with synchronised batch norm; parameters and buffers stay."""
    if device.type == "cuda":
        fast: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return fast
    for name, child in model.named_children():
        setattr(model, name, synchronised(child, device))
    if isinstance(model, _BatchNorm):
        # Its forward pass is all that differs.
        model.__class__ = SyncBatchNorm
    return model


def _statistics(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return mean and variance of each channel over all ranks, and samples behind."""
    num_channels = input.size(1)
    channels = input.double().transpose(0, 1).reshape(num_channels, -1)
    sums_of_rank = torch.cat(
        [
            channels.sum(dim=1),
            channels.square().sum(dim=1),
            channels.new_tensor([channels.size(1)]),
        ]
    )

    sums: torch.Tensor = _SumOverRanks.apply(sums_of_rank)  # type: ignore[no-untyped-call]
    count = int(sums[-1])
    mean, mean_square = torch.split(sums[:-1] / count, num_channels)
    return mean, mean_square - mean.square(), count


def _like(input: torch.Tensor, values: torch.Tensor, shape: list[int]) -> torch.Tensor:
    return values.to(input.dtype).view(shape)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: torch.Tensor) -> torch.Tensor:
        total = sums.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total
