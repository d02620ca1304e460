from pathlib import Path
from typing import Any

import pytest
import torch
from gang import run_in_contexts
from torch import nn
from torch.utils.data import TensorDataset

from scalelab.training.evaluation import evaluate, share_buffers
from scalelab.training.feed import held_out_batches

LABELS = torch.tensor([1, 0, 1, 1, 0, 1, 1])


def evaluate_labels(context: Any) -> Any:
    dataset = TensorDataset(LABELS, torch.arange(7) / 8)
    batches = held_out_batches(
        dataset,
        rank=context.rank,
        world_size=context.world_size,
        batch_size=2,
        device=context.device,
    )
    return evaluate(
        context,
        3,
        batches,
        lambda batch: {"ones": (batch[0] == 1).sum(), "mean": float(batch[1].sum())},
    )


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 9])
def test_metrics_are_exact_with_uneven_and_empty_shards(
    tmp_path: Path, world_size: int
) -> None:
    first, *others = run_in_contexts(world_size, evaluate_labels, directory=tmp_path)
    assert first == {"mean": 3 / 8, "ones": 5 / 7}
    assert others == [{}] * (world_size - 1)


def share_batch_norm(context: Any) -> Any:
    torch.manual_seed(context.rank)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(2))
    for buffer in model.buffers():
        buffer.copy_(torch.rand(buffer.shape) * 100)
    share_buffers(model)
    return [buffer.tolist() for buffer in model.buffers()]


def test_every_rank_takes_the_buffers_of_rank_0(tmp_path: Path) -> None:
    first, second = run_in_contexts(2, share_batch_norm, directory=tmp_path)
    assert first == second


def test_model_without_buffers_shares_nothing() -> None:
    share_buffers(nn.Linear(2, 2))
