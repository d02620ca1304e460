"""Pictures in a folder per class, as files or in tar archives: found and split.

Importing this needs no torch, so a plan can check the pictures before any node starts.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from scalelab.errors import SpecError
from scalelab.kinds.trainers import DataDemand
from scalelab.training.feeding.declared_store import DeclaredStore
from scalelab.training.feeding.tar import members
from scalelab.training.order import check_parts

SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
FEEDS, ORDERS = ("folder", "tar", "copy_first"), ("replicated", "sharded")
SMALLEST_IMAGE = 8


@dataclass(frozen=True, slots=True)
class Picture:
    """Where the bytes of a picture are."""

    name: str
    path: str
    offset: int
    size: int

    @property
    def class_name(self) -> str:
        """Its class: the folder that it is in."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class PictureFiles:
    """A set of pictures, some of them held out.

    Parameters
    ----------
    shards
        A folder with tar archives of such pictures, in which a picture's class is the
        folder it was packed in.
    order
        ``replicated``: every rank draws from all pictures; ``sharded``: from a part of
        its own.
    held_out_fraction
        Part of each class that is held out, in (0, 1): those whose names have the
        smallest hashes, so that folder and archives hold out the same.
    store
        See :class:`~scalelab.training.feeding.declared_store.DeclaredStore`; None: the
        files are read as fast as they come.
    """

    data: str | None = None
    shards: str | None = None
    feed: str = "folder"
    order: str = "replicated"
    shuffle_buffer: int = 1000
    held_out_fraction: float = 0.2
    image_size: int = 64
    store: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name, known in (("feed", FEEDS), ("order", ORDERS)):
            if getattr(self, name) not in known:
                raise SpecError(
                    f"{name}={getattr(self, name)!r} must be {' or '.join(known)}.",
                    code="unknown_value",
                )

        for name, least in (("shuffle_buffer", 1), ("image_size", SMALLEST_IMAGE)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SpecError(
                    f"{name}={value!r} must be a whole number, at least {least}.",
                    code="not_a_count",
                )

        fraction = self.held_out_fraction
        if isinstance(fraction, bool) or not 0 < fraction < 1:
            raise SpecError(
                f"held_out_fraction={fraction!r} must be between 0 and 1.",
                code="not_a_share",
            )
        if self.store is not None:
            DeclaredStore.of(self.store)

        if not isinstance(self._place, str):
            raise SpecError(
                f"feed={self.feed} reads {self._key}, which is {self._place!r}. Write "
                f"workload: {{name: image_folder, {self._key}: FOLDER}}.",
                code="feed_without_data",
            )

    @property
    def _key(self) -> str:
        return "shards" if self.feed == "tar" else "data"

    @property
    def _place(self) -> str | None:
        return self.shards if self.feed == "tar" else self.data

    def found(self) -> tuple[Picture, ...]:
        """Return all pictures, sorted by name."""
        place = Path(str(self._place))
        if not place.is_dir():
            raise SpecError(
                f"{self._key}={str(place)!r} is no folder: {place.resolve()} does not "
                "exist or is a file. Correct the path.",
                code="no_folder",
            )
        return _found(place.resolve(), self.feed == "tar")

    def split(self) -> tuple[tuple[Picture, ...], tuple[Picture, ...]]:
        """Return the pictures to train on, and those that are held out."""
        by_class: dict[str, list[Picture]] = {}
        for picture in self.found():
            by_class.setdefault(picture.class_name, []).append(picture)

        if len(by_class) < 2:
            raise SpecError(
                f"{self._key}={str(self._place)!r} has pictures of "
                f"{' and '.join(by_class)} alone. Put those of each class into a "
                "folder of its own.",
                code="one_class",
            )

        held_out = {
            picture.name
            for pictures in by_class.values()
            for picture in self._held_out(pictures)
        }
        parts: tuple[list[Picture], list[Picture]] = ([], [])
        for picture in self.found():
            parts[picture.name in held_out].append(picture)

        return tuple(parts[0]), tuple(parts[1])

    def _held_out(self, pictures: Sequence[Picture]) -> Sequence[Picture]:
        if len(pictures) < 2:
            raise SpecError(
                f"{self._key}={str(self._place)!r} has one picture of class "
                f"{pictures[0].class_name!r}; it takes two, one to train on and one to "
                "hold out. Add some, or remove the class.",
                code="one_picture",
            )

        wanted = round(len(pictures) * self.held_out_fraction)
        number = min(max(wanted, 1), len(pictures) - 1)
        return sorted(
            pictures,
            key=lambda path: hashlib.sha256(os.fsencode(path.name)).digest(),
        )[:number]

    def check(self, global_batch_size: int, data_parallel_size: int) -> None:
        """Refuse pictures that are too few for a global batch, or for so many ranks."""
        training, _ = self.split()
        if len(training) < global_batch_size:
            raise SpecError(
                f"{self._key}={str(self._place)!r} has {len(training)} pictures to "
                f"train on, fewer than a global batch of {global_batch_size}. Give "
                "more pictures or a smaller global batch.",
                code="too_few_samples",
            )

        if self.order == "sharded":
            archives = {picture.path for picture in training}
            is_packed = self.feed == "tar"
            found = len(archives) if is_packed else len(training)
            noun = "shards" if is_packed else "training samples"
            check_parts(found, noun, data_parallel_size)


def check_pictures(parameters: Mapping[str, Any], demand: DataDemand) -> None:
    """Refuse parameters of ``image_folder`` that no trial could run with."""
    names = {field.name for field in fields(PictureFiles)}
    known = {name: value for name, value in parameters.items() if name in names}
    files = PictureFiles(**known)
    if demand.has_files:
        files.check(demand.global_batch_size, demand.data_parallel_size)


@lru_cache(maxsize=2)
def _found(place: Path, is_packed: bool) -> tuple[Picture, ...]:
    found = _in_archives(place) if is_packed else _in_folders(place)
    if not found:
        raise SpecError(
            f"{place} holds no {'tar archive with' if is_packed else 'folder of'} "
            f"pictures ({', '.join(sorted(SUFFIXES))}). Put those of each class into a "
            "folder of its own.",
            code="no_pictures",
        )

    found.sort(key=lambda picture: picture.name)
    for one, other in pairwise(found):
        if one.name == other.name:
            raise SpecError(
                f"{one.name!r} comes twice, in {one.path} and in {other.path}: it "
                "might be trained on and held out. Remove or rename one of them.",
                code="picture_twice",
            )

    return tuple(found)


def _in_folders(place: Path) -> list[Picture]:
    return [
        Picture(f"{folder.name}/{file.name}", file.path, 0, file.stat().st_size)
        for folder in os.scandir(place)
        if folder.is_dir()
        for file in os.scandir(folder.path)
        if file.is_file() and _is_picture(file.name)
    ]


def _in_archives(place: Path) -> list[Picture]:
    found = []
    for path in map(str, sorted(place.glob("*.tar"))):
        with open(path, "rb", buffering=0) as file:  # most of a block would not be used
            for member in members(file, path):
                folder, _, name = member.name.rpartition("/")
                if folder and _is_picture(name):
                    name = f"{PurePosixPath(folder).name}/{name}"
                    found.append(Picture(name, path, member.offset, member.size))
    return found


def _is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES
