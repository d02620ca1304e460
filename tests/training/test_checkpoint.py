import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gang import run_in_contexts

from scalelab.training import checkpoint
from scalelab.training.seeds import (
    MODEL_STREAM,
    random_state,
    rank_stream,
    restore_random_state,
    seed_everything,
)

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_seeding_reaches_every_generator() -> None:
    seed_everything(3, MODEL_STREAM)
    first = draw()
    seed_everything(3, MODEL_STREAM)
    assert draw() == first
    for seed, stream in ((3, rank_stream(0)), (3, rank_stream(1)), (4, MODEL_STREAM)):
        seed_everything(seed, stream)
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
