"""The step-time law behind the interface of scoring scripts for published tables.

``predict(train, query)`` takes tables with ``curve_id, gpu_type, nodes, gpus,
local_batch, accum_steps, step_time_s`` and returns an 80% interval. Rows of the asked
curve are fitted; rows of other curves become the prior.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from scipy.special import ndtri

from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.prior import StepTimePrior

_MOST_RUNS = 30
_NAMES = {
    "curve_id": "workload",
    "gpu_type": "device_name",
    "gpus": "world_size",
    "nodes": "num_nodes",
    "local_batch": "local_batch_size",
    "accum_steps": "gradient_accumulation_steps",
    "step_time_s": "step_time_s",
}


def observations(table: pd.DataFrame) -> pd.DataFrame:
    """Return a published table in the columns of the observations frame."""
    known = {name: ours for name, ours in _NAMES.items() if name in table.columns}
    return table[list(known)].rename(columns=known)


def predict(train: pd.DataFrame, query: pd.DataFrame) -> pd.DataFrame:
    """Fit the curve of the query and predict it, also where a law would refuse."""
    asked = train["curve_id"] == query["curve_id"].iloc[0]
    prior = StepTimePrior.learn(observations(train[~asked])) if any(~asked) else None
    law = StepTimeLaw.fit(observations(train[asked]), prior=prior)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = law.predict(observations(query), interval=0.8)
    return answer[["step_time_s", "step_time_lo_s", "step_time_hi_s"]]


def runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return runs that have the published mean and spread of each batch."""
    rows = []
    for row in table.itertuples():
        count = int(min(max(row.n_runs, 1), _MOST_RUNS))
        spread = row.samples_std / row.samples
        score = ndtri((np.arange(count) + 0.5) / count)
        score = score / score.std() if count > 1 else score
        logs = np.log(row.samples) + spread * score - spread**2 / 2
        rows += [(row.global_batch, samples) for samples in np.exp(logs)]
    return pd.DataFrame(rows, columns=["global_batch_size", "samples_to_target"])


def predict_samples(train: pd.DataFrame, query: pd.DataFrame) -> np.ndarray:
    """Fit samples to target against the global batch and predict the query."""
    law = ConvergenceLaw.fit(runs(train))
    asked = pd.DataFrame({"global_batch_size": query["global_batch"].to_numpy()})
    return law.predict(asked)["samples_to_target"].to_numpy()
