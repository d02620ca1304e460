"""What reading from a declared store takes is known, so the feed is held to it."""

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
import torch
from picture_folders import make_pictures, pack
from hypothesis import given
from hypothesis import strategies as st

from scalelab.training.feed import order_of, training_batches
from scalelab.training.feeding.declared_store import DeclaredStore, VirtualTime
from scalelab.training.feeding.picture_data import Pictures, StreamedPictures
from scalelab.training.feeding.pictures import PictureFiles
from scalelab.training.feeding.read_ahead import read_ahead
from scalelab.training.feeding.virtual_time import data_waits
from scalelab.training.order import Share

OPEN_S, BYTES_PER_S = 0.004, 1e6
BLOCK = 1024
"""Bytes of a picture in an archive: its header and its padded content."""
BUFFER = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pictures to train on, of less than 512 bytes, in one archive of all 50."""
    place = tmp_path_factory.mktemp("data")
    make_pictures(place / "pictures", {"blue": 10, "red": 40})
    pack(place)
    return place


def read_times(
    place: Path, feed: str, *, world_size: int = 1, num_batches: int = 5
) -> tuple[list[float], list[int]]:
    """Return the declared seconds that rank 0 takes for each batch of 4 pictures.

    And the bytes of the files in it.
    """
    files = PictureFiles(
        data=str(place / "pictures"), shards=str(place / "shards"), feed=feed
    )
    clock = VirtualTime()
    store = DeclaredStore(open_s=OPEN_S, bytes_per_s=BYTES_PER_S, clock=clock)
    chosen, classes = files.split()[0], ["blue", "red"]
    dataset = Pictures(chosen, classes, 8, store)
    if feed == "tar":
        dataset = StreamedPictures(chosen, classes, 8, store, shuffle_buffer=BUFFER)
    share = Share(
        rank=0,
        data_parallel_size=world_size,
        local_batch_size=4,
        gradient_accumulation_steps=1,
    )
    order = order_of(dataset, share, seed=1, is_sharded=False)
    batches = training_batches(
        dataset, order, share, first_step=0, device=torch.device("cpu")
    )
    moments = [0.0]
    for _ in islice(batches, num_batches):
        moments.append(clock.now())
    batches.close()
    sizes = [
        sum(chosen[index].size for index in order.batch(step)[share.rows(0)])
        for step in range(num_batches)
    ]
    return [end - start for start, end in zip(moments, moments[1:])], sizes


def test_files_take_an_opening_and_their_bytes_each(place: Path) -> None:
    for world_size in (1, 2):
        times, sizes = read_times(place, "folder", world_size=world_size)
        expected = [4 * OPEN_S + size / BYTES_PER_S for size in sizes]
        assert times == pytest.approx(expected)


def test_an_archive_takes_one_opening_and_all_bytes_once(place: Path) -> None:
    times, _ = read_times(place, "tar", num_batches=10)
    # 40 pictures are given out: all 50 were read, from each of four archives.
    ends = [path.stat().st_size for path in (place / "shards").iterdir()]
    padding = sum(end % BLOCK for end in ends)
    assert sum(times) <= 4 * OPEN_S + sum(ends) / BYTES_PER_S
    assert sum(times) >= 4 * OPEN_S + (50 * BLOCK - 4 * 3 * BLOCK) / BYTES_PER_S
    assert padding >= 0


@pytest.mark.parametrize(
    ("read_s", "options", "expected"),
    [
        ([3, 3, 3], {}, [3, 3, 3]),
        ([3, 3, 3, 3], {"prefetch": 1}, [3, 1, 1, 1]),
        ([3, 3, 3, 3], {"prefetch": 4}, [3, 1, 1, 1]),
        ([1, 1, 1, 1], {"prefetch": 1}, [1, 0, 0, 0]),
        ([3, 3, 3, 3, 3], {"prefetch": 1, "loader_workers": 2}, [3, 0, 0, 0, 0]),
        ([6, 6, 6, 6, 6], {"prefetch": 1, "loader_workers": 2}, [6, 0, 2, 2, 2]),
    ],
)
def test_waits_by_hand(
    read_s: list[int], options: dict[str, int], expected: list[int]
) -> None:
    assert data_waits(read_s, compute_s=2, **options) == expected
