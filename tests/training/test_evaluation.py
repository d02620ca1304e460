import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gang import run_in_contexts
from torch import nn
from torch.utils.data import TensorDataset

from scalelab.training.evaluation import class_figures, evaluate, share_buffers
from scalelab.training.feed import held_out_batches
from scalelab.training.workloads.base import CONFUSION_MATRIX, confusion_matrix

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


PREDICTED = torch.tensor([1, 0, 0, 1, 2, 1, 1])
MATRIX = [[1, 0, 1], [1, 4, 0], [0, 0, 0]]


def count_classes(context: Any) -> Any:
    dataset = TensorDataset(nn.functional.one_hot(PREDICTED).float(), LABELS)
    batches = held_out_batches(
        dataset,
        rank=context.rank,
        world_size=context.world_size,
        batch_size=2,
        device=context.device,
    )
    counts = evaluate(
        context,
        3,
        batches,
        lambda batch: {"n": 1.0, CONFUSION_MATRIX: confusion_matrix(*batch)},
    )
    return {name: torch.as_tensor(each).tolist() for name, each in counts.items()}


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 3, 9])
def test_classes_are_counted_once_however_ranks_share_them(
    tmp_path: Path, world_size: int
) -> None:
    first, *others = run_in_contexts(world_size, count_classes, directory=tmp_path)
    assert first[CONFUSION_MATRIX] == MATRIX
    assert others == [{}] * (world_size - 1)


def test_figures_of_classes_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import balanced_accuracy_score, precision_recall_fscore_support

    figures = class_figures(torch.tensor(MATRIX, dtype=torch.float64))
    precision, recall, _, samples = precision_recall_fscore_support(
        LABELS, PREDICTED, labels=[0, 1, 2], zero_division=math.nan
    )
    found = figures["classes"]
    assert [each["class"] for each in found] == [0, 1, 2]
    assert [each["samples"] for each in found] == samples.tolist()
    assert [each["recall"] for each in found[:2]] == pytest.approx(recall[:2])
    assert found[2]["recall"] is None
    assert [each["precision"] for each in found] == pytest.approx(precision)
    names = ["ant", "bee", "cow"]
    named = class_figures(torch.tensor(MATRIX), names)["classes"]
    assert [each["class"] for each in named] == names
    two = PREDICTED.clamp(max=1)
    of_two = class_figures(confusion_matrix(*_scored(two, LABELS)))
    expected = balanced_accuracy_score(LABELS, two)
    assert of_two["balanced_accuracy"] == pytest.approx(expected)
    assert figures[CONFUSION_MATRIX] == MATRIX


def _scored(predicted: torch.Tensor, labels: torch.Tensor) -> Any:
    return nn.functional.one_hot(predicted, 3).float(), labels


def test_samples_without_a_class_do_not_count() -> None:
    scores, _ = _scored(PREDICTED, LABELS)
    labels = torch.where(torch.arange(7) == 0, -100, LABELS)
    assert confusion_matrix(scores, labels).sum() == 6


@pytest.mark.parametrize(("num_classes", "is_shown"), [(100, True), (101, False)])
def test_only_small_matrices_are_written(num_classes: int, is_shown: bool) -> None:
    figures = class_figures(torch.eye(num_classes))
    assert (CONFUSION_MATRIX in figures) is is_shown
    assert figures["balanced_accuracy"] == 1


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
