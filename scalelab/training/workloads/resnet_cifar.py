"""Residual networks for 32x32 images, on CIFAR-10."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from scalelab.errors import SpecError
from scalelab.training.feed import Batch
from scalelab.training.pipeline.splitting import split
from scalelab.training.workloads.base import Workload, check_schedule, schedule_factor
from scalelab.training.workloads.cifar10 import default_directory, read_cifar10

DEPTHS = (20, 32, 44, 56)
NUM_CLASSES = 10
PADDING = 4
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


class ResnetCifar(Workload):
    """Trains a residual network on CIFAR-10 with pad, crop and flip.

    Parameters
    ----------
    data_dir
        Directory of CIFAR-10 in its official binary or python layout; None: where
        ``scalelab data cifar10`` puts it.
    sync_batch_norm
        Normalise over the local batches of all ranks, so that convergence does not
        depend on how many there are; CUDA only.

    References
    ----------
    He et al. 2016, "Deep Residual Learning for Image Recognition", section 4.2.
    """

    default_learning_rate = 0.1
    dataset_name = "cifar10"
    num_random = 3

    def __init__(
        self,
        depth: int = 20,
        data_dir: str | None = None,
        sync_batch_norm: bool = False,
        schedule: str = "constant",
    ) -> None:
        if depth not in DEPTHS:
            raise SpecError(
                f"depth={depth!r} must be one of {DEPTHS}.", code="unknown_depth"
            )
        check_schedule(schedule)
        self.depth = depth
        self.directory = Path(data_dir) if data_dir else default_directory("cifar10")
        self.sync_batch_norm = sync_batch_norm
        self.schedule = schedule

    def build_model(self) -> nn.Module:
        """Return the network."""
        model = CifarResnet(self.depth)
        if not self.sync_batch_norm:
            return model

        if not torch.cuda.is_available():
            raise SpecError(
                "sync_batch_norm=True of the workload works on CUDA devices only. Run "
                "on GPUs, or use the option of ddp: options: {sync_batch_norm: true}.",
                code="batch_norm_on_cpu",
            )

        synchronised: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return synchronised

    def training_data(self) -> TensorDataset:
        """Return 50,000 images, uint8 of shape (3, 32, 32), and their labels."""
        return TensorDataset(*read_cifar10(self.directory).training)

    def held_out_data(self) -> TensorDataset:
        """Return the 10,000 test images."""
        return TensorDataset(*read_cifar10(self.directory).held_out)

    def stages(self, model: nn.Module, num_stages: int) -> Sequence[nn.Module]:
        """Return stages of equally many blocks, which cost alike, or nearly so."""
        assert isinstance(model, CifarResnet)
        stem = nn.Sequential(model.stem, model.stem_norm, nn.ReLU())
        return blockwise(stem, model.blocks, model.head, num_stages)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy over a batch."""
        images, labels = batch
        return F.cross_entropy(model(standardised(images)), labels)

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return summed ``val_loss`` and ``val_acc``."""
        images, labels = batch
        return dict(super().evaluate(model, (standardised(images), labels)))

    def augment(
        self, batch: tuple[torch.Tensor, ...], uniform: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the batch, each image moved by up to 4 pixels and maybe mirrored."""
        images, labels = batch
        return cropped_and_flipped(images, uniform), labels

    def build_optimizer(
        self, model: nn.Module, learning_rate: float
    ) -> torch.optim.Optimizer:
        """Return SGD with momentum and weight decay, as He et al. have it."""
        return torch.optim.SGD(
            model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-4
        )

    def learning_rate_factor(self, fraction: float) -> float:
        """Return the factor on the learning rate."""
        return schedule_factor(self.schedule, fraction)


class CifarResnet(nn.Module):
    """The network of He et al. 2016, section 4.2, with option-A shortcuts.

    Examples
    --------
    >>> sum(p.numel() for p in CifarResnet(44).parameters())
    658586
    """

    def __init__(self, depth: int, num_classes: int = NUM_CLASSES) -> None:
        super().__init__()
        blocks_per_stage = (depth - 2) // 6
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(16)
        blocks: list[nn.Module] = []

        width = 16
        for stage_width in (16, 32, 64):
            for _ in range(blocks_per_stage):
                blocks.append(ResidualBlock(width, stage_width))
                width = stage_width

        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores, shape (samples, num_classes)."""
        hidden = F.relu(self.stem_norm(self.stem(images)))
        hidden = self.blocks(hidden).mean(dim=(2, 3))
        scores: torch.Tensor = self.head(hidden)
        return scores


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut without parameters (option A)."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.stride = 1 if width_in == width else 2
        self.conv1 = nn.Conv2d(
            width_in, width, 3, stride=self.stride, padding=1, bias=False
        )
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.num_new_channels = width - width_in

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        change = F.relu(self.norm1(self.conv1(hidden)))
        change = self.norm2(self.conv2(change))
        return F.relu(change + self._shortcut(hidden))

    def _shortcut(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.stride == 1:
            return hidden
        half = self.num_new_channels // 2
        thinned = hidden[:, :, :: self.stride, :: self.stride]
        return F.pad(thinned, (0, 0, 0, 0, half, self.num_new_channels - half))


def blockwise(
    stem: nn.Module, blocks: nn.Sequential, head: nn.Module, num_stages: int
) -> list[nn.Module]:
    """Return a residual network as stages of equally many blocks, or nearly so.

    Blocks halve the map where they double the width, so that all compute about as much;
    the mean over the map stands between the last of them and the head.
    """
    mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    costs = [0, *[1] * len(blocks), 0, 0]
    return split([stem, *blocks, mean, head], num_stages, costs)


def standardised(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 images as numbers of about zero mean and unit variance."""
    mean, std = _statistics(images.device)
    return (images.float() / 255 - mean) / std


@cache
def _statistics(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    # Made once: every copy from the host would wait for the device.
    return (
        torch.tensor(MEAN, device=device).view(1, 3, 1, 1),
        torch.tensor(STD, device=device).view(1, 3, 1, 1),
    )


def cropped_and_flipped(images: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return images padded by 4 black pixels, cropped at random, and mirrored."""
    num_samples, num_channels, height, width = images.shape
    padded = F.pad(images, (PADDING,) * 4)
    offsets = (uniform[:, :2] * (2 * PADDING + 1)).long()
    rows = offsets[:, 0, None] + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(num_samples, width)
    is_mirrored = uniform[:, 2, None] >= 0.5
    columns = torch.where(is_mirrored, width - 1 - columns, columns)
    columns = offsets[:, 1, None] + columns
    samples = torch.arange(num_samples, device=images.device)
    channels = torch.arange(num_channels, device=images.device)

    return padded[
        samples[:, None, None, None],
        channels[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
