"""Pictures in a folder per class, which training reads as it goes."""

import hashlib
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import nn
from torch.utils.data import Dataset

from scalelab.errors import SpecError
from scalelab.training.feed import Batch
from scalelab.training.feeding.declared_store import DeclaredStore
from scalelab.training.feeding.pictures import Picture, PictureFiles
from scalelab.training.feeding.stream import PictureReader, SampleStream
from scalelab.training.workloads.base import (
    CONFUSION_MATRIX,
    Workload,
    confusion_matrix,
)
from scalelab.training.workloads.resnet_cifar import DEPTHS, CifarResnet, standardised

Sample = tuple[torch.Tensor, int]


class Pictures(Dataset[Sample]):
    """Pictures with their classes: uint8 of shape (3, size, size), and a number."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        classes: Sequence[str],
        image_size: int,
        store: DeclaredStore | None = None,
    ) -> None:
        self.pictures = pictures
        self.labels = [classes.index(picture.class_name) for picture in pictures]
        self._image_size = image_size
        self._store = store
        self._reader = PictureReader(pictures, store)

    @property
    def content_hash(self) -> str:
        """A hash of the names and sizes, the same for files and archives."""
        digest = hashlib.sha256()
        for picture in self.pictures:
            text = f"{picture.name}\0{picture.size}\0"
            digest.update(text.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Sample:
        return self.decoded(index, self._reader.at(index))

    def decoded(self, index: int, stored: bytes) -> Sample:
        """Return a picture and its class, of the bytes of its file."""
        size = (self._image_size, self._image_size)
        try:
            with Image.open(io.BytesIO(stored)) as image:
                image.draft("RGB", size)
                square = ImageOps.fit(image.convert("RGB"), size)
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            picture = self.pictures[index]
            raise SpecError(
                f"{picture.name!r} in {picture.path} cannot be decoded: {error}. "
                "Remove or replace it.",
                code="bad_picture",
            ) from error

        pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()
        return pixels, self.labels[index]


class CopiedPictures(Pictures):
    """Pictures that a node copies to its own disk before training reads them."""

    def sizes(self) -> list[int]:
        """Return the bytes of every picture."""
        return [picture.size for picture in self.pictures]

    def copy(self, index: int, directory: Path) -> None:
        """Copy a picture from where it is stored."""
        (directory / str(index)).write_bytes(self._reader.at(index))

    def read_from(self, directory: Path) -> None:
        """Read pictures from their copies from now on."""
        self.pictures = [
            replace(picture, path=str(directory / str(index)), offset=0)
            for index, picture in enumerate(self.pictures)
        ]
        self._reader = PictureReader(self.pictures)


class StreamedPictures(Pictures, SampleStream):
    """Pictures in tar archives, which training reads from front to back."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        classes: Sequence[str],
        image_size: int,
        store: DeclaredStore | None = None,
        *,
        shuffle_buffer: int,
    ) -> None:
        super().__init__(pictures, classes, image_size, store)
        self.shuffle_buffer = shuffle_buffer
        places = sorted((p.path, p.offset, i) for i, p in enumerate(pictures))
        self.shards = [
            np.array([index for _, _, index in held])
            for _, held in groupby(places, key=lambda place: place[0])
        ]

    def reader(self) -> PictureReader:
        """Return a new reader of the archives."""
        return PictureReader(self.pictures, self._store)


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
            raise SpecError(
                f"depth={depth!r} must be one of {DEPTHS}.", code="unknown_depth"
            )
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
