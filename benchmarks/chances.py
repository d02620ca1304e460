"""How often choices hold that are said to hold with some chance.

    python benchmarks/chances.py [--data DIR] [--generated 1] [--each 6] [--rows CSV]

Part of a measured table is imported as a user would, and asked for random deadlines and
budgets at a random confidence, ``--each`` of either: a deadline between 0.9 times the
least time of the table within the batches seen and the least that was measured, so
that measured rows miss it; a budget of 1.02 to 2 times the fewest device-hours. Known
are, of dense tables, one node, up to two or four nodes, or five probes; of others all
device counts but the largest, or but the two largest. What is said of the chosen row is
held against the rest of the table (``answer_truths.py``), unless it was measured: its
row is all that a published table knows of it, so that it would be held against itself.
DIR holds published tables, as in ``second_node.py``; ``--generated N`` adds N machines
of each kind.

Printed by tenths of what is said: the mean of what is said, the share that held, with
as many answers; the Brier score; and both with the best line in the log odds of rows
that were not measured, fitted to all and leaving each source out. CSV gets the answers.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import pandas as pd
from answer_truths import (
    CONFIGURATION,
    Curve,
    Published,
    configuration,
    generated_curves,
    published_curves,
    views,
)
from answers import OTHER, Asked, unlimited
from far import published
from imported_tables import COLUMNS
from scipy.optimize import minimize
from scipy.special import expit, logit

from scalelab.inputs.outcome import Support
from scalelab.recommend.answer.recommendation import Recommendation

CONFIDENCES = (0.5, 0.95)
PUBLISHED = {ours: theirs for theirs, ours in COLUMNS.items()}
SURE = 5e-3  # draws are few: a chance nearer to 0 or 1 than this is taken for this


def sparse_curves(data: Path) -> Iterator[tuple[str, Curve]]:
    """Yield source and curve of tables that measured few configurations."""
    table = pd.read_csv(data / "throughput.csv")
    dense = {curve.name for curve in published_curves(table)}
    for name, rows in table[~table["curve_id"].isin(dense)].groupby("curve_id"):
        if rows["gpus"].nunique() > 2:
            source = str(rows["source"].iloc[0])
            yield source, Published(name=str(name), rows=rows.reset_index(drop=True))
    for number, (source, rows) in enumerate(published(data / "far", fewest=3)):
        named = rows.rename(columns=PUBLISHED).reset_index(drop=True)
        total = named[["gpus", "local_batch", "accum_steps"]].prod(axis=1)
        named = named.assign(workload=source, gpu_type=source, global_batch=total)
        yield source, Published(name=f"{source} {number}", rows=named)


def known_parts(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what is known of a curve, by name."""
    sizes = sorted(rows["gpus"].unique())
    if len(rows) > 6 * len(sizes):
        return views(rows)
    parts = {
        f"all but {count}": sizes[-1 - count] for count in (1, 2)[: len(sizes) - 2]
    }
    found = {name: rows[rows["gpus"] <= largest] for name, largest in parts.items()}
    return {name: seen for name, seen in found.items() if len(seen) > 1}


def questions(curve: Curve, each: int) -> Iterator[tuple[str, Asked, float]]:
    """Yield the name of what is known, what is asked, and how sure it must be."""
    for view, asked in unlimited(curve, known_parts(curve.rows)):
        name = f"{curve.name} {view}".encode()
        rng = np.random.default_rng(int(hashlib.sha256(name).hexdigest()[:12], 16))
        measured = asked.inside.merge(asked.seen[CONFIGURATION].drop_duplicates())
        for limited in list(OTHER) * each:
            least = float(asked.inside[limited].min())
            ends = (1.02 * least, 2.0 * least)
            if limited == "hours":
                ends = (0.9 * least, max(1.1 * least, float(measured[limited].min())))
            limit = float(np.exp(rng.uniform(*np.log(ends))))
            limits = replace(asked, limited=limited, limit=limit)
            yield view, limits, float(rng.uniform(*CONFIDENCES))


