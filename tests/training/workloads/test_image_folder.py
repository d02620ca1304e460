import json
from collections import Counter
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
import torch
from gang import (
    RankFailure,
    attempt,
    identity,
    on,
    run_attempt,
    run_trial,
    stream,
    throughput_trial,
)
from picture_folders import make_pictures, pack
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.target import MetricMode, Target
from scalelab.launch.progress import StreamWriter
from scalelab.launch.protocol import NODE_DIRECTORY
from scalelab.training.context import RankContext
from scalelab.training.feeding.node_copy import copy_to_node, remove_copies
from scalelab.training.order import Share
from scalelab.training.workloads.image_folder import CopiedPictures, ImageFolder

RATE = LearningRate(base=0.05, at_batch=None, rule="none", warmup_samples=0, value=0.05)
TARGET = Target(metric="val_balanced_acc", mode=MetricMode.MAX, value=0.9)
SHORT = throughput_trial(
    "image_folder",
    local_batch_size=4,
    measurement=Measurement(warmup_steps=2, steps=12, relative_precision=1e-9),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The parameters that say where pictures are."""
    place = tmp_path_factory.mktemp("data")
    make_pictures(place / "pictures")
    pack(place)
    return {
        "data": str(place / "pictures"),
        "shards": str(place / "shards"),
        "image_size": 8,
        "shuffle_buffer": 5,
    }


def convergence_trial(**measurement: Any) -> Trial:
    return throughput_trial(
        "image_folder",
        kind=TrialKind.CONVERGENCE,
        learning_rate=RATE,
        local_batch_size=4,
        measurement=Measurement(**measurement),
    )


class Always(torch.nn.Module):
    """Says the same class of all pictures."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.0, 1.0]]).expand(len(images), 2)


def test_balanced_accuracy_is_the_mean_recall_of_the_classes(
    place: dict[str, Any],
) -> None:
    workload = ImageFolder(**place)
    held_out = workload.held_out_data()
    images, labels = zip(*[held_out[n] for n in range(len(held_out))], strict=True)
    counts = Counter(labels)
    assert counts == {0: 2, 1: 6}
    sums = workload.evaluate(Always(), (torch.stack(images), torch.tensor(labels)))
    assert sums["val_acc"].item() / 8 == 6 / 8
    assert sums["val_balanced_acc"].item() / 8 == pytest.approx((0 + 1) / 2)


def test_pictures_are_cut_to_a_square_of_all_channels(place: dict[str, Any]) -> None:
    workload = ImageFolder(**place)
    image, label = workload.training_data()[0]
    assert (image.shape, image.dtype, label) == ((3, 8, 8), torch.uint8, 0)
    # The first class is blue, and three pixels of twelve rows are cut off.
    assert image[2].float().mean() > 150 > 100 > image[0].float().mean()
    scores = workload.build_model()(image[None].float())
    assert scores.shape == (1, 2)


def test_the_network_must_be_known() -> None:
    with pytest.raises(SpecError, match=r"^depth=18 must be one of \(20, 32, 44, 56\)"):
        ImageFolder(data=".", depth=18)


@pytest.mark.slow
def test_pictures_are_learnt_from_files(place: dict[str, Any], tmp_path: Path) -> None:
    trial = convergence_trial(
        max_samples=1000, evaluate_every_samples=64, target=TARGET
    )
    measured = run_trial(tmp_path, trial, **place)
    assert measured["reached_target"]
    assert measured["dataset"].startswith("pictures ")
    assert "sample_order" not in measured
    (last, *_) = reversed(stream(tmp_path, "evaluation"))
    assert {"val_acc", "val_balanced_acc", "val_loss"} <= last.keys()
    left = json.loads((tmp_path / "evaluation.json").read_text())
    assert [each["samples"] for each in left["classes"]] == [2, 6]
    named = sorted({each.name for each in Path(place["data"]).iterdir()})
    assert [each["class"] for each in left["classes"]] == named
    right = sum(row[index] for index, row in enumerate(left["confusion_matrix"]))
    assert right == pytest.approx(8 * last["val_acc"])
    assert left["balanced_accuracy"] == pytest.approx(last["val_balanced_acc"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", [pytest.param("replicated", marks=pytest.mark.repetition), "sharded"]
)
def test_a_stopped_stream_goes_on_with_the_same_pictures(
    place: dict[str, Any], tmp_path: Path, order: str
) -> None:
    trial = on(convergence_trial(max_samples=160, evaluate_every_samples=80), 2)
    given = {**place, "feed": "tar", "order": order, "prefetch": 2}
    whole = run_trial(tmp_path / "whole" / "001", trial, **given)
    halves = [attempt(tmp_path / "halves" / n, trial, **given) for n in ("001", "002")]
    stopped = run_attempt(halves[0], stop_at_step=5)
    assert stopped.outcome is Outcome.PREEMPTED
    run_attempt(halves[1])
    rows = stream(tmp_path / "halves" / "002", "step")
    expected = stream(tmp_path / "whole" / "001", "step")[-len(rows) :]
    assert 0 < len(rows) < 20
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]
    assert whole.get("sample_order") == ("sharded" if order == "sharded" else None)


@pytest.mark.slow
def test_a_declared_store_is_waited_for_unless_read_ahead(
    place: dict[str, Any], tmp_path: Path
) -> None:
    declared_s = 4 * 0.02
    given = {**place, "store": {"open_s": 0.02}}
    plain = run_trial(tmp_path / "plain", SHORT, **given)
    ahead = run_trial(tmp_path / "ahead", SHORT, **given, prefetch=2, loader_workers=2)
    assert plain["data_wait_s"] > 0.9 * declared_s
    assert plain["dataset"].startswith("pictures-declared-store ")
    # Two connections bring twice as many pictures, while the rank computes.
    assert ahead["data_wait_s"] < 0.8 * plain["data_wait_s"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", [pytest.param("replicated", marks=pytest.mark.repetition), "sharded"]
)
def test_pictures_that_are_copied_first_train_the_same(
    place: dict[str, Any], tmp_path: Path, order: str
) -> None:
    trial = on(convergence_trial(max_samples=80, evaluate_every_samples=80), 2)
    losses = {}
    for feed in ("folder", "copy_first"):
        given = {**place, "feed": feed, "order": order}
        measured = run_trial(tmp_path / feed, trial, **given)
        assert measured["dataset"].startswith("pictures ")
        losses[feed] = [row["loss"] for row in stream(tmp_path / feed, "step")]
    assert len(losses["folder"]) == 10
    assert losses["copy_first"] == losses["folder"]
    assert not [*Path(gettempdir()).glob("copies-*")]


@pytest.mark.slow
def test_what_is_copied_first_is_not_waited_for_in_steps(
    place: dict[str, Any], tmp_path: Path
) -> None:
    given = {**place, "store": {"open_s": 0.02}}
    plain = run_trial(tmp_path / "plain", SHORT, **given)
    copied = run_trial(tmp_path / "copied", SHORT, **given, feed="copy_first")
    assert plain["data_wait_s"] > 0.9 * 4 * 0.02
    assert copied["data_wait_s"] < 0.5 * plain["data_wait_s"]


def test_a_disk_that_is_too_small_is_refused_before_anything_is_copied(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NODE_DIRECTORY, str(tmp_path))
    data = ImageFolder(**place, feed="copy_first").training_data()
    assert isinstance(data, CopiedPictures)
    monkeypatch.setattr(data, "sizes", lambda: [10**18] * len(data))
    context = RankContext(
        identity=identity(0, 1),
        device=torch.device("cpu"),
        directory=tmp_path,
        stream=StreamWriter(None),
        progress=lambda step: None,
    )
    share = Share(
        rank=0,
        data_parallel_size=1,
        local_batch_size=4,
        gradient_accumulation_steps=1,
    )
    with refused("disk_too_small", "31,"):
        copy_to_node(data, context, share, is_sharded=False)
    (directory,) = tmp_path.glob("copies-*")
    assert not [*directory.iterdir()]
    remove_copies(context)
    assert not directory.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefetch": -1}, r"prefetch=-1 must be a whole number, at least 0\."),
        ({"pin_memory": True}, r"pin_memory=True has no effect on cpu devices\. Leave"),
        ({"pin_memory": 1}, r"pin_memory=1 must be true or false\."),
        (
            {"prefetch": 0, "loader_workers": 1},
            r"prefetch=0 and loader_workers=1 contradict each other: a loader process",
        ),
    ],
)
def test_wrong_options_are_refused(
    place: dict[str, Any], tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    trial = throughput_trial("image_folder", local_batch_size=4)
    with pytest.raises(RankFailure, match=message):
        run_trial(tmp_path, trial, **place, **given)
