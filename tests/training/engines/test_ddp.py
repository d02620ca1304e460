import time
from pathlib import Path
from typing import Any

import pytest
import torch
from gang import run_in_contexts
from torch import nn

from scalelab.training.engines.ddp import DdpModel
from scalelab.training.engines.spread import Observers
from scalelab.training.order import Share
from scalelab.training.probes.noise_scale import NoiseProbe


def two_passes(context: Any) -> Any:
    """Accumulate two passes on each rank; return what was exchanged and observed."""
    events = []
    observers = Observers(
        on_own_gradients=lambda piece: events.append(piece.tolist()),
        on_own_gradients_ready=lambda: events.append("ready"),
    )
    model = nn.Linear(2, 1, bias=False)
    spread_model = DdpModel(model, context.device, observers)
    inputs = torch.tensor([[1.0, 2.0]]) * (context.rank + 1)
    with spread_model.no_sync():
        loss = spread_model.model(inputs).sum()
        spread_model.watch(loss)
        loss.backward()
    loss = spread_model.model(inputs).sum()
    spread_model.watch(loss)
    loss.backward()
    return model.weight.grad.tolist(), events


def test_gradients_are_averaged_and_own_ones_seen_first(tmp_path: Path) -> None:
    (first, seen_first), (second, seen_second) = run_in_contexts(
        2, two_passes, directory=tmp_path
    )
    assert first == second == [[3.0, 6.0]]
    assert seen_first == [[2.0, 4.0], "ready"]
    assert seen_second == [[4.0, 8.0], "ready"]


class Slow(torch.autograd.Function):
    """Pass everything on, and take a while to go backward."""

    @staticmethod
    def forward(ctx: Any, values: Any) -> Any:
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        time.sleep(0.5)
        return gradient


def phases_of_a_pass(context: Any) -> Any:
    """Return how long rank 0 computes and waits, where rank 1 takes long to compute."""
    marks = []
    observers = Observers(on_own_gradients_ready=lambda: marks.append(clock()))
    clock = time.perf_counter
    model = nn.Linear(2, 1)
    spread_model = DdpModel(model, context.device, observers)
    inputs = torch.ones(1, 2)
    for _ in range(2):
        loss = spread_model.model(inputs).sum()
        if context.rank == 1:
            loss = Slow.apply(loss)
        spread_model.watch(loss)
        marks.append(clock())
        loss.backward()
        marks.append(clock())
    begun, ready, ended = marks[-3:]
    return ready - begun, ended - ready


@pytest.mark.slow
@pytest.mark.repetition
def test_own_gradients_are_ready_before_the_wait_for_others(tmp_path: Path) -> None:
    (computes, waits), (slowly_computes, _) = run_in_contexts(
        2, phases_of_a_pass, directory=tmp_path
    )
    assert slowly_computes > 0.5
    assert waits > computes


def test_one_rank_exchanges_nothing(tmp_path: Path) -> None:
    ((gradient, seen),) = run_in_contexts(1, two_passes, directory=tmp_path)
    assert gradient == [[2.0, 4.0]]
    assert seen == []


def probe_noise(context: Any, accumulation: Any) -> Any:
    """Gradients of single samples are 1, 2, 3, 4 over all ranks and passes."""
    share = Share(
        rank=context.rank,
        data_parallel_size=context.world_size,
        local_batch_size=1,
        gradient_accumulation_steps=accumulation,
    )
    probe = NoiseProbe(share, enabled=True)
    observers = Observers(
        on_own_gradients=probe.observe_bucket, on_own_gradients_ready=lambda: None
    )
    model = nn.Linear(1, 1, bias=False)
    spread_model = DdpModel(model, context.device, observers)
    probe.begin_step(0)
    for micro_step in range(accumulation):
        sample = 1.0 + micro_step * context.world_size + context.rank
        scores = spread_model.model(torch.tensor([[sample]])) / accumulation
        if micro_step < accumulation - 1:
            with spread_model.no_sync():
                scores.sum().backward()
            probe.observe_micro_step(model)
        else:
            scores.sum().backward()
            if context.world_size == 1:
                probe.observe_micro_step(model)
    probe.end_step(model, 1.0)
    _, small, big = probe.average().state
    probe.begin_step(1)
    value = probe.value(lambda own: context.sum([own])[0] / context.world_size)
    return small / 0.05, big / 0.05, probe.is_watching, value


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "accumulation"), [(1, 4), (4, 1)])
def test_noise_probe_sees_each_samples_gradient(
    tmp_path: Path, world_size: int, accumulation: int
) -> None:
    results = run_in_contexts(world_size, probe_noise, accumulation, directory=tmp_path)
    small = [result[0] for result in results]
    # The mean of 1, 4, 9 and 16; and the square of the mean of 1 to 4.
    assert sum(small) / len(small) == pytest.approx(7.5)
    for _, big, is_watching, value in results:
        assert big == pytest.approx(6.25)
        assert not is_watching
        # |G|^2 = (4 * 6.25 - 7.5) / 3 and tr(Sigma) = (7.5 - 6.25) / (1 - 1/4)
        assert value == pytest.approx((1.25 / 0.75) / (17.5 / 3))