def answers(job: tuple[str, Curve, int]) -> pd.DataFrame:
    """Return what is said of each chosen row, and the share of runs that held."""
    source, curve, each = job
    warnings.simplefilter("ignore")
    found = []
    with tempfile.TemporaryDirectory() as home:
        for view, asked, sure in questions(curve, each):
            answer = asked.answer(asked.seen, Path(home), confidence=sure)
            if not isinstance(answer, Recommendation):
                continue
            at = configuration(answer.chosen)
            amounts = asked.amounts(at)
            is_measured = answer.chosen.basis == Support.MEASURED
            if amounts is None or (is_measured and isinstance(curve, Published)):
                continue
            found.append(
                {
                    "source": source,
                    "curve": curve.name,
                    "view": view,
                    "basis": str(answer.chosen.basis),
                    "meets": answer.meets_constraints,
                    "said": answer.chosen.probability,
                    "held": float(np.mean(amounts[asked.limited] <= asked.limit)),
                }
            )
    return pd.DataFrame(found)


def mapped(said: pd.Series, line: np.ndarray) -> np.ndarray:
    """Return chances whose log odds are a line in those that were said."""
    return np.asarray(expit(line[0] + line[1] * logit(said.clip(SURE, 1 - SURE))))


def best_line(rows: pd.DataFrame) -> np.ndarray:
    """Return the line in the log odds that makes what held most probable."""

    def loss(line: np.ndarray) -> float:
        chance = mapped(rows["said"], line)
        held = rows["held"].to_numpy()
        return -float((held * np.log(chance) + (1 - held) * np.log1p(-chance)).mean())

    return minimize(loss, [0.0, 1.0], bounds=[(-3, 3), (0.1, 5)]).x


def brier(said: pd.Series | np.ndarray, rows: pd.DataFrame) -> float:
    """Return the mean square of what is said of rows minus whether they held."""
    return float(((said - rows["held"]) ** 2).mean())


def by_tenths(said: pd.Series | np.ndarray, rows: pd.DataFrame) -> None:
    """Print what is said and what held, and the Brier score."""
    tenth = np.minimum(np.floor(np.asarray(said) * 10), 9).astype(int)
    table = (
        rows.assign(said=said)
        .groupby(tenth)
        .agg(said=("said", "mean"), held=("held", "mean"), answers=("held", "size"))
    )
    print(f"{table.round(3).to_string()}\nBrier {brier(said, rows):.4f}")


def show(rows: pd.DataFrame) -> None:
    """Print the reliability of chances, and what a map of those unmeasured mends."""
    by_tenths(rows["said"], rows)
    means = rows.groupby("basis")[["said", "held"]].mean()
    print(means.join(rows.groupby("basis").size().rename("n")).round(3).to_string())
    is_open = rows["basis"] != str(Support.MEASURED)
    guessed = rows[is_open]
    line = best_line(guessed)
    print(f"unmeasured: log odds {line[0]:.2f} + {line[1]:.2f} times what is said")
    by_tenths(np.where(is_open, mapped(rows["said"], line), rows["said"]), rows)
    if guessed["source"].nunique() < 2:
        return
    left_out = guessed["said"].copy()
    for source in guessed["source"].unique():
        is_own = guessed["source"] == source
        own = guessed[is_own]
        left_out[is_own] = mapped(own["said"], best_line(guessed[~is_own]))
        scores = (brier(own["said"], own), brier(left_out[is_own], own))
        print(f"{source}: Brier {scores[0]:.4f}, by the others' line {scores[1]:.4f}")
    scores = (brier(guessed["said"], guessed), brier(left_out, guessed))
    print(f"all unmeasured: Brier {scores[0]:.4f}, left out {scores[1]:.4f}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--generated", type=int, default=0, metavar="N")
    parser.add_argument("--each", type=int, default=6)
    parser.add_argument("--rows", type=Path)
    asked = parser.parse_args()
    jobs: list[tuple[str, Curve, int]] = []
    if asked.data:
        dense = published_curves(pd.read_csv(asked.data / "throughput.csv"))
        jobs = [(curve.name.split("|")[0], curve, asked.each) for curve in dense]
        fewer = max(1, asked.each // 3)  # of small tables there are many
        jobs += [(*each, fewer) for each in sparse_curves(asked.data)]
    made = generated_curves(asked.generated)
    jobs += [("generated", curve, asked.each) for curve in made]
    if not jobs:
        parser.error("nothing to judge: give --data DIR, --generated N, or both")
    with Pool(2) as pool:
        found = []
        for job, rows in zip(jobs, pool.imap(answers, jobs), strict=True):
            found.append(rows)
            print(job[1].name, len(rows), file=sys.stderr, flush=True)
    table = pd.concat(found, ignore_index=True)
    if asked.rows:
        table.to_csv(asked.rows, index=False)
    show(table)


if __name__ == "__main__":
    main()
