"""What the law says of several nodes where it has seen one, beside two rules of thumb.

    python benchmarks/second_node.py --data DIR [--fit]

DIR holds ``throughput.csv`` (see ``laws.py``), and ``far/`` tables like those of
``far.py``. Of every curve that was measured on one node and on several the rows of one
node are known. Each source weighs alike, and each curve within it. ``signed`` is the
mean of ln(true / predicted) and ``error`` that of its size, ``width`` the upper end of
the 80% interval over the lower one (geometric mean), ``held`` the share inside. The
rules keep the last efficiency, or the gain of the last doubling.

``--fit`` gives the two figures of the belief in ``laws/step_time/ensemble.py``, the
passes that an exchange between two full nodes takes and the deviation of their log:
each source is judged with the pair that has the best interval score on all others.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from far import by_rules, published
from score_adapter import observations

from scalelab.laws.step_time import ensemble
from scalelab.laws.step_time.law import StepTimeLaw

PASSES, SPREADS = (0.2, 0.3, 0.4, 0.5, 0.7), (0.8, 1.0, 1.3, 1.6)
FIGURES = ["signed", "error", "last efficiency", "last gain", "width", "held", "score"]


def curves(data: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield source and rows of the curves on one node and on several."""
    table = pd.read_csv(data / "throughput.csv")
    near = (
        (str(rows["source"].iloc[0]), observations(rows))
        for _, rows in table.groupby("curve_id")
    )
    for source, rows in itertools.chain(near, published(data / "far", fewest=2)):
        nodes = rows["num_nodes"]
        if nodes.min() == 1 and nodes.max() > 1:
            yield source, rows


def judged(source: str, rows: pd.DataFrame) -> dict[str, object]:
    """Return the figures of one curve."""
    seen, rest = rows[rows["num_nodes"] == 1], rows[rows["num_nodes"] > 1]
    answer = StepTimeLaw.fit(seen).predict(rest, interval=0.8)
    true = rest["step_time_s"].to_numpy()
    names = ("step_time_s", "step_time_lo_s", "step_time_hi_s")
    mid, lo, hi = (answer[name].to_numpy() for name in names)
    missed = np.maximum(np.log(lo / true), 0) + np.maximum(np.log(true / hi), 0)
    rules = {
        rule: (point - np.log(rest["step_time_s"])).abs().mean()
        for rule, point in by_rules(seen, rest).items()
    }
    return {
        "source": source,
        "signed": np.log(true / mid).mean(),
        "error": np.abs(np.log(true / mid)).mean(),
        **rules,
        "width": np.log(hi / lo).mean(),
        "held": (missed == 0).mean(),
        "score": (np.log(hi / lo) + 10 * missed).mean(),
    }


def by_source(found: list[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """Return the figures of each source, means over its curves."""
    table = pd.DataFrame([judged(*each) for each in found]).groupby("source")
    return table[FIGURES].mean().assign(curves=table.size())


def fitted(found: list[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """Return each source's figures with the belief that is best on all others."""
    tables = {}
    for pair in itertools.product(PASSES, SPREADS):
        ensemble._PASSES, ensemble._SPREAD_OF_PASSES = pair
        tables[pair] = by_source(found)
    scores = pd.DataFrame({pair: table["score"] for pair, table in tables.items()})
    print(f"best on all sources: {scores.mean().idxmin()}")
    rows = []
    for source in scores.index:
        pair = scores.drop(source).mean().idxmin()
        rows.append(tables[pair].loc[source].rename(f"{source} {pair}"))
    return pd.DataFrame(rows)


def show(title: str, table: pd.DataFrame) -> None:
    """Print figures, widths as factors."""
    whole = pd.concat([table, table.mean().to_frame("mean").T])
    whole["width"] = np.exp(whole["width"])
    print(f"\n{title}\n{whole.round(3).to_string()}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fit", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = [*curves(arguments.data)]
    show("as shipped", by_source(found))
    if arguments.fit:
        show("left out, with the pair that is best on all others", fitted(found))


if __name__ == "__main__":
    main()
