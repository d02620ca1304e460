"""The planner of measurements behind the interface of scripts that judge planners.

Frames have ``gpus, nodes, local_batch, accum_steps, gpu_type, workload``; of measured
rows also ``step_time_s``, one row per trial. ``next_probe`` returns the row of
``candidates``, by position, that is to be measured next, None at the planner's own
stop; ``choose`` returns the row it would run the job on. Objectives (X = samples/s):

fast   the largest X with X per GPU at least half of the best on the fewest GPUs
cheap  the least GPU-seconds per sample with X at least 0.6 of the largest
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.search.planner import Candidates, Prospects, Step, departures, next_step

STEPS, START_UP_S = 50, 60.0
EFFICIENCY, FRACTION = 0.5, 0.6
_NAMES = {
    "workload": "workload",
    "gpu_type": "device_name",
    "gpus": "world_size",
    "nodes": "num_nodes",
    "local_batch": "local_batch_size",
    "accum_steps": "gradient_accumulation_steps",
}


def observations(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table in the columns of the observations frame."""
    known = {name: ours for name, ours in _NAMES.items() if name in table.columns}
    renamed = table[list(known)].rename(columns=known)
    if "step_time_s" in table.columns:
        renamed = renamed.assign(step_time_s=table["step_time_s"])
    return renamed.reset_index(drop=True)


def global_batch(table: pd.DataFrame) -> np.ndarray:
    """Return the samples of a step of each row, shape (n_rows,)."""
    passes = table["accum_steps"] if "accum_steps" in table.columns else 1
    return (table["gpus"] * table["local_batch"] * passes).to_numpy(float)


def amounts(
    table: pd.DataFrame, step_s: np.ndarray, objective: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return what is kept small, and by how much the limit is held (1: just).

    ``step_s`` and both results have the shape (..., n_rows).
    """
    sizes = table["gpus"].to_numpy(float)
    speed = global_batch(table) / step_s
    if objective == "fast":
        fewest = sizes == sizes.min()
        alone = speed[..., fewest].max(axis=-1, keepdims=True) / sizes.min()
        return 1 / speed, speed / sizes / (EFFICIENCY * alone)
    return sizes / speed, speed / (FRACTION * speed.max(axis=-1, keepdims=True))


def regrets(table: pd.DataFrame, step_s: np.ndarray, objective: str) -> np.ndarray:
    """Return by which share each row is worse than the best, shape (..., n_rows).

    What a row lacks to hold the limit counts in full.
    """
    value, held = amounts(table, step_s, objective)
    holds = held >= np.minimum(1.0, held.max(axis=-1, keepdims=True))
    best = np.where(holds, value, np.inf).min(axis=-1, keepdims=True)
    return np.maximum(value / best - 1, 0) + np.maximum(1 / held - 1, 0)


def trial_costs(table: pd.DataFrame, step_s: np.ndarray) -> np.ndarray:
    """Return the GPU-seconds of a trial of each row, its start-up included."""
    sizes = table["gpus"].to_numpy(float)
    return np.asarray(sizes * (START_UP_S + STEPS * step_s))


def decide(
    measured: pd.DataFrame,
    candidates: pd.DataFrame,
    objective: str,
    worth: float | None = None,
) -> Step:
    """Decide on the next trial; ``worth`` are the GPU-seconds of the job."""
    asked = observations(candidates.drop(columns="step_time_s", errors="ignore"))
    law = StepTimeLaw.fit(observations(measured))
    expected = law.draws(asked)
    middle_s = np.median(expected, axis=0)
    names = [name for name in _NAMES if name in candidates.columns]
    runs = measured.groupby(names)["step_time_s"]
    counts, medians_s = runs.size(), runs.median()
    keys = [*candidates[names].itertuples(index=False, name=None)]
    measured_s = {at: medians_s[key] for at, key in enumerate(keys) if key in medians_s}

    places = np.arange(len(candidates))
    prospects = Prospects(
        regret=regrets(candidates, expected, objective),
        shown=law.draws(asked, one_run=True),
        as_measured={
            at: regrets(
                candidates, middle_s * np.where(places == at, factor, 1), objective
            )
            for at, factor in departures(measured_s, middle_s).items()
        },
    )
    return next_step(
        Candidates(
            sizes=candidates["gpus"].to_numpy(float),
            costs=trial_costs(candidates, middle_s),
            num_runs=np.array([counts.get(key, 0) for key in keys]),
            is_affordable=np.ones(len(candidates), bool),
            is_broken=np.zeros(len(candidates), bool),
        ),
        prospects,
        worth,
    )


def first_probe(candidates: pd.DataFrame) -> int:
    """Return the row that is measured first: fewest GPUs, largest local batch."""
    order = np.lexsort(
        [-candidates["local_batch"], candidates["nodes"], candidates["gpus"]]
    )
    return int(order[0])


def next_probe(
    measured: pd.DataFrame, candidates: pd.DataFrame, objective: str
) -> int | None:
    """Return the row to be measured next, by position; None: no further one."""
    if measured.empty:
        return first_probe(candidates)
    step = decide(measured, candidates, objective)
    return None if step.ending else step.candidate


def choose(measured: pd.DataFrame, candidates: pd.DataFrame, objective: str) -> int:
    """Return the row to run the job on, by position."""
    if measured.empty:
        return first_probe(candidates)
    return decide(measured, candidates, objective).pick
