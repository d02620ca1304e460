"""Limits, prices and choices of rows filter and rank; they change no figure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from generated_tables import MAKERS
from imported_tables import configuration, imported

from scalelab.inputs.numerals import Interval
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.session.run import Run

FIGURES = (
    "time_s",
    "gpu_hours",
    "step_time_s",
    "throughput_samples_per_s",
    "samples",
    "cost",
    "scaling_efficiency",
)


def questions(
    rng: np.random.Generator, sizes: list[int], time_s: float, count: int
) -> Iterator[dict[str, Any]]:
    """Yield questions about one job, with up to three limits or choices each."""
    fields = (
        "max_time",
        "max_gpu_hours",
        "max_cost_usd",
        "gpus",
        "max_batch",
        "select",
    )
    for _ in range(count):
        limit_s = time_s * np.exp(rng.normal(0, 1))
        asked: dict[str, Any] = {
            "max_time": f"{limit_s:.6g}s",
            "max_gpu_hours": max(sizes) * limit_s / 3600,
            "max_cost_usd": 2 * max(sizes) * limit_s / 3600,
            "gpus": sorted({int(n) for n in rng.integers(1, 4 * max(sizes), 3)}),
            "max_batch": int(rng.integers(1, 9)) * 10_000,
            "select": {"world_size": int(rng.choice(sizes))},
        }
        chosen = rng.choice(fields, rng.integers(0, 4), replace=False)
        question = {name: asked[name] for name in chosen}
        if rng.random() < 0.5:
            question["confidence"] = float(rng.uniform(0.5, 0.99))
        yield {**question, "price_per_gpu_hour_usd": 2.0}


def figures(answer: Recommendation, asked: dict[str, Any]) -> dict[Any, list[Any]]:
    """Return the figures of each row, by what identifies it.

    The chance of common limits stands under these limits.
    """
    found: dict[Any, list[Any]] = {}
    limits = [
        (k, v) for k, v in asked.items() if k.startswith(("max_t", "max_g", "max_c"))
    ]
    for row in answer.rows:
        at = (configuration(row), tuple(row.settings.items()))
        found[at] = [getattr(row, name) for name in FIGURES]
        found[(*at, "chance", *sorted(limits))] = [row.probability]
    return found


def assert_shared_are_equal(answers: list[dict[Any, list[Any]]]) -> int:
    """Check every figure against the first answer that has it; return how many were."""
    known: dict[Any, list[Any]] = {}
    compared = 0
    for each in answers:
        for at, values in each.items():
            compared += at in known
            for found, expected in zip(
                values, known.setdefault(at, values), strict=True
            ):
                assert ends(found) == approx(ends(expected)), at
    return compared


def approx(value: Any) -> Any:
    return value if value is None else pytest.approx(value, rel=1e-9)


def ends(value: Any) -> Any:
    return [value.value, value.lo, value.hi] if isinstance(value, Interval) else value


def ask_all(run: Run, rows: pd.DataFrame, seed: int, count: int) -> int:
    rng = np.random.default_rng(seed)
    samples = int(rows["global_batch"].max()) * 2000
    time_s = rows["step_time_s"] * samples / rows["global_batch"]
    sizes = sorted({int(n) for n in rows["gpus"]})
    answers = [
        figures(run.recommend(job={"samples": samples}, **asked), asked)
        for asked in questions(rng, sizes, float(time_s.median()), count)
    ]
    return assert_shared_are_equal(answers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param(
            kind,
            6 if kind == "plain" else 25,
            marks=[] if kind == "plain" else [pytest.mark.repetition],
        )
        for kind in MAKERS
    ],
)
def test_rows_that_two_answers_share_have_the_same_figures(
    kind: str, count: int, tmp_path: Path
) -> None:
    rows = MAKERS[kind](kind, np.random.default_rng(3)).rows
    rows = rows[rows["nodes"] <= 2].reset_index(drop=True)
    assert ask_all(imported(rows, tmp_path), rows, 7, count) > 20
