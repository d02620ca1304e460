"""Reading pictures from a tar archive: CPU time for each file, against its peers.

Ours finds the files by their headers and then reads the archive from front to back.
Python's ``tarfile`` reads it as a stream; so does webdataset, where it is installed
(``pip install webdataset``). All are read from the page cache, turn by turn. Prints
per peer the CPU time for each file and the ratio, median and range over the repeats.

    python benchmarks/feed.py [--files 3000] [--bytes 9000] [--repeats 7]
"""

import argparse
import io
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from comparison import interleave

from scalelab.training.feeding.pictures import Picture
from scalelab.training.feeding.stream import PictureReader
from scalelab.training.feeding.tar import members


def write_archive(path: Path, num_files: int, num_bytes: int) -> None:
    """Write an archive of random files around a size, as pictures have them."""
    rng = np.random.default_rng(1)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for number in range(num_files):
            content = rng.bytes(int(num_bytes * rng.uniform(0.5, 1.5)))
            info = tarfile.TarInfo(f"class-{number % 4}/{number:06}.jpg")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def by_us(path: Path) -> int:
    """Find and read all files; return their bytes."""
    name = str(path)
    with path.open("rb", buffering=0) as file:
        found = [
            Picture(each.name, name, each.offset, each.size)
            for each in members(file, name)
        ]
    reader = PictureReader(found)
    total = sum(len(reader.onward(index)) for index in range(len(found)))
    reader.close()
    return total


def by_tarfile(path: Path) -> int:
    """Read all files through ``tarfile``; return their bytes."""
    total = 0
    with tarfile.open(path, "r|") as tar:
        for info in tar:
            file = tar.extractfile(info)
            assert file is not None
            total += len(file.read())
    return total


def by_webdataset(path: Path) -> int:
    """Read all files through webdataset's iterator; return their bytes."""
    from webdataset.tariterators import tar_file_iterator

    with path.open("rb") as file:
        return sum(len(each["data"]) for each in tar_file_iterator(file))


def seconds(read: Callable[[Path], int], path: Path, num_bytes: int) -> float:
    began = time.process_time()
    assert read(path) == num_bytes
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--bytes", type=int, default=9000)
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    peers = {"tarfile": by_tarfile}
    if find_spec("webdataset"):
        peers["webdataset"] = by_webdataset
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "shard.tar"
        write_archive(path, asked.files, asked.bytes)
        num_bytes = by_us(path)
        for name, read in peers.items():
            read(path)  # what it imports is not counted
            times = interleave(
                lambda: seconds(by_us, path, num_bytes),
                lambda read=read: seconds(read, path, num_bytes),
                asked.repeats,
            )
            ours, peer = (
                statistics.median(each) / asked.files * 1e6
                for each in (times.ours_s, times.peer_s)
            )
            ratios = [1 / ratio for ratio in times.ratios]
            print(
                f"{name}: {peer:.0f} us of CPU for each file, ours {ours:.1f} us, "
                f"{statistics.median(ratios):.1f} times as much "
                f"[{min(ratios):.1f} to {max(ratios):.1f}, n={len(ratios)}]"
            )


if __name__ == "__main__":
    main()
