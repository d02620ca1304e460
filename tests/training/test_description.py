import pytest
import torch
from gang import throughput_trial
from torch import nn

from scalelab.inputs.allocation import Allocation
from scalelab.training.description import (
    describe_optimizer,
    device_name,
    normalization_batch_size,
)
from scalelab.training.engines.sync_batch_norm import SyncBatchNorm

TRIAL = throughput_trial(
    "digits_mlp", allocation=Allocation(devices_per_node=(2, 1)), local_batch_size=8
)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(2, 2), None),
        (nn.BatchNorm1d(2), 8),
        (nn.SyncBatchNorm(2), 24),
        (SyncBatchNorm(2), 24),
    ],
)
def test_normalization_batch_follows_the_layers(
    layer: nn.Module, expected: int | None
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), layer)
    assert normalization_batch_size(model, TRIAL) == expected


@pytest.mark.slow
def test_optimizer_is_described_by_class_and_terms() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    sgd = torch.optim.SGD(parameters, lr=0.1)
    adam = torch.optim.AdamW(parameters, lr=0.1, betas=(0.8, 0.99))
    assert describe_optimizer(sgd) == "SGD()"
    assert describe_optimizer(adam) == "AdamW(betas=(0.8, 0.99), weight_decay=0.01)"


def test_device_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_name(torch.device("cpu"))
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: "Hardware : none\n")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert device_name(torch.device("cpu")) == "aarch64"
