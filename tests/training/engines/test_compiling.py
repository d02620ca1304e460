"""Compiled models: the same training, compiled once, before the first step."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gang import (
    RankFailure,
    attempt,
    on,
    run_in_contexts,
    run_in_gang,
    stream,
    throughput_trial,
)
from sentences import refused
from torch import nn

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Measurement
from scalelab.training.engines.training import compiling
from scalelab.training.rank import run_rank
from scalelab.training.seeds import MODEL_STREAM, seed_everything

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="torch.compile needs a C++ compiler, g++ or clang++, and there is none",
)


def told_rank(who: Any, rendezvous: Any, spec: Any, compiler: Any) -> Any:
    """Run a rank; return each report of its step with the graphs compiled by then."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(spec.directory) / "cache")
    import torch._inductor.config as inductor
    from torch._dynamo.utils import counters

    if compiler is not None:
        inductor.cpp.cxx = (compiler,)
    told: list[tuple[int, int]] = []
    run_rank(
        spec,
        who,
        rendezvous,
        lambda step: told.append((step, counters["stats"]["unique_graphs"])),
    )
    return told


def run(directory: Path, *, compiler: str | None = None, **parameters: Any) -> Any:
    trial = throughput_trial(
        "digits_mlp",
        local_batch_size=8,
        measurement=Measurement(warmup_steps=1, steps=3, relative_precision=1e-9),
    )
    spec = attempt(directory, on(trial, 2), **parameters)
    return run_in_gang(2, told_rank, spec, compiler, directory=directory)


@needs_compiler
@pytest.mark.slow
def test_a_compiled_model_trains_alike_and_compiles_before_its_first_step(
    tmp_path: Path,
) -> None:
    plain = run(tmp_path / "plain", hidden_sizes=[8])
    compiled = run(tmp_path / "compiled", hidden_sizes=[8], compile=True)
    for told in plain:
        assert {graphs for _, graphs in told} == {0}
    for told in compiled:
        assert told[0] == (0, 0)
        # Start-up lasts until a rank last reports step 0.
        starts = [graphs for step, graphs in told if step == 0]
        assert starts[-1] > 0
        assert {graphs for step, graphs in told if step > 0} == {starts[-1]}
    losses = [
        [row["loss"] for row in stream(tmp_path / name, "step")]
        for name in ("plain", "compiled")
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


def changed_by_a_first_pass(context: Any) -> Any:
    """Return what a pass in training draws and changes, and what is left of that."""
    seed_everything(3, MODEL_STREAM)
    model = nn.BatchNorm1d(4)
    with compiling(model, context):
        model(torch.rand(8, 4))
        mean, drawn = model.running_mean.tolist(), torch.rand(1).item()
    torch.rand(8, 4)
    return mean, drawn, model.running_mean.tolist(), torch.rand(1).item()


def test_the_first_pass_leaves_no_trace(tmp_path: Path) -> None:
    ((mean, drawn, mean_after, drawn_after),) = run_in_contexts(
        1, changed_by_a_first_pass, directory=tmp_path
    )
    assert all(mean)
    assert mean_after == [0.0] * 4
    assert drawn_after == drawn


@pytest.mark.slow
@pytest.mark.repetition
def test_without_a_compiler_the_reason_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        RankFailure,
        match=r"LaunchError: compile=True, but torch\.compile fails here: .*"
        r"[Cc]\+\+ compiler.*Install what is missing, or leave compile out\.",
    ):
        run(tmp_path, compiler="no-such-compiler", compile=True, hidden_sizes=[8])


@pytest.mark.parametrize(
    ("workload", "parameters", "message"),
    [
        ("digits_mlp", {"compile": "yes"}, r"compile='yes' must be true or false\."),
        (
            "emulated",
            {"compile": True},
            r"compile=True has no effect on workload 'emulated', which computes its",
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    tmp_path: Path, workload: str, parameters: dict[str, Any], message: str
) -> None:
    spec = attempt(tmp_path, throughput_trial(workload), **parameters)
    with pytest.raises(RankFailure, match=message):
        run_in_gang(1, told_rank, spec, None, directory=tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "workload: {name: emulated, compile: true}",
        "workload: emulated\noptions: {compile: [false, true]}",
    ],
)
def test_an_emulated_workload_is_not_compiled(text: str) -> None:
    with refused("option_without_effect", "emulated"):
        Experiment.from_text(f"name: a\n{text}\ngpus: 1\nlocal_batch_size: 8\n")
