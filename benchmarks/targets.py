"""How well the convergence law predicts samples to target that others published.

    python benchmarks/targets.py --data DIR

DIR holds ``samples_to_target.csv`` (``benchmark, global_batch, samples, samples_std,
n_runs``). S1: all but the largest batch of a benchmark, then that. S2: all but one
inner batch, then that. The rival is the hyperbola of McCandlish et al. 2018, by least
squares. Errors are 100 (exp(mean of abs(log ratio)) - 1). Times to target are judged in
``time_to_target.py``.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from score_adapter import runs

from scalelab.laws.convergence.law import ConvergenceLaw

MIN_POINTS = 3


def hyperbola(train: pd.DataFrame, batch: float) -> float:
    """Return S_min (1 + B / B_crit) at a batch, fitted to the logs of a table."""
    batches, samples = (train[c].to_numpy(float) for c in ("global_batch", "samples"))

    def left(at: np.ndarray) -> np.ndarray:
        return at[0] + np.log1p(batches * np.exp(-at[1])) - np.log(samples)

    low = [np.log(samples.min()) - 3, np.log(batches.min()) - 3]
    high = [np.log(samples.max()) + 0.1, np.log(batches.max()) + 7]
    starts = [[np.log(samples.min()), np.log(batches.max()) + d] for d in (0.0, 2.0)]
    fits = [least_squares(left, start, bounds=(low, high)) for start in starts]
    minimum, critical = min(fits, key=lambda fit: fit.cost).x
    return float(np.exp(minimum) * (1 + batch * np.exp(-critical)))


def batches_held_back(
    table: pd.DataFrame,
) -> Iterator[tuple[str, pd.DataFrame, pd.Series]]:
    """Yield the task, what is known and the batch that is asked for."""
    for _, curve in table.groupby("benchmark"):
        curve = curve.sort_values("global_batch", ignore_index=True)
        if len(curve) >= MIN_POINTS:
            for place in range(1, len(curve)):
                task = "S1" if place == len(curve) - 1 else "S2"
                yield task, curve.drop(index=place), curve.loc[place]


def sample_scores(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per batch held back."""
    rows = []
    for task, known, held in batches_held_back(table):
        asked = pd.DataFrame({"global_batch_size": [held["global_batch"]]})
        answer = ConvergenceLaw.fit(runs(known)).predict(asked).iloc[0]
        row = {
            "law": abs(np.log(answer["samples_to_target"] / held["samples"])),
            "hyperbola": abs(
                np.log(hyperbola(known, held["global_batch"]) / held["samples"])
            ),
            "inside": answer["samples_lo"] <= held["samples"] <= answer["samples_hi"],
        }
        rows.append({"task": task, "benchmark": held["benchmark"], **row})
    return pd.DataFrame(rows)


def show(title: str, logs: pd.DataFrame, inside: float) -> None:
    """Print mean and median of absolute log errors as percentages."""
    print(f"\n{title}: n={len(logs)}, inside the 80% interval {inside:.0%}")
    for name, values in logs.items():
        mean, median = 100 * np.expm1([values.mean(), values.median()])
        print(f"  {name}: mean {mean:.1f}%, median {median:.1f}%")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    directory = parser.parse_args().data
    samples = pd.read_csv(directory / "samples_to_target.csv")
    warnings.simplefilter("ignore")  # what a law warns of is scored here
    scores = sample_scores(samples)
    for task, rows in scores.groupby("task"):
        by_benchmark = rows.groupby("benchmark")[["law", "hyperbola"]].mean()
        show(f"{task}, samples, benchmarks", by_benchmark, rows["inside"].mean())
        print((100 * np.expm1(by_benchmark)).round(1).to_string())


if __name__ == "__main__":
    main()
