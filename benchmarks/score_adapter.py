"""The step-time law behind the interface of scoring scripts for published tables.

``predict(train, query)`` takes tables with ``curve_id, gpu_type, nodes, gpus,
local_batch, accum_steps, step_time_s`` and returns an 80% interval. Rows of the asked
curve are fitted; rows of other curves become the prior.
"""

from __future__ import annotations

import warnings

import pandas as pd

from scalelab.laws.prior import StepTimePrior
from scalelab.laws.step_time import StepTimeLaw

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
        answer = law.predict(observations(query), interval=0.8, guess=True)
    return answer[["step_time_s", "step_time_lo_s", "step_time_hi_s"]]
