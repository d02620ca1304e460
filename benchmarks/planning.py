"""What planners of measurements cost in all: their trials, and what they then lose.

    python benchmarks/planning.py [--data DIR] [--generated 5] [--only TEXT]
                                  [--rows OUT.csv] [--processes 2]

Each planner measures configurations of a curve, one trial after the other, until it
ends by its own rule, and names the one to run a job on. A trial takes 60 s of start-up
and 50 steps, and scatters. The total is the GPU-seconds of the trials and those that
the job loses against the best configuration; the job takes 1, 10 or 100 times the
GPU-seconds of measuring every configuration once, and totals are shares of those. DIR
holds a published ``throughput.csv`` (see ``laws.py``): curves of ``--left-out`` were
looked at by nobody while the planner was made. ``--generated N`` adds N machines of
each of 13 kinds whose times are by other formulas than the law's.

ours      the planner of ``source: adaptive``
doubles   the person who doubles the GPUs at the largest local batch until the limit is
          broken (fast) or speed grows by less than a tenth (cheap), and takes the best
pandora   the least Gittins index (Weitzman 1979; Xie et al. 2025, arXiv 2507.12453),
          which ends where the best measured one is below all indices
log EI    expected improvement over cost, which ends where none is worth its cost
HeterBO   the same without worth (Yi et al. 2020): no count beyond one that was slower,
          the end at an expected improvement below 1%

The last three take the same draws of the same law as ours. Of ours, ``held`` is how
often the regret was at most 5% where it ended since that was 90% probable.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from answer_truths import (
    CONFIGURATION,
    Configuration,
    generated_curves,
    published_curves,
)
from plan_adapter import (
    amounts,
    decide,
    first_probe,
    global_batch,
    observations,
    regrets,
    trial_costs,
)

from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.plan.inquiry import Ending

OBJECTIVES = ("fast", "cheap")
JOBS = (1, 10, 100)
PUBLISHED_SCATTER = 0.02
MOST_TRIALS = 60


class Found(NamedTuple):
    """Which configurations a planner measured, its pick, and why it ended."""

    order: list[int]
    pick: int
    ending: str = ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A curve whose truth is known, and a job on it."""

    name: str
    table: pd.DataFrame
    truth_s: np.ndarray
    spread: float
    objective: str
    worth: float  # GPU-seconds of the job

    def trial(self, at: int, rng: np.random.Generator) -> float:
        """Return what one trial of a configuration shows."""
        return float(self.truth_s[at] * np.exp(self.spread * rng.standard_normal()))

    def rows(self, order: list[int], seen_s: list[float]) -> pd.DataFrame:
        """Return the rows that were measured."""
        return self.table.iloc[order].assign(step_time_s=seen_s)


Planner = Callable[[Task, np.random.Generator], Found]


def ours(task: Task, rng: np.random.Generator) -> Found:
    """Follow the planner of the product."""
    order = [first_probe(task.table)]
    seen_s = [task.trial(order[0], rng)]
    while True:
        step = decide(task.rows(order, seen_s), task.table, task.objective, task.worth)
        if step.ending or step.candidate is None or len(order) == MOST_TRIALS:
            return Found(order, step.pick, str(step.ending))
        order.append(step.candidate)
        seen_s.append(task.trial(step.candidate, rng))


def doubles(task: Task, rng: np.random.Generator) -> Found:
    """Double the GPUs until that does not pay."""
    sizes = np.unique(task.table["gpus"].to_numpy())
    order: list[int] = []
    seen_s: list[float] = []
    speeds: list[float] = []
    size = sizes[0]

    while True:
        there = task.table[task.table["gpus"] == size].reset_index()
        best = there.sort_values(["nodes", "local_batch"], ascending=[True, False])
        order.append(int(best["index"].iloc[0]))
        seen_s.append(task.trial(order[-1], rng))
        speeds.append(global_batch(task.table)[order[-1]] / seen_s[-1])

        is_poor = speeds[-1] / size < 0.5 * speeds[0] / sizes[0]
        if task.objective == "cheap":
            is_poor = len(speeds) > 1 and speeds[-1] < 1.1 * speeds[-2]
        larger = sizes[sizes > size]
        if is_poor or not len(larger):
            break
        size = larger[np.abs(np.log(larger / (2 * size))).argmin()]

    lost = regrets(task.table.iloc[order], np.array(seen_s), task.objective)
    return Found(order, order[int(lost.argmin())])


