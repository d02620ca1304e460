"""How well answers tell times to a target that others published, beside a rule.

    python benchmarks/time_to_target.py --data DIR [--rows OUT]

DIR holds ``time_to_target.csv`` (``group, benchmark, gpu_type, gpus, nodes,
global_batch, samples, time_to_target_s``; a group is one submitter's series over
scales) and ``samples_to_target.csv`` (``benchmark, global_batch, samples``). Of each
series of three scales or more, the smaller ones and the benchmark's own samples are
given to ``scalelab import`` as one table, and ``scalelab recommend`` is asked about the
largest: its devices, its batch. *published alone* is the same without the benchmark's
own samples. The rule is the median of five published formulas for the throughput, times
the hyperbola of McCandlish et al. 2018 for the samples, fitted to the benchmark's own
where there are two, else to the series. Errors are mean abs(log ratio), in percent.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from laws import median
from targets import hyperbola

import scalelab
from scalelab.errors import ScaleLabError
from scalelab.laws.step_time.physics import Configurations

MIN_SCALES = 3
COLUMNS = "benchmark gpu_type gpus nodes global_batch samples time_to_target_s".split()


def series(times: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, pd.Series]]:
    """Yield the name of each series, its smaller scales, and the largest."""
    for name, runs in times.groupby("group"):
        if runs["gpus"].nunique() >= MIN_SCALES:
            top = runs["gpus"] == runs["gpus"].max()
            held = runs[top].nsmallest(1, "time_to_target_s").iloc[0]
            yield str(name), runs[~top], held


def answered(table: pd.DataFrame, held: pd.Series, home: Path) -> dict[str, float]:
    """Import a table, ask about the held-back scale, and return the row of it."""
    table.to_csv(home / "table.csv", index=False)
    run = scalelab.import_table(home / "table.csv", home / "run", accept_doubts=True)
    answer = run.recommend(
        gpus=[int(held["gpus"])],
        batch=int(held["global_batch"]),
        accept_unmeasured=True,
    )
    rows = [row for row in answer.rows if row.world_size == held["gpus"]]
    if not rows:
        raise ScaleLabError("no row for these devices")
    time, truth = rows[0].time_s, held["time_to_target_s"]
    return {
        "error": np.log(time.value / truth),
        "inside": time.lo <= truth <= time.hi,
        "width": np.log(time.hi / time.lo),
    }


def rule(known: pd.DataFrame, own: pd.DataFrame, held: pd.Series) -> float:
    """Return the log error of the rule."""

    def at(table: pd.DataFrame) -> Configurations:
        batch, devices = table["global_batch"], table["gpus"]
        names = {"world_size": devices, "num_nodes": table["nodes"]}
        return Configurations.of(
            pd.DataFrame(
                {
                    **names,
                    "local_batch_size": batch / devices,
                    "gradient_accumulation_steps": 1,
                    "data_parallel_size": devices,
                }
            ).astype(float)
        )

    step_s = known["time_to_target_s"] * known["global_batch"] / known["samples"]
    unit_s = float(np.median(step_s))
    law = median((step_s / unit_s).to_numpy(), at(known))
    predicted_s = float(law.time(at(held.to_frame().T))[0]) * unit_s
    table = own if len(own) > 1 else known
    one = table.groupby("global_batch", as_index=False)["samples"].median()
    samples = one["samples"].item() if len(one) == 1 else 0.0
    samples = samples or hyperbola(one, held["global_batch"])
    time_s = predicted_s * samples / held["global_batch"]
    return float(np.log(time_s / held["time_to_target_s"]))


def scores(times: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Return one row per series: errors of the rule and of answers."""
    rows = []
    for name, known, held in series(times):
        own = samples[samples["benchmark"] == held["benchmark"]]
        row = {"series": name, "scales": len(known)}
        for label, beside in (("", own), ("alone ", own.iloc[:0])):
            row[f"{label}rule"] = rule(known, beside, held)
            table = pd.concat([known, beside])[COLUMNS]
            with tempfile.TemporaryDirectory() as home:
                try:
                    found = answered(table, held, Path(home))
                except ScaleLabError as error:
                    found = {"refused": str(error)}
            row |= {f"{label}{what}": value for what, value in found.items()}
        rows.append(row)
    return pd.DataFrame(rows)


def show(title: str, errors: pd.Series) -> None:
    """Print mean and median of absolute log errors."""
    errors = errors.abs().dropna()
    mean, middle, far = errors.mean(), errors.median(), errors.quantile(0.9)
    print(
        f"{title:36} {len(errors):3} series: mean {mean:.1%}, median {middle:.1%}, "
        f"nine in ten within {far:.1%}"
    )


def main() -> None:
    """Print the errors of answers and of the rule, on the series that are answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=Path)
    said = parser.parse_args()
    times = pd.read_csv(said.data / "time_to_target.csv", dtype={"round": str})
    # means over entries of several submissions: whole nodes, at least one
    times["nodes"] = np.ceil(times["nodes"].clip(lower=1)).astype("Int64")
    times["gpus"] = times["gpus"].astype("Int64")
    samples = pd.read_csv(said.data / "samples_to_target.csv")
    samples = samples.astype({"global_batch": "Int64"})
    warnings.simplefilter("ignore")  # what a law warns of is scored here
    found = scores(times, samples)
    if said.rows:
        found.to_csv(said.rows, index=False)
    for label in ("", "alone "):
        is_answered = found[f"{label}error"].notna()
        name = "published alone" if label else "with the benchmark's samples"
        print(f"\n{name}: {is_answered.sum()} of {len(found)} series answered")
        part = found[is_answered]
        show("answer", part[f"{label}error"])
        show("rule on the same", part[f"{label}rule"])
        show("rule on all", found[f"{label}rule"])
        inside, width = part[f"{label}inside"], part[f"{label}width"]
        print(
            f"80% intervals hold {inside.mean():.0%}, median width {width.median():.2f}"
        )
        signed = part[f"{label}error"].mean()
        print(f"mean of ln(predicted / true): {signed:+.1%}")


if __name__ == "__main__":
    main()
