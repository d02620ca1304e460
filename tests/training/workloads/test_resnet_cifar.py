from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gang import run_trial, stream, throughput_trial
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.trial import Measurement, TrialKind
from scalelab.training.workloads.resnet_cifar import (
    CifarResnet,
    ResidualBlock,
    ResnetCifar,
    cropped_and_flipped,
)


@pytest.mark.parametrize(
    ("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85)]
)
def test_parameters_are_those_of_the_paper(depth: int, millions: float) -> None:
    model = CifarResnet(depth)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == millions
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(layers) + 1 == depth


def test_network_scores_ten_classes() -> None:
    assert CifarResnet(20)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_shortcut_thins_and_pads_without_parameters() -> None:
    block = ResidualBlock(2, 4)
    hidden = torch.arange(32.0).view(1, 2, 4, 4)
    shortcut = block._shortcut(hidden)
    assert shortcut.shape == (1, 4, 2, 2)
    assert not shortcut[:, [0, 3]].any()
    assert torch.equal(shortcut[:, 1:3], hidden[:, :, ::2, ::2])


def shifted(
    rows: int, columns: int, mirrored: float
) -> tuple[torch.Tensor, torch.Tensor]:
    image = torch.arange(3 * 32 * 32).view(1, 3, 32, 32) + 1
    uniform = torch.tensor([[(rows + 4.5) / 9, (columns + 4.5) / 9, mirrored]])
    return image[0], cropped_and_flipped(image, uniform)[0]


def test_centre_crop_is_the_image() -> None:
    image, changed = shifted(0, 0, 0.0)
    assert torch.equal(changed, image)


def test_crop_moves_and_mirrors() -> None:
    image, changed = shifted(2, -3, 0.49)
    assert torch.equal(changed[:, :30, 3:], image[:, 2:, :29])
    assert not changed[:, 30:].any()
    assert not changed[:, :, :3].any()
    _, mirrored = shifted(2, -3, 0.5)
    assert torch.equal(mirrored, changed.flip(2))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"depth": 18}, r"depth=18 must be one of \(20, 32, 44, 56\)\."),
        ({"schedule": "step"}, r"schedule='step' must be one of \('constant', 'cosin"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ResnetCifar(**parameters)


@pytest.mark.skipif(torch.cuda.is_available(), reason="concerns machines without GPU")
def test_synchronised_batch_norm_needs_cuda() -> None:
    with refused("batch_norm_on_cpu", "sync_batch_norm=True"):
        ResnetCifar(sync_batch_norm=True).build_model()


def test_cosine_schedule_falls_to_zero() -> None:
    cosine = ResnetCifar(schedule="cosine").learning_rate_factor
    assert [cosine(x) for x in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.5, 0.0])
    assert ResnetCifar().learning_rate_factor(0.7) == 1.0


@pytest.fixture
def small_cifar(tmp_path: Path) -> Path:
    """The official binary layout with 16 images per batch."""
    rng = np.random.default_rng(0)
    names = [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]
    for name in names:
        records = rng.integers(0, 256, size=(16, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (tmp_path / name).write_bytes(records.tobytes())
    return tmp_path


@pytest.mark.slow
def test_network_trains_and_evaluates(small_cifar: Path, tmp_path: Path) -> None:
    trial = throughput_trial(
        "resnet_cifar",
        kind=TrialKind.CONVERGENCE,
        local_batch_size=8,
        measurement=Measurement(warmup_steps=1, max_samples=40),
    )
    directory = tmp_path / "trial"
    measured = run_trial(directory, trial, data_dir=str(small_cifar), schedule="cosine")
    assert measured["normalization_batch_size"] == 8
    assert measured["optimizer"] == "SGD(momentum=0.9, weight_decay=0.0001)"
    assert measured["schedule"] == "cosine"
    assert measured["dataset"].startswith("cifar10 ")
    assert 0 <= measured["final_metric"] <= 1
    assert len(stream(directory, "step")) == 5
