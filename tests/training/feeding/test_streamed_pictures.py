"""Pictures of archives come in the order that is computed, wherever reading begins."""

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from picture_folders import make_pictures, pack
from sentences import refused

from scalelab.training.feed import fingerprint, order_of, training_batches
from scalelab.training.order import Share
from scalelab.training.workloads.image_folder import ImageFolder, Pictures

BUFFER = 5
ONE = Share(
    rank=0, data_parallel_size=1, local_batch_size=8, gradient_accumulation_steps=1
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    make_pictures(place / "pictures")
    pack(place)
    return place


def pictures(place: Path, feed: str = "tar") -> Pictures:
    return ImageFolder(
        data=str(place / "pictures"),
        shards=str(place / "shards"),
        feed=feed,
        shuffle_buffer=BUFFER,
        image_size=8,
    ).training_data()


def batches(
    dataset: Pictures,
    share: Share,
    *,
    is_sharded: bool,
    first_step: int = 0,
    **options: int,
) -> Any:
    order = order_of(dataset, share, seed=3, is_sharded=is_sharded)
    return training_batches(
        dataset,
        order,
        share,
        first_step=first_step,
        device=torch.device("cpu"),
        **options,
    )


def split(world_size: int, rank: int, accumulation: int = 1) -> Share:
    return replace(
        ONE,
        rank=rank,
        data_parallel_size=world_size,
        gradient_accumulation_steps=accumulation,
        local_batch_size=8 // world_size // accumulation,
    )


@pytest.mark.parametrize("feed", ["folder", "tar"])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_batches_are_those_of_the_order(
    place: Path, feed: str, is_sharded: bool
) -> None:
    dataset = pictures(place, feed)
    for rank in (0, 1):
        share = split(2, rank, accumulation=2)
        order = order_of(dataset, share, seed=3, is_sharded=is_sharded)
        got = batches(dataset, share, is_sharded=is_sharded)
        for step in range(2 * order.steps_per_epoch + 1):
            for micro_step in range(2):
                images, labels = next(got)
                rows = order.batch(step)[share.rows(micro_step)]
                expected, classes = zip(*map(dataset.__getitem__, rows), strict=True)
                assert torch.equal(images, torch.stack(expected))
                assert tuple(labels.tolist()) == classes
        got.close()


@pytest.mark.parametrize("feed", ["folder", "tar"])
def test_replicated_batches_do_not_depend_on_the_ranks(place: Path, feed: str) -> None:
    dataset = pictures(place, feed)
    alone = order_of(dataset, ONE, seed=3, is_sharded=False)
    shared = order_of(dataset, split(4, 2), seed=3, is_sharded=False)
    assert all((alone.batch(n) == shared.batch(n)).all() for n in range(9))


@pytest.mark.parametrize("feed", ["folder", "tar"])
def test_sharded_ranks_have_pictures_of_their_own(place: Path, feed: str) -> None:
    dataset = pictures(place, feed)
    drawn: list[set[int]] = []
    for rank in range(4):
        share = split(4, rank)
        order = order_of(dataset, share, seed=3, is_sharded=True)
        # All ranks end an epoch together, after the steps of the smallest part.
        smallest = {"folder": 34 // 4, "tar": min(map(len, dataset_shards(place)))}
        assert order.steps_per_epoch == smallest[feed] // share.local_batch_size
        steps = range(5 * order.steps_per_epoch)
        drawn.append({i for n in steps for i in order.batch(n)[share.rows(0)].tolist()})
    counts = Counter(index for each in drawn for index in each)
    assert set(counts.values()) == {1}
    assert len(counts) >= 30


def dataset_shards(place: Path) -> Any:
    dataset: Any = pictures(place)
    return dataset.shards


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("first_step", [1, 3, 4, 7])
def test_a_stream_goes_on_at_any_step(
    place: Path, is_sharded: bool, first_step: int
) -> None:
    dataset, share = pictures(place), split(2, 1)
    whole = batches(dataset, share, is_sharded=is_sharded)
    late = batches(dataset, share, is_sharded=is_sharded, first_step=first_step)
    for expected in islice(whole, first_step, first_step + 6):
        images, labels = next(late)
        assert torch.equal(images, expected[0])
        assert torch.equal(labels, expected[1])
    whole.close()
    late.close()


@pytest.mark.parametrize("options", [{"prefetch": 3}, {"loader_workers": 2}])
def test_reading_ahead_changes_no_batch(place: Path, options: dict[str, int]) -> None:
    options = {"prefetch": 2, **options}
    plain = batches(pictures(place), ONE, is_sharded=False)
    ahead = batches(pictures(place), ONE, is_sharded=False, **options)
    for expected, batch in islice(zip(plain, ahead, strict=True), 9):
        assert torch.equal(expected[0], batch[0])
    plain.close()
    ahead.close()


def test_a_batch_larger_than_a_part_takes_several_passes(place: Path) -> None:
    share = replace(split(4, 3), local_batch_size=20)
    dataset = pictures(place)
    order = order_of(dataset, share, seed=3, is_sharded=True)
    images, _ = next(got := batches(dataset, share, is_sharded=True))
    expected = [dataset[index][0] for index in order.batch(0)[share.rows(0)]]
    assert torch.equal(images, torch.stack(expected))
    got.close()


def test_every_epoch_draws_each_picture_once_in_another_order(place: Path) -> None:
    order: Any = order_of(pictures(place), ONE, seed=3, is_sharded=False)
    (first,), (second,) = order.passes(0, 0), order.passes(0, 1)
    assert sorted(first) == sorted(second) == list(range(34))
    assert first.tolist() != second.tolist()
    (read,) = order.reading(0, 0)
    # A picture is given out at the earliest when it has been read.
    for number, index in enumerate(first, start=1):
        assert read.tolist().index(index) < order.num_read(number, 34)
    assert order.num_read(1, 34) == 2
    assert order.num_read(20, 34) == 20 + BUFFER - 1


def test_folder_and_archives_are_the_same_data(place: Path) -> None:
    assert fingerprint(pictures(place)) == fingerprint(pictures(place, "folder"))


def test_more_ranks_than_shards_are_refused(place: Path) -> None:
    share = replace(ONE, data_parallel_size=8, local_batch_size=1)
    with refused("too_few_parts", "8 ranks", "4."):
        order_of(pictures(place), share, seed=0, is_sharded=True)


def test_a_picture_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    make_pictures(tmp_path / "pictures")
    for path in (tmp_path / "pictures" / "red").iterdir():
        path.write_bytes(path.read_bytes()[:60])
    dataset = pictures(tmp_path, "folder")
    with refused("bad_picture", "'red/"):
        dataset[len(dataset) - 1]


def test_data_that_change_while_a_trial_runs_are_named(tmp_path: Path) -> None:
    make_pictures(tmp_path / "pictures")
    pack(tmp_path)
    got = batches(pictures(tmp_path), ONE, is_sharded=False)
    for path in (tmp_path / "shards").iterdir():
        path.write_bytes(path.read_bytes()[:1024])
    with refused("data_changed"):
        list(islice(got, 4))
    for path in (tmp_path / "shards").iterdir():
        path.unlink()
    with refused("data_changed"):
        next(batches(pictures_found_before(tmp_path), ONE, is_sharded=False))


def pictures_found_before(place: Path) -> Pictures:
    """The listing is kept, as within a rank."""
    return pictures(place)
