"""Pictures in a folder per class, which training reads as it goes."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from scalelab.errors import SpecError
from scalelab.training.feed import Batch
from scalelab.training.feeding.declared_store import DeclaredStore
from scalelab.training.feeding.picture_data import (
    CopiedPictures,
    Pictures,
    StreamedPictures,
)
from scalelab.training.feeding.pictures import PictureFiles
from scalelab.training.workloads.base import (
    CONFUSION_MATRIX,
    Workload,
    confusion_matrix,
)
from scalelab.training.workloads.resnet_cifar import DEPTHS, CifarResnet, standardised

_FILES = PictureFiles(data="")


class ImageFolder(Workload):
    """Trains a residual network on pictures that are read from files or archives.

    Notes
    -----
    A picture is scaled so that its shorter side fits, and the middle is cut out.
    ``val_balanced_acc`` is the mean over classes of the share of their held-out
    pictures that are recognised.
    """

    default_learning_rate = 0.1

    def __init__(
        self,
        data: str | None = None,
        shards: str | None = None,
        feed: str = _FILES.feed,
        order: str = _FILES.order,
        shuffle_buffer: int = _FILES.shuffle_buffer,
        held_out_fraction: float = _FILES.held_out_fraction,
        image_size: int = _FILES.image_size,
        store: Mapping[str, float] | None = None,
        depth: int = 20,
    ) -> None:
        if depth not in DEPTHS:
            raise SpecError(f"depth={depth!r} must be one of {DEPTHS}.")
        self.files = PictureFiles(
            data=data,
            shards=shards,
            feed=feed,
            order=order,
            shuffle_buffer=shuffle_buffer,
            held_out_fraction=held_out_fraction,
            image_size=image_size,
            store=store,
        )

        self.depth = depth
        self.is_sharded = order == "sharded"
        self.dataset_name = "pictures" if store is None else "pictures-declared-store"
        self._training, self._held_out = self.files.split()
        self.class_names = sorted({picture.class_name for picture in self._training})
        counts = Counter(picture.class_name for picture in self._held_out)
        per_class = torch.tensor([counts[name] for name in self.class_names])
        # What a recognised picture of each class adds to the balanced accuracy.
        # Evaluation divides by the number of pictures, which is undone here.
        self._recall_weights = len(self._held_out) / (len(self.class_names) * per_class)

    def build_model(self) -> nn.Module:
        """Return the network."""
        return CifarResnet(self.depth, len(self.class_names))

    def training_data(self) -> Pictures:
        """Return the pictures to train on, uint8, and their classes."""
        declared = self.files.store
        store = None if declared is None else DeclaredStore.of(declared)
        if self.files.feed != "tar":
            kind = CopiedPictures if self.files.feed == "copy_first" else Pictures
            return kind(self._training, self.class_names, self.files.image_size, store)

        return StreamedPictures(
            self._training,
            self.class_names,
            self.files.image_size,
            store,
            shuffle_buffer=self.files.shuffle_buffer,
        )

    def held_out_data(self) -> Pictures:
        """Return the held-out pictures; a declared store does not delay them."""
        return Pictures(self._held_out, self.class_names, self.files.image_size)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy over a batch."""
        images, labels = batch
        return F.cross_entropy(model(standardised(images)), labels)

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return summed ``val_loss``, ``val_acc`` and ``val_balanced_acc``, and more.

        The confusion matrix is of the classes in the order of their names.
        """
        images, labels = batch
        outputs = model(standardised(images))
        is_right = outputs.argmax(dim=1) == labels
        weights = self._recall_weights.to(labels.device)[labels]

        return {
            "val_loss": F.cross_entropy(outputs, labels, reduction="sum"),
            "val_acc": is_right.sum(),
            "val_balanced_acc": (is_right * weights).sum(),
            CONFUSION_MATRIX: confusion_matrix(outputs, labels),
        }
