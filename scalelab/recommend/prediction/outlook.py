"""The outlook: predicted time and cost of the job on each allocation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scalelab.errors import NotIdentifiableError
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import Interval, counted
from scalelab.laws.interval import central
from scalelab.laws.rows import configurations
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.support import Support
from scalelab.recommend.answer.recommendation import BatchPlan, OutlookRow
from scalelab.recommend.prediction.workload_samples import SampleNeed
from scalelab.recommend.question.candidates import allocation_label
from scalelab.recommend.question.objective import Constraints, Spending, pareto
from scalelab.records.columns import OPTION_PREFIX


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The fastest configuration of each world size, and draws of its time and cost.

    Parameters
    ----------
    frame
        One row per world size: configuration, curve columns, ``lr_rule`` of the
        convergence curve used, ``support``, ``step_time_s``, ``step_time_lo_s``,
        ``step_time_hi_s``, ``throughput_samples_per_s``.
    questions
        The configurations alone, in the columns that the law predicts from.
    samples : ndarray, shape (n_draws, n_rows)
        Samples the job needs.
    expected_s : ndarray, shape (n_draws, n_rows)
        Time of the job at the median number of samples.
    spent
        Time, device-hours and money of one run, each of shape (n_draws, n_rows).
    held : ndarray of bool, shape (n_draws, n_rows)
        Whether every limit holds.
    """

    frame: pd.DataFrame
    questions: pd.DataFrame
    samples: np.ndarray
    expected_s: np.ndarray
    spent: Spending
    held: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """World sizes, increasing, shape (n_rows,)."""
        return self.frame["world_size"].to_numpy(float)

    @property
    def time_s(self) -> np.ndarray:
        """Median time of the job in seconds, shape (n_rows,)."""
        return np.asarray(np.median(self.spent.time_s, axis=0))


def look_ahead(
    candidates: pd.DataFrame,
    law: StepTimeLaw,
    need: SampleNeed,
    limits: Constraints,
    correction: np.ndarray,
) -> Outlook:
    """Predict every candidate and keep the fastest of each world size.

    ``correction``, of shape (n_draws, 1), multiplies the time: it is the error of the
    product of both laws, and 1 where the job's samples do not come from a law.

    Raises
    ------
    NotIdentifiableError
        No candidate can be predicted.
    """
    answered = law.predict(candidates, limits.interval)
    completed = configurations(candidates)
    answered["global_batch_size"] = np.round(completed["global_batch_size"]).astype(int)
    batches = answered["global_batch_size"].tolist()
    samples, reached, answered["samples_rule"] = need.draws(answered)
    known = (answered["support"] != Support.UNSUPPORTED).to_numpy()
    known = known & np.isfinite(samples).all(axis=0)
    if not known.any():
        raise NotIdentifiableError(
            "the number of samples to the target",
            f"Convergence was measured at the global batches "
            f"{list(need.measured_batches())}, throughput at {sorted(set(batches))}. "
            "Measure one at a batch of the other.",
        )
    answered, samples = answered[known].reset_index(drop=True), samples[:, known]
    steps = np.median(samples, axis=0) / answered["global_batch_size"].to_numpy(float)
    speed = steps * answered["step_time_s"].to_numpy(float)
    order = np.lexsort((speed, answered["world_size"].to_numpy()))
    first = ~answered["world_size"].iloc[order].duplicated().to_numpy()
    chosen = order[first]
    frame = answered.iloc[chosen].reset_index(drop=True)
    samples, total = samples[:, chosen], frame["global_batch_size"].to_numpy(float)
    asked = candidates[known].iloc[chosen].reset_index(drop=True)
    expected = law.sample(asked) * np.median(samples, axis=0) / total
    expected *= np.median(correction)
    one_run = law.sample(asked, one_run=True) * samples / total * correction
    sizes, nodes = (frame[name].to_numpy(float) for name in ("world_size", "num_nodes"))
    spent = limits.spending(one_run, sizes, nodes)
    held = limits.held(spent)
    held &= need.within_cap(samples, frame["global_batch_size"].tolist())
    held &= reached[:, known][:, chosen]
    return Outlook(
        frame=frame,
        questions=asked,
        samples=samples,
        expected_s=expected,
        spent=spent,
        held=held,
    )


