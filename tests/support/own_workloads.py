"""Workloads as a user would write them."""

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, TensorDataset

from scalelab.training.workloads.base import Workload
from scalelab.training.workloads.digits_mlp import DigitsMlp


class HashedDigits(DigitsMlp):
    """Reports a hash of its weights, so that runs can be compared bit by bit."""

    def evaluate(self, model: Any, batch: Any) -> Any:
        sums = dict(super().evaluate(model, batch))
        digest = hashlib.sha256()
        for tensor in model.state_dict().values():
            is_shard = hasattr(tensor, "full_tensor")
            whole = tensor.full_tensor() if is_shard else tensor
            digest.update(whole.numpy().tobytes())
        sums["weights_hash"] = int.from_bytes(digest.digest()[:4]) * len(batch[1])
        return sums


class UnevenDigits(DigitsMlp):
    """Every rank but rank 0 takes five times as long for a step."""

    def loss(self, model: Any, batch: Any) -> Any:
        time.sleep(0.01 if dist.get_rank() == 0 else 0.05)
        return super().loss(model, batch)


class SleepyPasses(DigitsMlp):
    """Sleeps for a declared time in every pass."""

    def __init__(self, pass_s: float = 0.1) -> None:
        super().__init__(hidden_sizes=(8,))
        self.pass_s = pass_s

    def loss(self, model: Any, batch: Any) -> Any:
        time.sleep(self.pass_s)
        return super().loss(model, batch)


class _Slept(torch.autograd.Function):
    """Passes a tensor on and sleeps, in both directions."""

    @staticmethod
    def forward(context: Any, tensor: Any, seconds: Any) -> Any:
        context.seconds = seconds
        time.sleep(seconds)
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        time.sleep(context.seconds)
        return gradients[0], None


class Sleeper(torch.nn.Module):
    """A layer that takes so many seconds for each pass of a micro-batch."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, tensor: Any) -> Any:
        return _Slept.apply(tensor + self.weight, self.seconds)


class SleepyDigits(DigitsMlp):
    """Stages of declared times; what they compute besides takes next to nothing."""

    def __init__(self, stage_times_s: Sequence[float] = (0.1, 0.1)) -> None:
        super().__init__(hidden_sizes=(8,))
        self.stage_times_s = tuple(stage_times_s)

    def build_model(self) -> Any:
        first, *others = (Sleeper(seconds) for seconds in self.stage_times_s)
        return torch.nn.Sequential(super().build_model(), first, *others)

    def stages(self, model: Any, num_stages: Any) -> Any:
        return [model[:2], *map(torch.nn.Sequential, model[2:])]


class TwiceCalled(DigitsMlp):
    """Calls its model twice for a batch."""

    def loss(self, model: Any, batch: Any) -> Any:
        return super().loss(model, batch) + super().loss(model, batch)


class FewHeldOut(HashedDigits):
    """Of two ranks the first evaluates two batches of 32 at most, the other one."""

    def held_out_data(self) -> Any:
        return TensorDataset(*super().held_out_data()[:65])


class Squares(Dataset):
    """A map-style data set: no tensors to index, samples as dictionaries."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < 40:
            raise IndexError(index)
        x = torch.tensor([index / 40])
        return {"x": x, "y": x.square()}


class MapStyle(Workload):
    def build_model(self) -> Any:
        return torch.nn.Linear(1, 1)

    def training_data(self) -> Any:
        return Squares()

    def loss(self, model: Any, batch: Any) -> Any:
        return (model(batch["x"]) - batch["y"]).square().mean()


class Diverging(Workload):
    """Its loss is infinite from the start."""

    def build_model(self) -> Any:
        return torch.nn.Linear(2, 2)

    def training_data(self) -> Any:
        return TensorDataset(torch.ones(64, 2), torch.zeros(64, dtype=torch.int64))

    held_out_data = training_data

    def loss(self, model: Any, batch: Any) -> Any:
        return model(batch[0]).sum() * float("inf")


class Wide(Workload):
    """Needs about 40 kB per sample and 4 MB besides."""

    def build_model(self) -> Any:
        return torch.nn.Sequential(
            torch.nn.Linear(1, 10_000), torch.nn.Linear(10_000, 2)
        )

    def training_data(self) -> Any:
        return TensorDataset(torch.ones(64, 1), torch.zeros(64, dtype=torch.int64))


class Incomplete(Workload):
    pass


NOT_A_WORKLOAD = 3
