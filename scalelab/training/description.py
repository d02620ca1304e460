"""Columns that follow from the model, the data and the libraries."""

import json
import platform
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Dataset

from scalelab._version import __version__
from scalelab.experiment.trial import Trial
from scalelab.records.observations import ENGINE_REVISION
from scalelab.site.profile import cpu_name
from scalelab.training.engines.sync_batch_norm import SyncBatchNorm
from scalelab.training.feed import fingerprint
from scalelab.training.workloads.base import Workload

OPTIMIZER_TERMS = ("momentum", "nesterov", "betas", "weight_decay")


def describe(
    workload: Workload,
    trial: Trial,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    training_data: Dataset[Any],
) -> dict[str, Any]:
    """Return the columns that are known before the first step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return {
        "dataset": f"{workload.dataset_name} {fingerprint(training_data)}",
        "num_parameters": sum(p.numel() for p in trained),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in trained),
        "flops_per_sample": workload.flops_per_sample,
        "normalization_batch_size": normalization_batch_size(model, trial),
        "sequence_length": workload.tokens_per_sample,
        "optimizer": describe_optimizer(optimizer),
        "schedule": workload.schedule,
        "sample_order": "sharded" if workload.is_sharded else None,
    }


def normalization_batch_size(model: nn.Module, trial: Trial) -> int | None:
    """Return the samples that a batch-norm statistic sees; None without batch norm."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    if not layers:
        return None
    if isinstance(layers[0], nn.SyncBatchNorm | SyncBatchNorm):
        return trial.local_batch_size * trial.data_parallel_size
    return trial.local_batch_size


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return class and terms of an optimiser, such as ``SGD(momentum=0.9)``."""
    defaults = optimizer.defaults
    terms = [
        f"{name}={defaults[name]}" for name in OPTIMIZER_TERMS if defaults.get(name)
    ]
    return f"{type(optimizer).__name__}({', '.join(terms)})"


def device_name(device: torch.device) -> str:
    """Return the model of a device, such as ``NVIDIA H200``."""
    is_cuda = device.type == "cuda"
    return torch.cuda.get_device_name(device) if is_cuda else cpu_name()


def versions() -> str:
    """Return the versions of the libraries of this rank, as JSON."""
    known: dict[str, Any] = {
        "scalelab": __version__,
        "engines": ENGINE_REVISION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
    }
    if torch.distributed.get_backend() == "nccl":
        version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        known["nccl"] = ".".join(map(str, version))
    return json.dumps({name: value for name, value in known.items() if value})
