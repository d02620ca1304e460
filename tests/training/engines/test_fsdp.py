from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gang import HERE, on, run_in_contexts, run_trial, stream, throughput_trial
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.training.engines.fsdp import FsdpModel
from scalelab.training.engines.spread import Observers
from scalelab.training.workloads.base import Workload

RATE = LearningRate(base=0.1, at_batch=64, rule="linear", warmup_samples=0, value=0.1)


def sharded_trial(**changes: Any) -> Trial:
    fields: dict[str, Any] = {
        "kind": TrialKind.CONVERGENCE,
        "learning_rate": RATE,
        "local_batch_size": 32,
        "parallelism": "fsdp",
        "measurement": Measurement(max_samples=2000, evaluate_every_samples=500),
    }
    return on(throughput_trial("own_workloads:FewHeldOut"), 2, **(fields | changes))


def evaluations(directory: Path, trial: Trial, **parameters: Any) -> list[Any]:
    """Run a trial to its end; return its evaluations."""
    run_trial(directory, trial, code_directory=HERE, **parameters)
    return stream(directory, "evaluation")


def two_passes(context: Any) -> Any:
    """Accumulate two passes on each rank; return the gradient and what was observed."""
    events = []
    observers = Observers(on_own_gradients_ready=lambda: events.append("ready"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 1))
    mesh = init_device_mesh("cpu", (context.world_size,))
    spread_model = FsdpModel(model, Workload().blocks(model), mesh, observers)
    nn.init.ones_(model[0].weight)
    nn.init.ones_(model[2].weight)
    inputs = torch.tensor([[1.0, 2.0]]) * (context.rank + 1)
    with spread_model.no_sync():
        loss = spread_model.model(inputs).sum()
        spread_model.watch(loss)
        loss.backward()
    assert events == []
    loss = spread_model.model(inputs).sum()
    spread_model.watch(loss)
    loss.backward()
    gradient = model[0].weight.grad
    return gradient.to_local().tolist(), gradient.full_tensor().tolist(), events


def test_gradients_are_averaged_and_each_rank_keeps_its_shard(tmp_path: Path) -> None:
    results = run_in_contexts(2, two_passes, directory=tmp_path)
    for shard, whole, events in results:
        assert shard == [[3.0, 6.0]] * 2
        assert whole == [[3.0, 6.0]] * 4
        assert events == ["ready"]


def test_blocks_are_the_items_of_lists() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Linear(1, 1)
            self.layers = nn.ModuleList([nn.Linear(1, 2), nn.Linear(2, 1)])

    stack = Stack()
    assert Workload().blocks(stack) == [*stack.layers]
    assert Workload().blocks(stack.layers) == [*stack.layers]
    assert Workload().blocks(stack.embedding) == []


@pytest.mark.slow
def test_it_learns_what_ddp_learns(tmp_path: Path) -> None:
    # Sums of gradients are taken in another order, so that the last bits differ. The
    # same global batch; evaluations of which ranks have two batches, or one.
    sharded = sharded_trial(local_batch_size=16, gradient_accumulation_steps=2)
    hybrid = sharded_trial(local_batch_size=16, options={"shard_group": 2})
    trials = (replace(sharded, parallelism="ddp"), sharded, on(hybrid, 4))
    parameters = {"hidden_sizes": [17, 5]}  # which two ranks do not divide
    losses = [
        [row["val_loss"] for row in evaluations(tmp_path / str(n), trial, **parameters)]
        for n, trial in enumerate(trials)
    ]
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.slow
def test_columns_are_of_the_whole_model(tmp_path: Path) -> None:
    options = {"shard_group": 1}
    trial = sharded_trial(kind=TrialKind.THROUGHPUT, options=options)
    measured = run_trial(tmp_path, trial, code_directory=HERE, hidden_sizes=[17])
    assert measured["num_parameters"] == 64 * 17 + 17 + 17 * 10 + 10
    assert measured["gradient_bytes"] == 4 * measured["num_parameters"]
    assert measured["exposed_sync_s"] > 0
