"""How long the step-time law takes: a fit on 1,000 observations, 10,000 predictions.

In seconds of CPU, medians of nine: for a declared machine of eight nodes, for one of
which only the first node was measured, where the node jump is integrated, and after
five observations, which leave most to integrate over.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from scalelab.laws.step_time.law import StepTimeLaw

PER_NODE, BATCHES, NUM_ASKED = 4, (8, 16, 32, 64), 10_000


def observations(sizes: list[int], number: int) -> pd.DataFrame:
    """Return so many rows of a machine whose exchange costs more between nodes."""
    rng = np.random.default_rng(0)
    devices = np.resize(np.repeat(sizes, len(BATCHES)), number)
    batch = np.resize(BATCHES, number)
    nodes = -(-devices // PER_NODE)
    exchange = 0.006 * (devices > 1) + 0.02 * (nodes - 1) / nodes
    step_s = (0.01 + 0.002 * batch + exchange) * np.exp(0.01 * rng.normal(size=number))
    return pd.DataFrame(
        {
            "world_size": devices,
            "num_nodes": nodes,
            "local_batch_size": batch,
            "step_time_s": step_s,
        }
    )


def cpu_s(act: Callable[[], object]) -> float:
    """Return the CPU that something takes, the median of nine times."""
    taken = []
    for _ in range(9):
        started_s = time.process_time()
        act()
        taken.append(time.process_time() - started_s)
    return statistics.median(taken)


def main() -> None:
    """Print the times."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    asked = observations([1, 2, 4, 8, 16, 32, 64], NUM_ASKED)
    asked = asked.drop(columns="step_time_s")
    for name, sizes, number in (
        ("8 nodes", [1, 2, 4, 8, 16, 32], 1000),
        ("1 node", [1, 2, 4], 1000),
        ("8 nodes, 5 observations", [1, 4, 16, 32], 5),
    ):
        rows = observations(sizes, number)
        law = StepTimeLaw.fit(rows)
        fit_s = cpu_s(lambda rows=rows: StepTimeLaw.fit(rows))
        predict_s = cpu_s(lambda law=law: law.predict(asked))
        print(f"{name}: fit {fit_s:.3f} s, {NUM_ASKED} predictions {predict_s:.3f} s")


if __name__ == "__main__":
    main()
