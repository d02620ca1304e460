"""Step times of one model over layouts: data, tensor and pipeline parallelism.

    python benchmarks/layouts_adapter.py --data DIR

``predict(train, query)`` takes frames with ``workload, gpu_type, gpus, nodes,
local_batch, accum_steps, tp, pp``, in ``train`` with ``step_time_s``, and returns an
80% interval for every row of the query. ``local_batch`` is the micro batch of one
replica, which ``tp * pp`` devices share; where either is missing it is 1.

What is predicted is the device time of a sample, ``step_time_s tp pp / (local_batch
accum_steps)``, whose log is that of the model plus normal parts: one per layout of the
model, and two that are smooth in devices, batch, passes and layout, one of which all
models share. Their amplitudes are stated, not fitted; the scatter is, and points far
from all others count for less (Student's t). So a model is its mean device time until
its rows say otherwise. Answers do not use it: they offer no layout that was not
measured, and each that was is a curve of its own.

DIR holds ``far/bigscience_gpt_v100.csv``, language models on 16 to 256 V100 whose
authors say that equal runs differ by up to 40%. Known are a random third of a model's
rows, twenty times, or all layouts but one, and all rows of other models. Beside it: the
median device time of the model's rows, a line of a spreadsheet, with the deviation of
its own errors; and the law, to which all layouts are one curve of a model.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.special import ndtri
from score_adapter import observations

from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.prior import StepTimePrior

# Standard deviations of the log: of models, of a model's layouts, of the smooth part of
# all models and of one; of single rows, and how far that may be off, in logs
MODELS, LAYOUTS, SHARED, OWN = 3.0, 0.1, 0.1, 0.1
SCATTER, SPREAD_OF_SCATTER = 0.05, 1.0
LENGTH = 3.0  # doublings
FREEDOM, NUM_ROUNDS = 4, 4
NEAREST, FARTHEST = 0.5, 400.0  # limits of the factors on variances
TAIL = 0.1  # on either side of the interval
FEWEST, NUM_SPLITS = 4, 20

Predict = Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]


def predict(train: pd.DataFrame, query: pd.DataFrame) -> pd.DataFrame:
    """Return step times and 80% intervals of the query, in its order."""
    train, query = completed(train), completed(query)
    logs = np.log(train["step_time_s"] / units(train)).to_numpy()
    middle = float(np.median(logs))
    errors, covariance = logs - middle, covariances(train, train)
    factors = np.ones(len(train))
    for _ in range(NUM_ROUNDS):
        scatter = most_probable_scatter(errors, covariance, factors)
        inverse = np.linalg.inv(covariance + scatter**2 * np.diag(factors))
        off = scatter * factors * (inverse @ errors)
        factors = np.clip((FREEDOM + off**2) / (FREEDOM + 1), NEAREST, FARTHEST)
    cross = covariances(query, train)
    inverse = np.linalg.inv(covariance + scatter**2 * np.diag(factors))
    known = ((cross @ inverse) * cross).sum(axis=1)
    variance = MODELS**2 + LAYOUTS**2 + SHARED**2 + OWN**2 - known
    spread = np.sqrt(np.maximum(variance, 0.0) + scatter**2)
    return intervals(query, middle + cross @ (inverse @ errors), spread)


def most_probable_scatter(
    errors: np.ndarray, covariance: np.ndarray, factors: np.ndarray
) -> float:
    """Return the scatter of single rows by its evidence."""

    def loss(log_ratio: float) -> float:
        scatter = SCATTER * np.exp(log_ratio)
        root = np.linalg.cholesky(covariance + scatter**2 * np.diag(factors))
        whitened = np.linalg.solve(root, errors)
        prior = (log_ratio / SPREAD_OF_SCATTER) ** 2
        return float(whitened @ whitened + prior) / 2 + np.log(np.diag(root)).sum()

    return SCATTER * float(np.exp(minimize_scalar(loss, bounds=(-3, 3)).x))


def completed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a layout and passes; what is missing is 1."""
    layout = table.reindex(columns=["tp", "pp", "accum_steps"]).astype(float)
    return table.assign(**layout.fillna(1.0)).reset_index(drop=True)


def units(table: pd.DataFrame) -> pd.Series:
    """Return the samples of a step on each device."""
    shares = table["tp"] * table["pp"]
    return table["local_batch"] * table["accum_steps"] / shares


def covariances(rows: pd.DataFrame, columns: pd.DataFrame) -> np.ndarray:
    """Return covariances of log device times, shape (n_rows, n_columns)."""
    names = ["gpus", "local_batch", "accum_steps", "tp", "pp"]
    places = [np.log2(each[names].to_numpy(float)) for each in (rows, columns)]
    apart = np.linalg.norm(places[0][:, None] - places[1], axis=-1) / LENGTH
    smooth = (1 + apart) * np.exp(-apart)  # a Matern correlation of order 3/2
    is_model, is_layout = (
        np.logical_and(*(equal(rows[name], columns[name]) for name in pair))
        for pair in (("workload", "gpu_type"), ("tp", "pp"))
    )
    of_model = MODELS**2 + LAYOUTS**2 * is_layout + OWN**2 * smooth
    return np.asarray(is_model * of_model + SHARED**2 * smooth)


