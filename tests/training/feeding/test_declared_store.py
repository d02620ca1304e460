"""What reading from a declared store takes is known, so the feed is held to it."""

import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from picture_folders import make_pictures
from virtual_feed import data_waits

from scalelab.training.feed import order_of, read_ahead, training_batches
from scalelab.training.feeding.declared_store import DeclaredStore
from scalelab.training.feeding.pictures import PictureFiles
from scalelab.training.feeding.tar import padded
from scalelab.training.order import Share
from scalelab.training.workloads.image_folder import Pictures, StreamedPictures

OPEN_S, BYTES_PER_S = 0.004, 1e6
BUFFER = 4
LOCAL_BATCH = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pictures to train on, in a folder, and all 50 in one archive."""
    place = tmp_path_factory.mktemp("data")
    make_pictures(place / "pictures", {"blue": 10, "red": 40})
    (place / "shards").mkdir()
    with tarfile.open(place / "shards" / "0.tar", "w") as tar:
        tar.add(place / "pictures", arcname=".")
    return place


@dataclass(slots=True)
class VirtualTime:
    """Time that passes only by waiting: exact, and at once."""

    passed_s: float = 0.0

    def now(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


@dataclass
class Feed:
    """The feed of rank 0 from a declared store, in virtual time."""

    place: Path
    feed: str
    world_size: int = 1
    buffer_size: int = BUFFER

    def __post_init__(self) -> None:
        files = PictureFiles(
            data=str(self.place / "pictures"),
            shards=str(self.place / "shards"),
            feed=self.feed,
        )
        self.clock = VirtualTime()
        store = DeclaredStore(
            open_s=OPEN_S,
            bytes_per_s=BYTES_PER_S,
            now=self.clock.now,
            sleep=self.clock.sleep,
        )
        self.pictures, classes = files.split()[0], ["blue", "red"]
        self.dataset = Pictures(self.pictures, classes, 8, store)
        if self.feed == "tar":
            self.dataset = StreamedPictures(
                self.pictures, classes, 8, store, shuffle_buffer=self.buffer_size
            )
        self.share = Share(
            rank=0,
            data_parallel_size=self.world_size,
            local_batch_size=LOCAL_BATCH,
            gradient_accumulation_steps=1,
        )
        self.order: Any = order_of(self.dataset, self.share, seed=1, is_sharded=False)

    def moments(self, num_batches: int) -> list[float]:
        """Return the declared seconds after which each batch is there."""
        batches = training_batches(
            self.dataset,
            self.order,
            self.share,
            first_step=0,
            device=torch.device("cpu"),
        )
        moments = [self.clock.now() for _ in islice(batches, num_batches)]
        batches.close()
        return moments


@pytest.mark.parametrize("world_size", [1, 2])
def test_each_file_takes_an_opening_and_its_bytes(place: Path, world_size: int) -> None:
    feed = Feed(place, "folder", world_size)
    expected, moment = [], 0.0
    for step in range(4):
        rows = feed.order.batch(step)[feed.share.rows(0)]
        num_bytes = sum(feed.pictures[index].size for index in rows)
        moment += LOCAL_BATCH * OPEN_S + num_bytes / BYTES_PER_S
        expected.append(moment)
    assert feed.moments(4) == pytest.approx(expected)


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_archive_takes_one_opening_and_all_bytes(
    place: Path, world_size: int
) -> None:
    feed = Feed(place, "tar", world_size)
    (reading,) = feed.order.reading(0, 0)
    expected = []
    for step in range(4):
        given = (step + 1) * LOCAL_BATCH * world_size
        last = feed.pictures[reading[feed.order.num_read(given, 40) - 1]]
        end = last.offset + padded(last.size)
        expected.append(OPEN_S + end / BYTES_PER_S)
    assert feed.moments(4) == pytest.approx(expected)


def test_a_stream_starts_long_before_a_large_buffer_is_full(place: Path) -> None:
    feed = Feed(place, "tar", buffer_size=1000)
    size = feed.place.joinpath("shards/0.tar").stat().st_size
    assert feed.moments(1)[0] < OPEN_S + size / BYTES_PER_S / 3


def seconds_per_batch(place: Path, feed: str, world_size: int) -> float:
    return Feed(place, feed, world_size).moments(10)[-1] / 10


def test_files_beat_a_stream_where_every_rank_reads_all_of_it(place: Path) -> None:
    # A file takes 4.5 ms, and 1 to 1.5 ms in a stream, but there once for each rank.
    alone = [seconds_per_batch(place, feed, 1) for feed in ("folder", "tar")]
    many = [seconds_per_batch(place, feed, 8) for feed in ("folder", "tar")]
    assert alone[0] > 1.5 * alone[1]
    assert many[0] < many[1] / 1.5
    assert many[0] == pytest.approx(alone[0], rel=0.05)


@pytest.mark.parametrize(
    ("options", "bound_s"),
    [
        # Reading and computing, one after the other, or the longer of them.
        ({}, 0.018 + 0.01),
        ({"prefetch": 2}, 0.018),
        ({"prefetch": 2, "loader_workers": 1}, 0.018),
        ({"prefetch": 2, "loader_workers": 2}, 0.01),
    ],
)
def test_samples_per_second_are_those_of_the_longer_part(
    options: dict[str, int], bound_s: float
) -> None:
    num_batches, compute_s = 2000, 0.01
    waits = data_waits([0.018] * num_batches, compute_s, **options)
    step_s = sum(waits) / num_batches + compute_s
    rate, expected = LOCAL_BATCH / step_s, LOCAL_BATCH / bound_s
    assert rate == pytest.approx(expected, rel=0.002)
    assert waits[0] == 0.018


def test_waiting_in_real_time_takes_what_is_declared() -> None:
    store = DeclaredStore(open_s=0.004, bytes_per_s=1e6)
    began = time.perf_counter()
    for _ in range(50):
        store.wait(1, 2000)
    ratio = (time.perf_counter() - began) / store.seconds(50, 100_000)
    assert 0.9 < ratio < 5


def test_a_rank_waits_as_its_twin_does() -> None:
    def slow() -> Iterator[int]:
        for number in count():
            time.sleep(0.03)
            yield number

    items = read_ahead(slow(), depth=2)
    waited = 0.0
    for expected in range(12):
        began = time.perf_counter()
        assert next(items) == expected
        waited += time.perf_counter() - began
        time.sleep(0.02)
    items.close()
    twin = sum(data_waits([0.03] * 12, 0.02, prefetch=2))
    assert 0.6 < waited / twin < 5


def test_what_goes_wrong_ahead_is_raised_where_it_is_wanted() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    items = read_ahead(failing(), depth=3)
    assert next(items) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(items)


@pytest.mark.parametrize(
    ("read_s", "options", "expected"),
    [
        ([3, 3, 3], {}, [3, 3, 3]),
        ([3, 3, 3, 3], {"prefetch": 1}, [3, 1, 1, 1]),
        ([3, 3, 3, 3], {"prefetch": 4}, [3, 1, 1, 1]),
        ([1, 1, 1, 1], {"prefetch": 1}, [1, 0, 0, 0]),
        ([3, 3, 3, 3, 3], {"prefetch": 1, "loader_workers": 2}, [3, 0, 0, 0, 0]),
        ([6, 6, 6, 6, 6], {"prefetch": 1, "loader_workers": 2}, [6, 0, 2, 0, 2]),
    ],
)
def test_waits_by_hand(
    read_s: list[int], options: dict[str, int], expected: list[int]
) -> None:
    assert data_waits(read_s, compute_s=2, **options) == expected
