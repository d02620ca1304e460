"""The optimiser of a trial: its own, or what the experiment puts in its place."""

from typing import Any

import pytest
import torch
from torch import nn

from scalelab.errors import SpecError
from scalelab.training.description import describe_optimizer
from scalelab.training.optimizers import optimizer_of
from scalelab.training.rank_options import RankOptions
from scalelab.training.workloads.base import Workload
from scalelab.training.workloads.registry import build_workload


def made(workload: Workload, **options: Any) -> torch.optim.Optimizer:
    model = workload.build_model()
    return optimizer_of(workload, model, 0.1, RankOptions(**options))


def small_transformer() -> Workload:
    return build_workload(
        "transformer_lm", {"layers": 1, "width": 16, "heads": 2, "sequence_length": 8}
    )


@pytest.mark.parametrize(
    ("options", "described"),
    [
        ({}, "SGD(momentum=0.9)"),
        ({"optimizer": "sgd"}, "SGD(momentum=0.9)"),
        ({"weight_decay": 1e-3}, "SGD(momentum=0.9, weight_decay=0.001)"),
        ({"momentum": 0.5}, "SGD(momentum=0.5)"),
        ({"optimizer": "adam"}, "Adam(betas=(0.9, 0.999))"),
        ({"optimizer": "adamw"}, "AdamW(betas=(0.9, 0.999), weight_decay=0.01)"),
        (
            {"optimizer": "adamw", "momentum": 0.8, "weight_decay": 0.2},
            "AdamW(betas=(0.8, 0.999), weight_decay=0.2)",
        ),
    ],
)
def test_an_experiment_names_an_optimiser_and_its_terms(
    options: dict[str, Any], described: str
) -> None:
    optimizer = made(build_workload("digits_mlp", {}), **options)
    assert describe_optimizer(optimizer) == described
    for group in optimizer.param_groups:
        assert group["lr"] == 0.1
        assert group["weight_decay"] == optimizer.defaults["weight_decay"]


def test_an_optimiser_of_the_class_that_is_named_keeps_its_own_terms() -> None:
    assert describe_optimizer(made(small_transformer(), optimizer="adamw")) == (
        "AdamW(betas=(0.9, 0.95), weight_decay=0.1)"
    )


@pytest.mark.parametrize("named", [None, "sgd", "adam"])
def test_what_no_weight_decay_acts_on_is_spared_by_any(named: str | None) -> None:
    workload = small_transformer()
    optimizer = made(workload, optimizer=named, weight_decay=0.3)
    matrices, vectors = optimizer.param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.3, 0.0)
    assert all(each.dim() >= 2 for each in matrices["params"])


def test_groups_keep_their_rates() -> None:
    class TwoRates(Workload):
        def build_model(self) -> nn.Module:
            return nn.Linear(2, 2)

        def build_optimizer(
            self, model: nn.Module, learning_rate: float
        ) -> torch.optim.Optimizer:
            weight, bias = model.parameters()
            slow = {"params": [bias], "lr": learning_rate / 10}
            return torch.optim.SGD([{"params": [weight]}, slow], lr=learning_rate)

    rates = [group["lr"] for group in made(TwoRates(), optimizer="adamw").param_groups]
    assert rates == pytest.approx([0.1, 0.01])


def test_weight_decay_is_what_torch_does() -> None:
    workload = build_workload("digits_mlp", {"hidden_sizes": [4]})
    steps = []
    for build in (
        lambda model: optimizer_of(
            workload, model, 0.1, RankOptions(weight_decay=0.5, momentum=0.7)
        ),
        lambda model: torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.7, weight_decay=0.5
        ),
    ):
        torch.manual_seed(0)
        model = workload.build_model()
        optimizer = build(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
        steps.append(torch.cat([each.flatten() for each in model.parameters()]))
    assert torch.equal(*steps)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optimizer": "lamb"}, r"optimizer='lamb' is not known\. .*sgd, adam, adamw"),
        ({"momentum": 1.0}, r"momentum=1\.0 must be a number, at least 0 and below 1"),
        ({"weight_decay": -1}, r"weight_decay=-1 must be a number, at least 0\."),
        ({"weight_decay": True}, r"weight_decay=True must be a number, at least 0\."),
    ],
)
def test_terms_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        RankOptions(**options)
