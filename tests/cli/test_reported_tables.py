"""Tables that were once answered wrongly, through the commands, as users gave them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from sentences import Golden

pytestmark = pytest.mark.slow

SIZES = (1, 2, 3, 4, 8, 12, 16)


def seconds(gpus: int, local_batch: int) -> float:
    """Return a step's time: nodes of 4, an exchange that is slower between them."""
    exchange = 2 * (gpus - 1) / gpus * (0.004 if gpus <= 4 else 0.03)
    return 0.020 + 0.002 * local_batch + exchange


@pytest.fixture
def answer(scalelab: Callable[..., Any], here: Path) -> Callable[..., Any]:
    """Import rows of GPUs, local batch and step time, and ask about them."""

    def ask(rows: Iterable[tuple[object, ...]], *question: object) -> Any:
        lines = ["gpus,nodes,local_batch,step_time_s"]
        lines += [f"{n},{-(-int(str(n)) // 4)},{b},{s}" for n, b, s in rows]
        Path("table.csv").write_text("\n".join(lines) + "\n")
        imported = scalelab("import", "table.csv", "run")
        assert imported.code == 0, imported.err
        ended = scalelab("recommend", "run", "--json", *question)
        assert ended.code in (0, 4), ended.err
        return json.loads(ended.out)

    return ask


def plain_rows() -> list[tuple[object, ...]]:
    return [(n, b, seconds(n, b)) for n in SIZES for b in (8, 16, 32)]


def test_nothing_is_promised_that_is_twice_as_fast_as_anything_measured(
    answer: Callable[..., Any],
) -> None:
    """It was "Use 64 A100, global batch 32768, 46.6 s, P > 99%, efficiency 217%"."""
    samples = 3_000_000
    fastest_s = min(
        samples / (n * b) * seconds(n, b) for n in SIZES for b in (8, 16, 32)
    )
    assert 13 * 60 < fastest_s < 16 * 60
    found = answer(plain_rows(), "--max-time", "6min", "--samples", samples)
    assert not found["meets_constraints"]
    for row in found["rows"]:
        assert row["batch"]["global_batch_size"] <= 512
        assert row["time_s"]["lo"] > fastest_s / 2
        assert row["probability"] < 0.1
        is_explained = any(
            note.startswith("Efficiency over 100%") for note in found["notes"]
        )
        assert row["scaling_efficiency"] < 1.01 or is_explained


def test_no_batch_is_larger_than_the_data(answer: Callable[..., Any]) -> None:
    """It was a batch of 393,216 for a data set of 50,000 pictures."""
    rows = [
        (n, b, 0.02 + 1e-5 * b) for n in (1, 2, 4, 8, 16) for b in (4096, 16384, 24576)
    ]
    job = ("--epochs", 90, "--samples-per-epoch", 50_000)
    found = answer(rows, *job)
    assert all(row["batch"]["global_batch_size"] <= 50_000 for row in found["rows"])


def test_runs_that_contradict_each_other_answer_with_both(
    answer: Callable[..., Any],
) -> None:
    """It was "9.8 h [8.4-11.2], measured" where the runs say 4.4 h and 21.8 h."""
    found = answer([(1, 8, 8 / 20), (1, 8, 8 / 4)], "--samples", 314_000)
    (row,) = (each for each in found["rows"] if each["world_size"] == 1)
    assert row["time_s"]["lo"] < 4.4 * 3600
    assert row["time_s"]["hi"] > 21.8 * 3600


def test_a_job_in_steps_needs_its_batch(
    answer: Callable[..., Any], scalelab: Callable[..., Any], golden: Golden
) -> None:
    """It was "1 GPU, batch 8, efficiency 475%"."""
    found = answer(plain_rows(), "--steps", 10_000, "--batch", 128)
    assert {row["batch"]["global_batch_size"] for row in found["rows"]} == {128}
    assert all((row["scaling_efficiency"] or 0) < 1.5 for row in found["rows"])
    refused = scalelab("recommend", "run", "--steps", 10_000)
    refused.assert_refused()
    golden(refused.err)
