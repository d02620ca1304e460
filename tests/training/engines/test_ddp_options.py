from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gang import HERE, on, run_in_contexts, run_trial, stream, throughput_trial
from torch import nn

from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.training.engines.ddp import EXCHANGES, DdpModel
from scalelab.training.engines.spread import Observers
from scalelab.training.engines.sync_batch_norm import SyncBatchNorm, synchronised

RATE = LearningRate(base=0.1, at_batch=64, rule="linear", warmup_samples=0, value=0.1)
CPU = torch.device("cpu")


def trial_with(**options: Any) -> Trial:
    return on(
        throughput_trial("own_workloads:HashedDigits"),
        2,
        kind=TrialKind.CONVERGENCE,
        learning_rate=RATE,
        local_batch_size=32,
        options=options,
        measurement=Measurement(max_samples=2000, evaluate_every_samples=500),
    )


def normalised(context: Any) -> Any:
    """Normalise a half of a batch; return output, gradients and running statistics."""
    torch.manual_seed(0)
    whole = 100 + torch.randn(8, 3, 2)  # a mean far from 0 would show lost digits
    half = whole.chunk(context.world_size)[context.rank].clone().requires_grad_()
    model = synchronised(nn.Sequential(nn.BatchNorm1d(3)), context.device)
    (model(half).pow(3).sum() / context.world_size).backward()
    (layer,) = model
    assert isinstance(layer, SyncBatchNorm)
    return [
        *(half.grad.flatten().tolist(), layer.weight.grad.tolist()),
        *(layer.running_mean.tolist(), layer.running_var.tolist()),
    ]


def test_batch_norm_of_two_ranks_is_that_of_one(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    (alone,) = run_in_contexts(1, normalised, directory=tmp_path / "1")
    first, second = run_in_contexts(2, normalised, directory=tmp_path / "2")
    torch.manual_seed(0)
    whole = (100 + torch.randn(8, 3, 2)).requires_grad_()
    layer = nn.BatchNorm1d(3)
    layer(whole).pow(3).sum().backward()
    expected = [
        *(whole.grad.flatten().tolist(), layer.weight.grad.tolist()),
        *(layer.running_mean.tolist(), layer.running_var.tolist()),
    ]
    for own, of_torch in zip(alone, expected, strict=True):
        assert own == pytest.approx(of_torch, rel=1e-4, abs=1e-4)
    halves = first[0] + second[0]
    assert [2 * each for each in halves] == pytest.approx(alone[0], rel=1e-5, abs=1e-5)
    assert first[2:] == second[2:]
    for together, single in zip(first[2:], alone[2:], strict=True):
        assert together == pytest.approx(single, rel=1e-6)


@pytest.mark.slow
def test_synchronised_statistics_do_not_depend_on_the_ranks(tmp_path: Path) -> None:
    two = trial_with(sync_batch_norm=True)
    one = on(two, 1, local_batch_size=64)
    plain = replace(two, options={})
    losses, sizes = [], []
    for name, trial in (("one", one), ("two", two), ("plain", plain)):
        measured = run_trial(
            tmp_path / name, trial, code_directory=HERE, batch_norm=True
        )
        sizes.append(measured["normalization_batch_size"])
        rows = stream(tmp_path / name, "evaluation")
        losses.append([row["val_loss"] for row in rows])
    assert sizes == [64, 64, 32]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert losses[2] != pytest.approx(losses[0], rel=1e-2)


def compressed(context: Any) -> Any:
    """Exchange gradients in every format; return each average and what was seen."""
    found = {}
    for name in EXCHANGES:
        seen: list[Any] = []
        observers = Observers(
            on_own_gradients=lambda piece, seen=seen: seen.append(piece.tolist()),
            on_own_gradients_ready=lambda: None,
        )
        model = nn.Linear(1, 1, bias=False)
        spread_model = DdpModel(model, CPU, observers, exchange=EXCHANGES[name])
        value = 1.0 + (1.0 + context.rank) / 1024
        spread_model.model(torch.tensor([[value]])).sum().backward()
        found[name] = (model.weight.grad.item(), seen)
    return found


def test_gradients_are_rounded_to_the_format_of_the_exchange(tmp_path: Path) -> None:
    first, second = run_in_contexts(2, compressed, directory=tmp_path)
    averages = {name: average for name, (average, _) in first.items()}
    assert averages["none"] == 1 + 1.5 / 1024
    # fp16 has 10 binary digits after the first, bf16 has 7.
    assert averages["fp16"] in (1 + 1 / 1024, 1 + 2 / 1024)
    assert averages["bf16"] == 1.0
    for name in EXCHANGES:
        assert first[name][0] == second[name][0]
        assert first[name][1] == [[1 + 1 / 1024]]  # the noise probe sees all digits
        assert second[name][1] == [[1 + 2 / 1024]]


def buckets(context: Any) -> Any:
    """Return the sizes of the pieces that gradients are exchanged in."""
    found = {}
    for cap in (None, 0.01):
        sizes: list[int] = []
        observers = Observers(
            on_own_gradients=lambda piece, sizes=sizes: sizes.append(piece.numel()),
            on_own_gradients_ready=lambda: None,
        )
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
        spread_model = DdpModel(model, CPU, observers, bucket_cap_mb=cap)
        for _ in range(2):  # torch settles the buckets in the first pass; full, they go
            sizes.clear()
            spread_model.model(torch.ones(1, 64)).sum().backward()
        found[cap] = sizes
    return found


def test_buckets_are_as_large_as_asked(tmp_path: Path) -> None:
    found, _ = run_in_contexts(2, buckets, directory=tmp_path)
    assert found == {None: [4 * 4096], 0.01: [4096] * 4}


def three_passes(context: Any) -> Any:
    """Return the gradients and what was seen of three passes over a static graph."""
    seen: list[Any] = []
    observers = Observers(
        on_own_gradients=lambda piece: seen.append(piece.tolist()),
        on_own_gradients_ready=lambda: seen.append("ready"),
    )
    model = nn.Linear(1, 1, bias=False)
    spread_model = DdpModel(model, CPU, observers, static_graph=True)
    gradients = []
    for number in range(3):
        loss = spread_model.model(torch.tensor([[2.0 * context.rank + number]])).sum()
        spread_model.watch(loss)
        loss.backward()
        gradients.append(model.weight.grad.item())
        model.zero_grad(set_to_none=True)
    return gradients, seen


def test_a_static_graph_exchanges_the_same_gradients(tmp_path: Path) -> None:
    results = run_in_contexts(2, three_passes, directory=tmp_path)
    for rank, (gradients, seen) in enumerate(results):
        assert gradients == [1.0, 2.0, 3.0]
        assert [each for each in seen if each != "ready"] == [
            [2.0 * rank + number] for number in range(3)
        ]
        assert seen.count("ready") == 3


@pytest.mark.slow
def test_a_compressed_exchange_trains_and_measures_noise(tmp_path: Path) -> None:
    trial = trial_with(gradient_compression="bf16", bucket_cap_mb=1)
    measured = run_trial(tmp_path, trial, code_directory=HERE)
    assert measured["final_metric"] > 0.85
    assert measured["gradient_noise_scale"] > 0
