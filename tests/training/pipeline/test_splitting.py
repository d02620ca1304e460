from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from sentences import refused
from torch import nn

from scalelab.training.pipeline.splitting import split, tied_parameters
from scalelab.training.workloads.base import Workload
from scalelab.training.workloads.digits_mlp import DigitsMlp
from scalelab.training.workloads.resnet_cifar import CifarResnet, ResnetCifar
from scalelab.training.workloads.synthetic_images import SyntheticImages
from scalelab.training.workloads.transformer_lm import Decoder, TransformerLm


def test_the_costliest_stage_is_as_cheap_as_can_be(rng: np.random.Generator) -> None:
    for _ in range(30):
        costs = [int(cost) for cost in rng.integers(1, 20, 8)]
        layers = [nn.Identity() for _ in costs]
        for num_stages in range(1, 6):
            stages = split(layers, num_stages, costs)
            assert [layer for stage in stages for layer in stage] == layers
            sizes = np.cumsum([0, *map(len, stages)])
            largest = max(sum(costs[a:b]) for a, b in pairwise(sizes))
            assert largest == min(
                max(
                    sum(costs[a:b])
                    for a, b in zip((0, *cuts), (*cuts, len(costs)), strict=True)
                )
                for cuts in combinations(range(1, len(costs)), num_stages - 1)
            )


def test_layers_without_cost_stay_with_the_one_before() -> None:
    layers = [nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()]
    first, second = split(layers, 2)
    assert [*first] == layers[:3]
    assert [*second] == layers[3:]


def test_too_few_layers_are_refused() -> None:
    workload = DigitsMlp(hidden_sizes=(8, 8))
    with refused("too_few_layers", "3 layers", "4 stages", "options.stages"):
        workload.stages(workload.build_model(), 4)


def test_a_model_that_is_not_sequential_needs_stages() -> None:
    with refused("stages_unknown", "Bilinear", "stages(model, num_stages)"):
        Workload().stages(nn.Bilinear(1, 1, 1), 2)


def test_shared_parameters_are_found() -> None:
    shared, other = nn.Linear(2, 2), nn.Linear(2, 2)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    stages = [
        nn.Sequential(shared, frozen),
        nn.Sequential(other, other),
        nn.Sequential(shared, frozen),
    ]
    found = tied_parameters(stages)
    assert [holders for _, holders in found] == [(0, 2), (0, 2)]
    assert {id(p) for p, _ in found} == {id(p) for p in shared.parameters()}


@pytest.mark.parametrize(
    ("workload", "inputs"),
    [
        (DigitsMlp(hidden_sizes=(8, 8, 8), batch_norm=True), torch.rand(3, 64)),
        (ResnetCifar(depth=20), torch.rand(3, 3, 32, 32)),
        (SyntheticImages(depth=18, image_size=32), torch.rand(3, 3, 32, 32)),
        (
            TransformerLm(layers=3, width=16, heads=2, sequence_length=8),
            torch.randint(256, (3, 8)),
        ),
        (
            TransformerLm(
                layers=3,
                width=16,
                heads=2,
                sequence_length=8,
                activation_checkpointing=True,
            ),
            torch.randint(256, (3, 8)),
        ),
    ],
    ids=["digits", "resnet", "images", "transformer", "checkpointing"],
)
@pytest.mark.parametrize("num_stages", [2, 3])
def test_stages_compute_what_the_model_computes(
    workload: Workload, inputs: torch.Tensor, num_stages: int
) -> None:
    model = workload.build_model()
    stages = list(workload.stages(model, num_stages))
    held = {id(p) for stage in stages for p in stage.parameters()}
    assert len(stages) == num_stages
    assert held == {id(p) for p in model.parameters()}
    for train in (True, False):
        for module in (model, *stages):
            module.train(train)
        hidden = inputs
        for stage in stages:
            hidden = stage(hidden)
        assert torch.equal(hidden, model(inputs))


def test_blocks_of_a_residual_network_are_shared_out_evenly() -> None:
    workload, model = ResnetCifar(depth=20), CifarResnet(20)
    blocks = {id(block) for block in model.blocks}
    counts = [
        sum(id(layer) in blocks for layer in stage)  # type: ignore[attr-defined]
        for stage in workload.stages(model, 3)
    ]
    assert counts == [3, 3, 3]


def test_ends_of_a_transformer_share_the_embedding() -> None:
    workload = TransformerLm(layers=2, width=16, heads=2, sequence_length=8)
    model = workload.build_model()
    assert isinstance(model, Decoder)
    ((parameter, holders),) = tied_parameters(list(workload.stages(model, 2)))
    assert parameter is model.tokens.weight
    assert holders == (0, 1)
