import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gang import (
    attempt,
    on,
    run_attempt,
    run_in_contexts,
    run_in_gang,
    stream,
    throughput_trial,
)

from scalelab.experiment.trial import LearningRate, Measurement, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.training import checkpoint
from scalelab.training.rank import run_rank
from scalelab.training.seeds import (
    MODEL_STREAM,
    random_state,
    rank_stream,
    restore_random_state,
    seed_everything,
)
from scalelab.training.servers.process import run_server

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_seeding_reaches_every_generator() -> None:
    seed_everything(3, MODEL_STREAM)
    first = draw()
    seed_everything(3, MODEL_STREAM)
    assert draw() == first
    for seed, of in ((3, rank_stream(0)), (3, rank_stream(1)), (4, MODEL_STREAM)):
        seed_everything(seed, of)
        assert all(new != old for new, old in zip(draw(), first, strict=True))


def test_random_state_can_be_restored() -> None:
    seed_everything(3, MODEL_STREAM)
    np.random.standard_normal()  # leaves a second number waiting in the generator
    state = random_state(CPU)
    first = draw(), np.random.standard_normal()
    restore_random_state(state, CPU)
    assert (draw(), np.random.standard_normal()) == first


def write_and_read(context: Any) -> Any:
    seed_everything(1, rank_stream(context.rank))
    weights = torch.full((2,), float(context.rank))
    checkpoint.write(context, {"weights": weights}, context.rank)
    drawn = draw()
    context.agree([0])
    found = checkpoint.read(context, context.checkpoint_directory)
    assert found is not None
    state, own = found
    return state["weights"].tolist(), own, drawn == draw()


@pytest.mark.slow
def test_checkpoint_keeps_rank_0s_state_and_each_ranks_own(tmp_path: Path) -> None:
    results = run_in_contexts(2, write_and_read, directory=tmp_path)
    assert results == [([0.0, 0.0], 0, True), ([0.0, 0.0], 1, True)]
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == [
        "checkpoint.pt"
    ]


class Payload:
    def __reduce__(self) -> Any:
        return (print, ("code ran",))


def read_payload(context: Any) -> Any:
    context.checkpoint_directory.mkdir()
    torch.save(
        {"state": Payload(), "ranks": []},
        context.checkpoint_directory / checkpoint.FILE_NAME,
    )
    try:
        checkpoint.read(context, context.checkpoint_directory)
    except Exception as error:
        return type(error).__name__
    return "ran"


def test_reading_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    assert run_in_contexts(1, read_payload, directory=tmp_path) == ["UnpicklingError"]


@pytest.fixture
def trial_directory(tmp_path: Path) -> Path:
    for number in ("001", "002", "003", "010"):
        (tmp_path / number).mkdir()
    (tmp_path / "notes").mkdir()
    return tmp_path


def put(directory: Path) -> None:
    (directory / "checkpoint").mkdir()
    (directory / "checkpoint" / checkpoint.FILE_NAME).touch()


def test_latest_checkpoint_of_earlier_attempts_is_found(trial_directory: Path) -> None:
    put(trial_directory / "001")
    put(trial_directory / "002")
    put(trial_directory / "010")
    found = checkpoint.latest(trial_directory / "003")
    assert found == trial_directory / "002" / "checkpoint"


def test_interrupted_checkpoint_does_not_count(trial_directory: Path) -> None:
    (trial_directory / "003" / "checkpoint").mkdir()
    (trial_directory / "003" / "checkpoint" / "checkpoint.pt.unfinished").touch()
    assert checkpoint.latest(trial_directory / "003") is None


def test_directory_that_is_no_attempt_starts_afresh(trial_directory: Path) -> None:
    put(trial_directory / "notes")
    assert checkpoint.latest(trial_directory / "notes") is None


def run_or_serve(who: Any, rendezvous: Any, spec: Any) -> list[int]:
    """Return the steps that a rank reports."""
    seen: list[int] = []
    run = run_rank if who.rank < who.world_size else run_server
    run(spec, who, rendezvous, seen.append)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallelism",
    [pytest.param("ddp", marks=pytest.mark.repetition), "parameter_server"],
)
def test_a_rank_that_resumes_starts_up_until_its_first_step(
    tmp_path: Path, parallelism: str
) -> None:
    rate = LearningRate(base=0.1, at_batch=32, rule="none", warmup_samples=0, value=0.1)
    trial = on(
        throughput_trial("digits_mlp"),
        2,
        kind=TrialKind.END_TO_END,
        learning_rate=rate,
        parallelism=parallelism,
        options={"rule": "adag"} if parallelism == "parameter_server" else {},
        measurement=Measurement(max_samples=16_000, evaluate_every_samples=16_000),
    )
    stopped = run_attempt(attempt(tmp_path / "001", trial), stop_at_step=10)
    assert stopped.outcome is Outcome.PREEMPTED
    second = attempt(tmp_path / "002", trial)
    num_servers = int(parallelism == "parameter_server")
    seen = run_in_gang(
        2, run_or_serve, second, directory=tmp_path / "002", num_servers=num_servers
    )
    step = stream(tmp_path / "001", "step")[-1]["step"]
    for of_rank in seen[:2]:
        assert next(filter(None, of_rank)) > step