def equal(rows: pd.Series, columns: pd.Series) -> np.ndarray:
    """Tell where two columns agree, shape (n_rows, n_columns)."""
    return np.asarray(np.equal.outer(rows.to_numpy(), columns.to_numpy()))


def intervals(
    query: pd.DataFrame, logs: np.ndarray, spread: np.ndarray
) -> pd.DataFrame:
    """Return 80% intervals of step times by the logs of device times."""
    steps = units(query).to_numpy() * np.exp(
        logs + ndtri([[0.5], [TAIL], [1 - TAIL]]) * spread
    )
    names = ("step_time_s", "step_time_lo_s", "step_time_hi_s")
    return pd.DataFrame(dict(zip(names, steps, strict=True)))


def by_median(train: pd.DataFrame, query: pd.DataFrame) -> pd.DataFrame:
    """Take the median device time of the model's rows."""
    train, query = completed(train), completed(query)
    logs = np.log(train["step_time_s"] / units(train))
    medians = logs.groupby(train["workload"]).median()
    spread = (logs - train["workload"].map(medians)).std()
    return intervals(query, query["workload"].map(medians).to_numpy(), spread)


def by_law(train: pd.DataFrame, query: pd.DataFrame) -> pd.DataFrame:
    """Take all layouts of a model for one curve, informed by other models."""
    known, asked = map(one_curve, (completed(train), completed(query)))
    is_own = known["workload"] == asked["workload"].iloc[0]
    prior = StepTimePrior.learn(known[~is_own])
    answer = StepTimeLaw.fit(known[is_own], prior=prior).predict(asked, interval=0.8)
    return answer[["step_time_s", "step_time_lo_s", "step_time_hi_s"]]


def one_curve(table: pd.DataFrame) -> pd.DataFrame:
    """Return observations of which all layouts of a model are one curve."""
    replicas = table["gpus"] / (table["tp"] * table["pp"])
    known = observations(table.assign(curve_id=table["workload"]))
    return known.assign(data_parallel_size=replicas)


def published(path: Path) -> pd.DataFrame:
    """Return the rows of the table whose layout is known."""
    rows = pd.read_csv(path)
    rows = rows[rows["status"] == "ok"]
    rows = rows[rows["tp"].notna() | rows["data_parallel"].isna()]
    replicas = rows["gpus"] / (rows["tp"] * rows["pp"]).fillna(1.0)
    passes = (rows["global_batch"] / (replicas * rows["local_batch"])).round()
    return rows.assign(accum_steps=rows["accum_steps"].fillna(passes))


def splits(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.Index]]:
    """Yield what is asked, the model, and the rows of it that are not known."""
    rng = np.random.default_rng(0)
    for model, own in rows.groupby("workload"):
        if len(own) < FEWEST:
            continue
        for _ in range(NUM_SPLITS):
            yield "two thirds", str(model), rng.permutation(own.index)[len(own) // 3 :]
        for _, layout in own.groupby(["tp", "pp"], dropna=False):
            if len(layout) < len(own):
                yield "a layout", str(model), layout.index


def judged(rows: pd.DataFrame, asked: pd.Index, by: Predict) -> dict[str, float]:
    """Return the figures of one prediction."""
    true = rows.loc[asked, "step_time_s"].to_numpy()
    answer = by(rows.drop(asked), rows.loc[asked].drop(columns="step_time_s"))
    mid, lo, hi = np.log(answer.to_numpy() / true[:, None]).T
    missed = np.maximum(lo, 0) + np.maximum(-hi, 0)
    return {
        "error, %": 100 * float(np.abs(mid).mean()),
        "holds": float(((lo <= 0) & (hi >= 0)).mean()),
        "score": float((hi - lo + 10 * missed).mean()),
    }


def main() -> None:
    """Print the figures, means over models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    rows = published(parser.parse_args().data / "far" / "bigscience_gpt_v100.csv")
    warnings.simplefilter("ignore")
    by: dict[str, Predict] = {"this": predict, "median": by_median, "law": by_law}
    found = [
        {"asked": kind, "model": model, "by": name, **judged(rows, asked, function)}
        for kind, model, asked in splits(rows)
        for name, function in by.items()
    ]
    by_model = pd.DataFrame(found).groupby(["asked", "by", "model"]).mean()
    print(by_model.round(2).to_string())
    print(by_model.groupby(["asked", "by"]).mean().round(2).to_string())


if __name__ == "__main__":
    main()
