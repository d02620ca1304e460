"""The optimiser of a trial: the workload's own, or one that the experiment names.

References
----------
Smith and Topin 2018, *Super-Convergence*: what momentum is to SGD, the first of the two
betas is to Adam; ``torch.optim.lr_scheduler.OneCycleLR`` has it so.
"""

from typing import Any

import torch
from torch import nn

from scalelab.training.rank_options import RankOptions
from scalelab.training.workloads.base import Workload

_CLASSES = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_TERMS: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0.9}}


def optimizer_of(
    workload: Workload, model: nn.Module, learning_rate: float, options: RankOptions
) -> torch.optim.Optimizer:
    """Return the optimiser of a model, on the rank's device.

    Where another is named than the workload's own, it takes over its groups of
    parameters: their rates, and the weight decay of those that have one of their own,
    such as none on biases. Its other terms are torch's, but for a momentum of 0.9 of
    SGD.
    """
    built = workload.build_optimizer(model, learning_rate)
    decay = built.defaults.get("weight_decay")
    decays = [group.get("weight_decay") for group in built.param_groups]
    optimizer = built if options.optimizer is None else _named(built, options.optimizer)

    terms: dict[str, Any] = {}
    if options.weight_decay is not None:
        terms["weight_decay"] = options.weight_decay
    if options.momentum is not None:
        terms |= _momentum(optimizer, options.momentum)

    for name, value in terms.items():
        optimizer.defaults[name] = value
        for group in optimizer.param_groups:
            group[name] = value

    for group, before in zip(optimizer.param_groups, decays, strict=True):
        if before != decay:
            group["weight_decay"] = before

    return optimizer


def _named(built: torch.optim.Optimizer, name: str) -> torch.optim.Optimizer:
    if type(built) is _CLASSES[name]:
        return built
    groups = [
        {"params": group["params"], "lr": group["lr"]} for group in built.param_groups
    ]
    terms = {"lr": built.defaults["lr"], **_TERMS.get(name, {})}
    optimizer: torch.optim.Optimizer = _CLASSES[name](groups, **terms)
    return optimizer


def _momentum(optimizer: torch.optim.Optimizer, value: float) -> dict[str, Any]:
    if "betas" in optimizer.defaults:
        return {"betas": (value, optimizer.defaults["betas"][1])}
    return {"momentum": value}
