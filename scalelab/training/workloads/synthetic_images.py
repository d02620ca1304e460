"""Residual networks on random images of ImageNet's size: throughput without data."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from scalelab.errors import SpecError
from scalelab.training.feed import Batch
from scalelab.training.workloads.base import Workload
from scalelab.training.workloads.resnet_cifar import blockwise

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Residual blocks of each stage, by depth."""
FIRST_DEPTH_WITH_BOTTLENECKS = 50
EXPANSION = 4
SMALLEST_IMAGE = 32


class SyntheticImages(Workload):
    """Times a residual network on random images; it learns nothing.

    Parameters
    ----------
    image_size
        Pixels along each side; ImageNet's usual 224.
    num_classes
        Classes of the random labels; ImageNet's 1000.

    References
    ----------
    He et al. 2016, "Deep Residual Learning for Image Recognition", table 1; in the
    three-layer blocks the middle convolution has the stride, as is usual since.
    """

    default_learning_rate = 0.1
    dataset_name = "synthetic-images"

    def __init__(
        self,
        depth: int = 50,
        image_size: int = 224,
        num_classes: int = 1000,
        num_images: int = 256,
    ) -> None:
        if depth not in BLOCKS:
            raise SpecError(
                f"depth={depth!r} must be one of {tuple(BLOCKS)}.", code="unknown_depth"
            )
        for name, value, least in (
            ("image_size", image_size, SMALLEST_IMAGE),
            ("num_classes", num_classes, 2),
            ("num_images", num_images, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SpecError(
                    f"{name}={value!r} must be a whole number, at least {least}.",
                    code="not_a_count",
                )

        self.depth = depth
        self.image_size = image_size
        self.num_classes = num_classes
        self.num_images = num_images

    def build_model(self) -> nn.Module:
        """Return the network."""
        return ImageResnet(self.depth, self.num_classes)

    def training_data(self) -> TensorDataset:
        """Return random images, uint8 of shape (3, size, size), and labels."""
        generator = torch.Generator().manual_seed(0)
        size = (self.num_images, 3, self.image_size, self.image_size)
        images = torch.randint(256, size, dtype=torch.uint8, generator=generator)
        labels = torch.randint(
            self.num_classes, (self.num_images,), generator=generator
        )
        return TensorDataset(images, labels)

    def stages(self, model: nn.Module, num_stages: int) -> Sequence[nn.Module]:
        """Return stages of equally many blocks, which cost alike, or nearly so."""
        assert isinstance(model, ImageResnet)
        stem = nn.Sequential(model.stem, nn.ReLU(), model.pool)
        return blockwise(stem, model.stages, model.head, num_stages)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy over a batch."""
        images, labels = batch
        return F.cross_entropy(model(images.float() / 127.5 - 1), labels)

    def build_optimizer(
        self, model: nn.Module, learning_rate: float
    ) -> torch.optim.Optimizer:
        """Return SGD with momentum and weight decay, as He et al. have it."""
        return torch.optim.SGD(
            model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-4
        )


class ImageResnet(nn.Module):
    """The network of He et al. 2016, table 1, with projections where shapes change.

    Examples
    --------
    >>> sum(p.numel() for p in ImageResnet(18, 1000).parameters())
    11689512
    """

    def __init__(self, depth: int, num_classes: int) -> None:
        super().__init__()
        has_bottlenecks = depth >= FIRST_DEPTH_WITH_BOTTLENECKS
        self.stem = _normed(3, 64, size=7, stride=2)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Module] = []

        width_in = 64
        for stage, num_blocks in enumerate(BLOCKS[depth]):
            inner = 64 * 2**stage
            width = inner * (EXPANSION if has_bottlenecks else 1)
            for block in range(num_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                change = _bottleneck if has_bottlenecks else _two_convolutions
                stages.append(
                    Residual(
                        change(width_in, inner, width, stride), width_in, width, stride
                    )
                )
                width_in = width

        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(width_in, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores, shape (samples, num_classes)."""
        hidden = self.pool(F.relu(self.stem(images)))
        scores: torch.Tensor = self.head(self.stages(hidden).mean(dim=(2, 3)))
        return scores


class Residual(nn.Module):
    """A change of the features, added to them; a projection where shapes differ."""

    def __init__(
        self, change: nn.Module, width_in: int, width: int, stride: int
    ) -> None:
        super().__init__()
        self.change = change
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or width_in != width:
            self.shortcut = _normed(width_in, width, size=1, stride=stride)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return F.relu(self.change(hidden) + self.shortcut(hidden))


def _two_convolutions(width_in: int, inner: int, width: int, stride: int) -> nn.Module:
    return nn.Sequential(
        _normed(width_in, inner, size=3, stride=stride),
        nn.ReLU(),
        _normed(inner, width, size=3),
    )


def _bottleneck(width_in: int, inner: int, width: int, stride: int) -> nn.Module:
    return nn.Sequential(
        _normed(width_in, inner, size=1),
        nn.ReLU(),
        _normed(inner, inner, size=3, stride=stride),
        nn.ReLU(),
        _normed(inner, width, size=1),
    )


def _normed(width_in: int, width: int, *, size: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width_in, width, size, stride=stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(width),
    )
