"""Pictures as training data: read, decoded, cut to a square."""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.utils.data import Dataset

from scalelab.errors import SpecError
from scalelab.training.feeding.declared_store import DeclaredStore
from scalelab.training.feeding.pictures import Picture
from scalelab.training.feeding.stream import PictureReader, SampleStream

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
                "Remove or replace it."
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
