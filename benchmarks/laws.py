"""How well laws predict step times that others published, ours beside the rivals.

    python benchmarks/laws.py --data DIR [--tasks T1,T3] [--rivals paleo,median]

DIR holds a ``throughput.csv`` with ``source, curve_id, gpu_type, nodes, gpus,
local_batch, accum_steps, step_time_s``. The tasks are those of ``scaling_tasks.py``.
``error`` is the mean of |ln(predicted / true)| in %, ``ratio`` the geometric mean over
curves of our error over the rival's, ``cover`` the share inside the 80% interval. A
rival sees the asked curve only.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from scaling_tasks import Case, cases
from score_adapter import observations, predict

from scalelab.laws import published
from scalelab.laws.published import LAWS, Fitted, PublishedLaw
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.physics import Configurations

Answer = Callable[[Case], pd.DataFrame]
OURS = StepTimeLaw.name


class PaleoLaw(PublishedLaw):
    """Compute and a ring of the slowest link."""

    name = "paleo"
    learn = staticmethod(published.paleo)
    reference = "t = a + b1 b + 2 (n-1)/n S per tier (Qi et al. 2017)"


def median(time: np.ndarray, at: Configurations) -> Fitted:
    """Fit every formula; keep none of their coefficients."""
    each = [learn(time, at) for learn in published.MEDIAN_OF]
    return Fitted(lambda asked: np.median(published.each_of(each, asked), axis=0), {})


class MedianLaw(PublishedLaw):
    """Five formulas and no choice between them."""

    name = "median"
    learn = staticmethod(median)
    reference = "median of ernest_nodes, paleo, pollux, power, last_efficiency"


RIVALS: Mapping[str, type[StepTimeLaw]] = {
    **{name: law for name, law in LAWS.items() if name != OURS},
    PaleoLaw.name: PaleoLaw,
    MedianLaw.name: MedianLaw,
}
"""The rivals that ``--law`` offers, and the two strongest ones of the literature."""


def rival(name: str) -> Answer:
    """Return a published law, which sees the asked curve only."""

    def answer(case: Case) -> pd.DataFrame:
        law = RIVALS[name].fit(observations(case.train))
        return law.predict(observations(case.query))

    return answer


def ours(case: Case) -> pd.DataFrame:
    """Return the answer of our law; other curves of the case are relatives."""
    known = [case.train] if case.others is None else [case.train, case.others]
    return predict(pd.concat(known, ignore_index=True), case.query)


def scores(case: Case, answer: pd.DataFrame) -> dict[str, float]:
    """Return errors of one case."""
    truth = case.query["step_time_s"].to_numpy(float)
    names = ("step_time_s", "step_time_lo_s", "step_time_hi_s")
    mid, lo, hi = (answer[name].to_numpy(float) for name in names)
    missed = np.maximum(np.log(lo / truth), 0) + np.maximum(np.log(truth / hi), 0)
    return {
        "error": 100 * float(np.abs(np.log(mid / truth)).mean()),
        "cover": 100 * float(((lo <= truth) & (truth <= hi)).mean()),
        "interval score": float((np.log(hi / lo) + 10 * missed).mean()),
    }


def table(found: list[Case], laws: Mapping[str, Answer]) -> pd.DataFrame:
    """Return one row per law and case."""
    rows = []
    for name, answer in laws.items():
        started = time.perf_counter()
        for case in found:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answered = answer(case)
            row = {"law": name, "task": case.task, "curve": case.curve_id}
            rows.append(row | scores(case, answered))
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    return pd.DataFrame(rows)


def show(rows: pd.DataFrame) -> None:
    """Print error, coverage and interval score per task, and our error over theirs."""
    pieces = {
        value: rows.pivot_table(index=["task", "curve"], columns="law", values=value)
        for value in ("error", "cover", "interval score")
    }
    order = list(dict.fromkeys(rows["law"]))
    for title, piece in pieces.items():
        print(f"\n{title}, mean over curves")
        print(piece[order].groupby("task").mean().round(2).to_string())
    logs = np.log(np.maximum(pieces["error"][order], 1e-6))
    ratios = logs.rsub(logs[OURS], axis=0).groupby("task").mean()
    print(f"\nratio of the error of {OURS!r} to that of ...")
    print(np.exp(ratios).round(2).to_string())


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", default="")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    arguments = parser.parse_args()
    published = pd.read_csv(arguments.data / "throughput.csv")
    wanted = set(filter(None, arguments.tasks.split(",")))
    found = [c for c in cases(published) if not wanted or c.task in wanted]
    laws = {name: rival(name) for name in filter(None, arguments.rivals.split(","))}
    show(table(found, {**laws, OURS: ours}))


if __name__ == "__main__":
    main()