def baseline_index(frame: pd.DataFrame, device_word: str) -> tuple[int, str]:
    """Return the row that efficiencies refer to, and its name.

    It is one full node if there are rows on several nodes, else the smallest row.
    """
    nodes, sizes = frame["num_nodes"], frame["world_size"]
    if nodes.max() > 1:
        per_node = np.ceil(sizes / nodes).max()
        full = np.flatnonzero((nodes == 1) & (sizes == per_node))
        if len(full):
            return int(full[0]), "one full node"
    count = int(sizes.iloc[0])
    return 0, counted(count, device_word)


def outlook_rows(
    outlook: Outlook,
    chosen: int,
    baseline: int,
    has_limits: bool,
    limits: Constraints,
    swept: list[str],
) -> tuple[OutlookRow, ...]:
    """Return the rows of the answer: medians and intervals of the outlook.

    Parameters
    ----------
    outlook
        The draws.
    chosen, baseline
        Indices of the recommended row and of the row that efficiencies refer to.
    has_limits
        Whether a run can miss something: a limit, or a target within a given length.
    limits
        Gives the probability mass of intervals.
    swept
        Columns in which curves differ; they are the settings of a row.
    """
    spent, time = outlook.spent, outlook.time_s
    middle = np.median(spent.gpu_hours, axis=0)
    on_front = pareto(time, middle)
    rows = []
    for i, config in enumerate(outlook.frame.to_dict("records")):
        size, nodes = int(config["world_size"]), int(config["num_nodes"])
        following = _next_index(outlook.sizes, i)
        rows.append(
            OutlookRow(
                allocation=allocation_label(size, nodes),
                world_size=size,
                num_nodes=nodes,
                batch=_batch(config),
                settings=_settings(config, swept),
                step_time_s=_step_time(config),
                throughput_samples_per_s=_throughput(config),
                samples=_interval(outlook.samples[:, i], limits.interval),
                amounts={
                    name: None
                    if amount is None
                    else _interval(amount[:, i], limits.interval)
                    for name, amount in spent.amounts.items()
                },
                scaling_efficiency=float(middle[baseline] / middle[i]),
                next_world_size=_size(outlook.sizes, following),
                next_time_change=_change(time, i, following),
                next_gpu_hours_change=_change(middle, i, following),
                basis=str(config["support"]),
                probability=float(outlook.held[:, i].mean()) if has_limits else None,
                is_pareto=bool(on_front[i]),
                is_chosen=i == chosen,
                is_baseline=i == baseline,
            )
        )
    return tuple(rows)


def _interval(draws: np.ndarray, mass: float) -> Interval:
    lo, hi = central(draws, mass)
    return Interval(value=float(np.median(draws)), lo=float(lo), hi=float(hi))


def _batch(config: Mapping[Any, Any]) -> BatchPlan:
    return BatchPlan(
        local_batch_size=int(config["local_batch_size"]),
        data_parallel_size=int(config["data_parallel_size"]),
        gradient_accumulation_steps=int(config["gradient_accumulation_steps"]),
        global_batch_size=int(config["global_batch_size"]),
    )


def _settings(config: Mapping[Any, Any], swept: list[str]) -> Mapping[str, Scalar]:
    named = {name: config[name] for name in swept if not pd.isna(config[name])}
    return {name.removeprefix(OPTION_PREFIX): value for name, value in named.items()}


def _step_time(config: Mapping[Any, Any]) -> Interval:
    return Interval(
        value=float(config["step_time_s"]),
        lo=float(config["step_time_lo_s"]),
        hi=float(config["step_time_hi_s"]),
    )


def _throughput(config: Mapping[Any, Any]) -> Interval:
    total = float(config["global_batch_size"])
    time = _step_time(config)
    return Interval(value=total / time.value, lo=total / time.hi, hi=total / time.lo)


def _next_index(sizes: np.ndarray, index: int) -> int | None:
    """Return the row with twice the devices, else the next larger one."""
    doubled = np.flatnonzero(sizes == 2 * sizes[index])
    if len(doubled):
        return int(doubled[0])
    return index + 1 if index + 1 < len(sizes) else None


def _size(sizes: np.ndarray, index: int | None) -> int | None:
    return None if index is None else int(sizes[index])


def _change(values: np.ndarray, index: int, following: int | None) -> float | None:
    return None if following is None else float(values[following] / values[index] - 1)