@dataclass(frozen=True, kw_only=True)
class View:
    """What a rival knows: the law's draws of each amount, and what was measured."""

    task: Task
    order: list[int]
    amount: np.ndarray  # draws, as a share of the best measured one
    speed: np.ndarray  # samples/s, medians
    costs: np.ndarray  # of a trial, as a share of the job

    @property
    def is_new(self) -> np.ndarray:
        """Whether each was not measured yet."""
        is_new = np.ones(len(self.costs), bool)
        is_new[self.order] = False
        return is_new

    @property
    def improvement(self) -> np.ndarray:
        """The expected improvement over the best measured one."""
        return np.asarray(np.maximum(1 - self.amount, 0).mean(axis=0))


def rival(rule: Callable[[View], int | None]) -> Planner:
    """Return the planner of a rule that names the next configuration, or None."""

    def follow(task: Task, rng: np.random.Generator) -> Found:
        order = [first_probe(task.table)]
        seen_s = [task.trial(order[0], rng)]
        asked = observations(task.table)
        while True:
            law = StepTimeLaw.fit(observations(task.rows(order, seen_s)))
            drawn_s = law.draws(asked)
            middle_s = np.median(drawn_s, axis=0)
            value, held = amounts(task.table, drawn_s, task.objective)
            lacking = 1 + np.maximum(1 / held - 1, 0)
            amount = value * lacking
            means = amount.mean(axis=0)
            pick = order[int(means[order].argmin())]
            view = View(
                task=task,
                order=order,
                amount=amount / means[pick],
                speed=global_batch(task.table) / middle_s,
                costs=trial_costs(task.table, middle_s) / task.worth,
            )
            following = rule(view) if view.is_new.any() else None
            if following is None or len(order) == MOST_TRIALS:
                return Found(order, pick)
            order.append(following)
            seen_s.append(task.trial(following, rng))

    return follow


def pandora(view: View) -> int | None:
    """Open the box with the least index; none where the best open one is below."""
    ordered = np.sort(view.amount, axis=0)
    counts = np.arange(1, len(ordered) + 1)[:, None]
    # the index g solves E[max(g - amount, 0)] = cost
    index = (view.costs * len(ordered) + np.cumsum(ordered, axis=0)) / counts
    above = np.vstack([ordered[1:], np.full((1, ordered.shape[1]), np.inf)])
    first = (index <= above).argmax(axis=0)
    index = index[first, np.arange(index.shape[1])]
    index = np.where(view.is_new, index, np.inf)
    return None if index.min() >= 1 else int(index.argmin())


def log_improvement(view: View) -> int | None:
    """Take the largest improvement per cost; none where it is below its cost."""
    value = np.where(view.is_new, view.improvement / view.costs, 0.0)
    return int(value.argmax()) if value.max() > 1 else None


def heter_bo(view: View) -> int | None:
    """Take the largest improvement per cost, up to the first count that was slower."""
    sizes = view.task.table["gpus"].to_numpy()
    fastest = pd.Series(view.speed[view.order]).groupby(sizes[view.order]).max()
    is_slower = fastest.diff() < 0
    largest = fastest.index[is_slower][0] if is_slower.any() else np.inf
    allowed = view.is_new & (sizes <= largest) & (view.improvement >= 0.01)
    value = np.where(allowed, view.improvement / view.costs, 0.0)
    return int(value.argmax()) if value.any() else None


