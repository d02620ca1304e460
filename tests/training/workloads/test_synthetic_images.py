from pathlib import Path
from typing import Any

import pytest
import torch
from gang import run_trial, throughput_trial
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Measurement
from scalelab.training.workloads.synthetic_images import ImageResnet, SyntheticImages

PUBLISHED = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160}
"""Parameters of the same networks in torchvision."""


@pytest.mark.parametrize("depth", PUBLISHED)
def test_networks_have_the_published_sizes(depth: int) -> None:
    with torch.device("meta"):
        model = ImageResnet(depth, num_classes=1000)
        scores = model(torch.empty(2, 3, 224, 224))
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[depth]
    assert scores.shape == (2, 1000)


def test_images_are_of_imagenets_size_and_always_the_same() -> None:
    images, labels = SyntheticImages(num_images=3).training_data().tensors
    again, _ = SyntheticImages(num_images=3).training_data().tensors
    assert (images.shape, images.dtype) == ((3, 3, 224, 224), torch.uint8)
    assert 0 <= labels.min()
    assert labels.max() < 1000
    assert torch.equal(images, again)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"depth": 20}, r"^depth=20 must be one of \(18, 34, 50, 101\)\.$"),
        ({"image_size": 16}, r"^image_size=16 must be a whole number, at least 32\."),
        ({"num_classes": 1}, r"^num_classes=1 must be a whole number, at least 2\.$"),
        ({"num_images": 2.5}, r"^num_images=2\.5 must be a whole number, at least 1"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SyntheticImages(**parameters)


@pytest.mark.parametrize("kind", ["convergence", "end_to_end"])
def test_only_throughput_can_be_measured(kind: str) -> None:
    text = (
        "name: a\nworkload: synthetic_images\ngpus: 1\nlocal_batch_size: 8\n"
        "learning_rate: 0.1\njob: {target: val_acc >= 0.7, samples: 100, "
        f"samples_per_epoch: 100}}\nmeasure: {{kind: [throughput, {kind}]}}\n"
    )
    with refused("no_held_out_data", "workload=synthetic_images"):
        Experiment.from_text(text)


@pytest.mark.slow
def test_throughput_is_measured_without_data(tmp_path: Path) -> None:
    trial = throughput_trial(
        "synthetic_images",
        local_batch_size=4,
        measurement=Measurement(warmup_steps=1, steps=3),
    )
    measured = run_trial(tmp_path, trial, depth=18, image_size=32, num_images=2)
    assert measured["num_steps"] == 3
    assert measured["normalization_batch_size"] == 4
    assert measured["dataset"].startswith("synthetic-images ")
