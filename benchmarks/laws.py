"""How well laws predict step times that others published, ours beside the rivals.

    python benchmarks/laws.py --data DIR [--tasks T1,T3] [--rivals pollux] [--ablation]
                              [--hindsight]

DIR holds a ``throughput.csv`` with ``source, curve_id, gpu_type, nodes, gpus,
local_batch, accum_steps, step_time_s``. Our law is judged twice: with the shipped
prior, and (``left out``) with one learned without the machine it is asked about, which
is the honest figure where DIR is what the shipped prior was learned from. ``ratio`` is
the geometric mean over curves of our error over the rival's, ``cover`` the share inside
the 80% interval.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
from learn_prior import learn, machine_of, physical_guess, read_curves
from rival_laws import LAWS
from scaling_tasks import Case, cases
from score_adapter import observations

from scalelab.laws.rows import configurations, step_time_rows
from scalelab.laws.step_time.ensemble import Component
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.step_time.shape_prior import ShapePrior
from scalelab.laws.step_time.shapes import Shape

Priors = Mapping[Shape, ShapePrior]
Answer = Callable[[Case], pd.DataFrame]


def rival(name: str) -> Answer:
    """Return a published law, which sees the asked curve only."""

    def answer(case: Case) -> pd.DataFrame:
        law = LAWS[name].fit(observations(case.train))
        return law.predict(observations(case.query))

    return answer


def ours(
    priors: Callable[[Case], Priors],
    relatives: bool = True,
    predict: Callable[[StepTimeLaw, pd.DataFrame], pd.DataFrame] | None = None,
) -> Answer:
    """Return our law under some priors; ``predict`` replaces its last step."""

    def answer(case: Case) -> pd.DataFrame:
        prior = StepTimePrior(priors=priors(case))
        if relatives and case.others is not None:
            prior = prior.updated(step_time_rows(observations(case.others)).curves)
        law = StepTimeLaw.fit(observations(case.train), prior=prior)
        query = observations(case.query)
        return predict(law, query) if predict else law.predict(query)

    return answer


def uncalibrated(law: StepTimeLaw, query: pd.DataFrame) -> pd.DataFrame:
    """Return the median and the interval that the ensemble alone gives."""
    (curve,) = law.curves.values()
    at = Configurations.of(configurations(query), curve.points.batch_unit)
    mixture = curve.ensemble.mixture(at)
    middle = mixture.mean + np.log(curve.points.time_unit_s)
    reach = 1.2816 * np.sqrt(mixture.variance + curve.points.scatter.spread**2)
    logs = {"": middle, "lo_": middle - reach, "hi_": middle + reach}
    return pd.DataFrame({f"step_time_{k}s": np.exp(v) for k, v in logs.items()})


def without_residual(priors: Priors) -> Priors:
    """Return priors under which only single configurations deviate from a shape."""
    return {
        shape: replace(
            prior,
            amplitude_mean=np.append(np.full(3, -6.5), prior.amplitude_mean[3]),
            amplitude_spread=np.append(np.full(3, 0.01), prior.amplitude_spread[3]),
        )
        for shape, prior in priors.items()
    }


def ablation(left_out: Callable[[Case], Priors]) -> dict[str, Answer]:
    """Return the law built up step by step; calibration is the last one."""
    guess = physical_guess()
    plain = without_residual(guess)
    one = {Shape.ONE_RING: plain[Shape.ONE_RING]}
    return {
        "physics only": ours(lambda case: one, False, uncalibrated),
        "+ averaging": ours(lambda case: plain, False, uncalibrated),
        "+ prior": ours(
            lambda case: without_residual(left_out(case)), predict=uncalibrated
        ),
        "+ residual": ours(left_out, predict=uncalibrated),
    }


def alone(law: StepTimeLaw, query: pd.DataFrame, shape: Shape) -> pd.DataFrame:
    """Return what one of the shapes answers, without averaging."""
    ((key, curve),) = law.curves.items()
    fit = curve.ensemble.fits[shape]
    within, across = (
        tuple(Component(shape=shape, node=node, weight=node.share) for node in nodes)
        for nodes in (fit.nodes, fit.nodes_across)
    )
    ensemble = replace(
        curve.ensemble, components_within=within, components_across=across
    )
    narrowed = replace(law, curves={key: replace(curve, ensemble=ensemble)})
    return narrowed.predict(query)


def scores(case: Case, answer: pd.DataFrame) -> dict[str, float]:
    """Return errors of one case."""
    truth = case.query["step_time_s"].to_numpy(float)
    names = ("step_time_s", "step_time_lo_s", "step_time_hi_s")
    mid, lo, hi = (answer[name].to_numpy(float) for name in names)
    missed = np.maximum(np.log(lo / truth), 0) + np.maximum(np.log(truth / hi), 0)
    return {
        "error": 100 * float(np.abs(mid / truth - 1).mean()),
        "cover": 100 * float(((lo <= truth) & (truth <= hi)).mean()),
        "interval score": float((np.log(hi / lo) + 10 * missed).mean()),
    }


def table(
    found: list[Case], laws: Mapping[str, Answer], machine: Mapping[str, str]
) -> pd.DataFrame:
    """Return one row per law and case; ``machine`` names that of each curve."""
    rows = []
    for name, answer in laws.items():
        started = time.perf_counter()
        for case in found:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answered = answer(case)
            row = {"law": name, "task": case.task, "curve": case.curve_id}
            row["machine"] = machine[case.curve_id]
            rows.append(row | scores(case, answered))
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    return pd.DataFrame(rows)


def show(rows: pd.DataFrame, reference: str) -> None:
    """Print error, ratio to the reference, coverage and interval score per task.

    And where the reference's errors come from: its error by machine.
    """
    pieces = {
        value: rows.pivot_table(index=["task", "curve"], columns="law", values=value)
        for value in ("error", "cover", "interval score")
    }
    order = list(dict.fromkeys(rows["law"]))
    for title, piece in pieces.items():
        print(f"\n{title}, mean over curves")
        print(piece[order].groupby("task").mean().round(2).to_string())
    logs = np.log(np.maximum(pieces["error"][order], 1e-6))
    ratios = logs.rsub(logs[reference], axis=0).groupby("task").mean()
    print(f"\nratio of the error of {reference!r} to that of ...")
    print(np.exp(ratios).round(2).to_string())
    if set(Shape) <= set(order):
        best = pieces["error"][list(Shape)].min(axis=1).groupby("task").mean()
        print(f"\nerror of the best shape per curve, in hindsight\n{best.round(1)}")
    print(f"\nerror of {reference!r} by machine, and number of curves")
    mine = rows[rows["law"] == reference].groupby(["task", "machine"])["error"]
    print(mine.agg(["mean", "size"]).round(1).to_string())


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", default="")
    parser.add_argument(
        "--rivals", default=",".join(n for n in LAWS if n != "scalelab")
    )
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--hindsight", action="store_true")
    arguments = parser.parse_args()
    published = pd.read_csv(arguments.data / "throughput.csv")
    machines = machine_of(published)
    machine = dict(zip(published["curve_id"], machines, strict=True))

    @cache
    def without(left_out: str) -> Priors:
        return learn(read_curves(published[machines != left_out]))

    def left_out(case: Case) -> Priors:
        return without(machine[case.curve_id])

    wanted = set(filter(None, arguments.tasks.split(",")))
    found = [c for c in cases(published) if not wanted or c.task in wanted]
    laws = {name: rival(name) for name in filter(None, arguments.rivals.split(","))}
    if arguments.ablation:
        laws |= ablation(left_out)
    if arguments.hindsight:
        laws |= {
            s.value: ours(left_out, predict=partial(alone, shape=s)) for s in Shape
        }
    laws["scalelab left out"] = ours(left_out)
    laws["scalelab"] = ours(lambda case: StepTimePrior.shipped().priors)
    show(table(found, laws, machine), "scalelab left out")


if __name__ == "__main__":
    main()
