"""How many runs a search needs to the learning rate of each batch.

    scalelab sweep benchmarks/rate_grids/digits.yaml
    python benchmarks/tuned_rates.py runs/rates-digits

A sweep by brute force, every rate with every seed at every batch, is the truth: losses
after equally many samples, between rates by interpolation of their logarithms. Against
it search the bracket of ``rule: tuned``, Optuna's TPE and random rates, each from one
run to the next, and the rules say one rate each from the best of the smallest batch.
Counted are runs until the best so far is within the scatter of seeds of the grid's
best: over starts, or seeds, the median, the share that came there within 12 runs, and
the share whose choice in the end, for Optuna after 47 runs, is there.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator
from statistics import median, stdev

import numpy as np
import optuna

import scalelab
from scalelab.experiment.rates import LearningRateRule, scaled_rate
from scalelab.search.tuned_rates import best_place, first_rate, rate_at, wanted_runs

MOST_RUNS = 12
STARTS = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the best rate of the smallest batch
NUM_SEEDS = 20
Search = Iterator[tuple[float, int]]
"""Yields the rate that is best so far and the number of runs."""


class Table:
    """The losses of one batch by rate and seed."""

    def __init__(self, losses: dict[float, list[float]]) -> None:
        self.rates = sorted(losses)
        logs = np.log([losses[rate] for rate in self.rates])
        self._by_seed, self._medians = logs.T, np.median(logs, axis=1)
        best = int(self._medians.argmin())
        self.best_rate = self.rates[best]
        self.scatter = max(stdev(logs[best].tolist()), 0.01)
        self._least = self._medians[best]

    def cost(self, rate: float, seed: int) -> float:
        """Return the loss of a run."""
        logs = self._by_seed[seed % len(self._by_seed)]
        return math.exp(np.interp(math.log(rate), np.log(self.rates), logs))

    def worse(self, rate: float) -> float:
        """Return the logarithm of a rate's median loss over that of the grid's best."""
        log = np.interp(math.log(rate), np.log(self.rates), self._medians)
        return float(log - self._least)

    def is_found(self, rate: float) -> bool:
        """Tell whether a rate is as good as the grid's best, as far as seeds tell."""
        return self.worse(rate) <= self.scatter


def bracketed(table: Table, first: float, num_seeds: int = 3) -> Search:
    """Search as ``rule: tuned`` does."""
    costs: dict[int, list[float]] = {}
    while wanted := wanted_runs(costs, num_seeds):
        for place, seed in wanted:
            cost = table.cost(rate_at(first, place), seed)
            costs.setdefault(place, []).append(cost)
            yield rate_at(first, best_place(costs)), sum(map(len, costs.values()))


def by_optuna(table: Table, sampler: optuna.samplers.BaseSampler) -> Search:
    """Search over the range of the grid."""
    study = optuna.create_study(sampler=sampler)
    low, high = table.rates[0], table.rates[-1]
    for number in range(1, 4 * MOST_RUNS):
        trial = study.ask()
        rate = trial.suggest_float("rate", low, high, log=True)
        study.tell(trial, table.cost(rate, number))
        yield study.best_params["rate"], number


def judged(table: Table, search: Search) -> tuple[float, bool]:
    """Return the run at which the best so far is first good, and whether the last is.

    What one run found by luck of its seed, a search may leave or keep.
    """
    first, rate = math.inf, table.rates[0]
    for rate, number in search:
        if table.is_found(rate):
            first = min(first, number)
    return first, table.is_found(rate)


def tables_of(run: str, metric: str) -> dict[int, Table]:
    """Return the table of each batch of a sweep, by the last value of a metric."""
    loaded = scalelab.load(run)
    streams = loaded.streams()
    last = streams.dropna(subset=[metric]).sort_values("samples")
    last = last.groupby("trial_id")[metric].last()
    rows = loaded.observations.set_index("trial_id").join(last)
    found: dict[int, dict[float, list[float]]] = {}
    for row in rows.sort_values("seed").to_dict("records"):
        of_batch = found.setdefault(int(row["global_batch_size"]), {})
        of_batch.setdefault(float(row["learning_rate"]), []).append(row[metric])
    return {batch: Table(found[batch]) for batch in sorted(found)}


def chained(
    tables: dict[int, Table], base: float
) -> dict[int, tuple[tuple[float, bool], int]]:
    """Search batch after batch; return what is judged of each, and all its runs."""
    solved: dict[int, float] = {}
    counts = {}
    smallest = min(tables)
    for batch, table in tables.items():
        first = first_rate(solved or {smallest: base}, batch)
        *_, (rate, in_all) = bracketed(table, first)
        counts[batch] = judged(table, bracketed(table, first)), in_all
        solved[batch] = rate
    return counts


def shown(found: list[tuple[float, bool]]) -> str:
    """Write the median of first good runs, and the shares within the most and last."""
    within = sum(first <= MOST_RUNS for first, _ in found) / len(found)
    middle = median(first for first, _ in found)
    words = f"over {4 * MOST_RUNS}" if math.isinf(middle) else f"{middle:.0f}"
    ends = sum(is_good for _, is_good in found) / len(found)
    return f"{words:8} {within:4.0%} within {MOST_RUNS}, {ends:4.0%} end there"


def main() -> None:
    """Print the table of a sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--metric", default="val_loss")
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tables = tables_of(asked.run, asked.metric)
    smallest = tables[min(tables)]
    starts = [chained(tables, start * smallest.best_rate) for start in STARTS]
    samplers: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
        "TPE": lambda seed: optuna.samplers.TPESampler(seed=seed),
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    }
    for batch, table in tables.items():
        print(
            f"batch {batch}: best rate {table.best_rate:g}, scatter of seeds "
            f"{table.scatter:.1%}"
        )
        counts = [start[batch][0] for start in starts]
        in_all = median(start[batch][1] for start in starts)
        print(f"  rule: tuned  {shown(counts)}, {in_all:.0f} runs in all")
        for name, sampler in samplers.items():
            seeds = random.Random(batch).sample(range(10_000), NUM_SEEDS)
            counts = [judged(table, by_optuna(table, sampler(seed))) for seed in seeds]
            print(f"  {name:11}  {shown(counts)}")
        for rule in ("none", "sqrt", "linear"):
            rate = scaled_rate(
                smallest.best_rate,
                rule=LearningRateRule(rule),
                at_batch=min(tables),
                global_batch_size=batch,
            )
            verdict = "holds" if table.is_found(rate) else "does not hold"
            loss = math.exp(table.worse(rate))
            print(f"  {rule:11}  {rate:g} {verdict}, loss {loss:.2f} of the best")


if __name__ == "__main__":
    main()
