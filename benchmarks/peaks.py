"""How well the memory law tells peaks that it was not given, by a table of them.

Each batch of a curve is left out once. Then the device is taken to be smaller than it
was: what exceeds its memory is left out, and the law is asked for the largest batch.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from scalelab import import_table
from scalelab.laws.memory.law import MemoryLaw
from scalelab.laws.rows import split_curves

GIB = 2**30
CAPACITIES = [size * GIB for size in (16, 24, 32, 40, 48, 64)]


def errors(curve: pd.DataFrame) -> pd.DataFrame:
    """Return the sizes of log errors of one curve, each batch left out, and where."""
    batches = curve["local_batch_size"]
    found = []
    for batch in sorted(batches.unique()):
        known, asked = curve[batches != batch], curve[batches == batch]
        peaks = MemoryLaw.fit(known)
        predicted = peaks.predict(asked)["peak_bytes"]
        place = "between" if batches.min() < batch < batches.max() else "above"
        place = "below" if batch == batches.min() else place
        size = np.abs(np.log(predicted / asked["gpu_memory_peak_bytes"].astype(float)))
        found.append(pd.DataFrame({"place": place, "error": size}))
    return pd.concat(found)


def plans(curve: pd.DataFrame) -> tuple[int, int]:
    """Return how many plans were made for smaller devices, and how many do not fit."""
    highest = curve.groupby("local_batch_size")["gpu_memory_peak_bytes"].max()
    made = broken = 0
    for capacity in CAPACITIES:
        ran = highest.index[highest.cummax() <= capacity]
        if not 1 < len(ran) < len(highest):
            continue
        law = MemoryLaw.fit(curve[curve["local_batch_size"].isin(ran)])
        answer = law.largest_local_batch(curve.iloc[:1], capacity)
        largest = answer["largest_local_batch"].item()
        made += 1
        broken += bool((highest[highest.index <= largest] > capacity).any())
    return made, broken


def main() -> None:
    """Print the errors by place, and the plans."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table")
    parser.add_argument("--ignore", action="append", default=[])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run = import_table(asked.table, Path(directory) / "run", ignore=asked.ignore)
        rows = run.observations
    rows = rows[rows["gpu_memory_peak_bytes"].notna()]
    curves = [
        curve
        for curve in split_curves(rows).values()
        if curve["local_batch_size"].nunique() > 2
    ]
    sizes = pd.concat(map(errors, curves))
    for place, each in [("all", sizes), *sizes.groupby("place")]:
        share = (each["error"] <= np.log(1.1)).mean()
        print(
            f"{place}: {len(each)} peaks, mean |ln| {each['error'].mean():.1%}, "
            f"median {each['error'].median():.1%}, within 10% {share:.0%}"
        )
    made, broken = np.sum([plans(curve) for curve in curves], axis=0)
    print(f"{broken} of {made} plans for smaller devices do not fit")


if __name__ == "__main__":
    main()