PLANNERS: dict[str, Planner] = {
    "ours": ours,
    "doubles": doubles,
    "pandora": rival(pandora),
    "log EI": rival(log_improvement),
    "HeterBO": rival(heter_bo),
}


def tables(
    data: Path | None, generated: int
) -> Iterator[tuple[str, pd.DataFrame, np.ndarray, float]]:
    """Yield the name, the configurations, true times and scatter of curves."""
    for curve in generated_curves(generated):
        distinct = curve.rows.drop_duplicates(CONFIGURATION).reset_index(drop=True)
        found = [
            Configuration(*map(int, at)) for at in distinct[CONFIGURATION].to_numpy()
        ]
        truth_s = [curve.table.machine.step_time_s(at) for at in found]
        yield curve.name, distinct, np.array(truth_s, float), curve.table.scatter.spread

    if data is not None:
        published = pd.read_csv(data / "throughput.csv")
        for known in published_curves(published):
            grouped = known.rows.groupby(CONFIGURATION)["step_time_s"].median()
            distinct = grouped.reset_index()
            machine = known.rows[["gpu_type", "workload"]].iloc[0]
            named = distinct.assign(**machine)
            yield known.name, named, named["step_time_s"].to_numpy(), PUBLISHED_SCATTER


def judged(
    curve: tuple[str, pd.DataFrame, np.ndarray, float],
) -> list[dict[str, object]]:
    """Return a row per objective, job and planner."""
    warnings.simplefilter("ignore")
    name, table, truth_s, spread = curve
    table = table.drop(columns="step_time_s")
    costs = trial_costs(table, truth_s)
    rows: list[dict[str, object]] = []
    for objective in OBJECTIVES:
        lost = regrets(table, truth_s, objective)
        for times in JOBS:
            task = Task(
                name=name,
                table=table,
                truth_s=truth_s,
                spread=spread,
                objective=objective,
                worth=times * float(costs.sum()),
            )
            for planner, follow in PLANNERS.items():
                rng = np.random.default_rng([*name.encode()])
                found = follow(task, rng)
                trials = float(costs[found.order].sum() / costs.sum())
                rows.append(
                    {
                        "curve": name,
                        "objective": objective,
                        "job": times,
                        "planner": planner,
                        "trials": len(found.order),
                        "cost": trials,
                        "regret": lost[found.pick],
                        "total": trials + times * lost[found.pick],
                        "ending": found.ending,
                    }
                )
    print(name, flush=True)
    return rows


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means per job and planner, with totals over those of the person."""
    found = rows.groupby(["job", "planner"])[
        ["trials", "cost", "regret", "total"]
    ].mean()
    person = found["total"].xs("doubles", level="planner")
    found["of doubles"] = found["total"] / person.reindex(found.index, level="job")
    others = found["total"].drop("ours", level="planner").groupby("job").min()
    found["of best rival"] = found["total"] / others.reindex(found.index, level="job")
    return found.round(3)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--generated", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--left-out", default="rtx")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()

    curves = [c for c in tables(asked.data, asked.generated) if asked.only in c[0]]
    with multiprocessing.Pool(asked.processes) as pool:
        rows = pd.DataFrame([row for part in pool.imap(judged, curves) for row in part])
    if asked.rows:
        rows.to_csv(asked.rows, index=False)

    is_published = rows["curve"].str.contains("|", regex=False)
    is_left_out = rows["curve"].str.endswith(asked.left_out) & is_published
    for title, part in {
        "generated": rows[~is_published],
        "published": rows[is_published & ~is_left_out],
        "left out": rows[is_left_out],
        "all": rows,
    }.items():
        if len(part):
            print(f"\n{title}: {part['curve'].nunique()} curves")
            print(summary(part).to_string())

    known = rows[rows["ending"] == Ending.KNOWN]
    held = (known["regret"] <= 0.05).mean()
    print(f"\nheld: {held:.2f} of {len(known)} ends that were 90% sure")


if __name__ == "__main__":
    main()
