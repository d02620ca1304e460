"""How well the law reaches beyond the measured devices, beside two rules of thumb.

    python benchmarks/far.py [--data DIR] [--curves 8]

The smaller device counts of a curve are known and the larger ones predicted: on made-up
curves to 512 devices, and on the published tables of DIR (``workload, gpu_type, gpus,
nodes, local_batch, accum_steps, samples_per_s``, and where there are some ``setting``,
``precision`` and ``global_batch``). A rule of thumb keeps the last efficiency, or the
gain of the last doubling; its intervals are the quantiles of its errors on all other
families or tables.

The made-up families, with ``l`` and ``j`` drawn per curve and times that scatter by 3%
from placement to placement and by 1.5% from row to row:

ring: one ring, whose exchange costs more once it crosses between nodes.
tree: an exchange that grows with the logarithm of the devices.
switch: a ring in the node, a jump to the second node and another beyond 16 nodes.
slowest: a ring, and waiting for the slowest of n (about the root of 2 ln n deviations).
linear: a ring, and a latency for each rank.
hier: a ring in the node and one between nodes.
feed: a source of samples that all devices share, met somewhere between 24 and 600.

Printed by family and by distance (largest known count to asked count): the mean of
ln(true / predicted) and of its size, the share inside the 50, 80 and 95% intervals and
their interval scores (Gneiting and Raftery 2007), in logs.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from scalelab.laws.step_time.law import StepTimeLaw

FAMILIES = ("ring", "tree", "switch", "slowest", "linear", "hier", "feed")
PER_NODE, SIZES, KNOWN = 8, 2 ** np.arange(10), (16, 32, 64)
PLACEMENT_SCATTER, SCATTER, PASS_S = 0.03, 0.015, 0.3
MASSES = (0.5, 0.8, 0.95)
LAW = "law"
KEY = ["workload", "gpu_type", "framework", "setting", "precision", "splits"]
UNSAID_BATCH = 64  # of tables that publish none: a unit, the same for all their rows
# two cells of the source are typing errors
MISTYPED = {"workload": "DeepLabV3P", "framework": "NGC PyTorch", "gpus": 32}


def ring(members: float) -> float:
    """Return the volume of a ring all-reduce, relative to two members."""
    return 2 * (members - 1) / members


def made_up(family: str, seed: int) -> pd.DataFrame:
    """Draw one curve of a family."""
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    exchange, jump = np.exp(rng.normal((-1.5, -1.0), (0.6, 0.7)))
    deviation, latency = 0.02 * rng.uniform(0.5, 5), 0.004 * np.exp(rng.normal(-0.5))
    feed, fixed = np.exp(rng.uniform(np.log(24), np.log(600))), rng.uniform(0.02, 0.4)

    def lost(n: int, m: int) -> float:
        waiting = deviation * math.sqrt(2 * math.log(n))
        across = 0.6 * jump * (1.6 if m > 16 else 1) * (m > 1)
        return {
            "ring": 0.5 * exchange * ring(n) * (1 + jump * (m > 1)),
            "tree": 0.6 * exchange * math.log2(n) * (1 if m > 1 else 0.5),
            "switch": 0.5 * exchange * ring(n / m) + across,
            "slowest": waiting + 0.4 * exchange * ring(n),
            "linear": 0.5 * exchange * ring(n) + latency * n,
            "hier": 0.3 * exchange * ring(n / m) + 0.4 * jump * ring(m),
            "feed": max(0.3 * exchange * ring(n), n / feed - 1),
        }[family]

    rows = []
    batches = (8, 32) if rng.random() < 0.6 else (16,)
    for n in SIZES.tolist():
        m, luck = -(-n // PER_NODE), PLACEMENT_SCATTER * rng.standard_normal()
        for batch in batches:
            work = fixed + (1 - fixed) * batch / 16 + lost(n, m)
            noise = np.exp(luck + SCATTER * rng.standard_normal())
            rows.append((n, m, batch, 1, PASS_S * work * noise))
    names = "world_size num_nodes local_batch_size gradient_accumulation_steps"
    return pd.DataFrame(rows, columns=[*names.split(), "step_time_s"])


def published(folder: Path, fewest: int = 4) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the curves of the tables that have so many device counts."""
    for path in sorted(folder.glob("*.csv")):
        table = pd.read_csv(path)
        if not {"gpus", "nodes", "samples_per_s", "local_batch"} <= set(table):
            continue
        if table["local_batch"].isna().all():
            table["local_batch"] = UNSAID_BATCH
        table = table.dropna(subset=["gpus", "nodes", "samples_per_s", "local_batch"])
        for name in ("framework", "setting", "precision"):
            table[name] = table[name].fillna("") if name in table else ""
        is_wrong = np.all([table[n] == value for n, value in MISTYPED.items()], axis=0)
        table = table[~is_wrong].assign(splits="")
        accumulation = table.get("accum_steps", pd.Series(1.0, table.index)).fillna(1)
        table["accum_steps"] = accumulation
        if "global_batch" in table:
            grows = table.groupby(KEY)["global_batch"].transform("nunique") > 1
            splits = table["local_batch"].astype(str) + " x " + accumulation.astype(str)
            table["splits"] = splits.where(grows, "")
        for _, rows in table.groupby(KEY):
            if rows["gpus"].nunique() >= fewest:
                yield path.stem, _in_our_columns(rows)


def _in_our_columns(rows: pd.DataFrame) -> pd.DataFrame:
    replicas = rows["local_batch"] * rows["accum_steps"] * rows["gpus"]
    counts = {
        "world_size": rows["gpus"],
        "num_nodes": rows["nodes"],
        "local_batch_size": rows["local_batch"],
        "gradient_accumulation_steps": rows["accum_steps"],
    }
    return (
        pd.DataFrame(counts)
        .astype(int)
        .assign(step_time_s=replicas / rows["samples_per_s"])
    )


def by_rules(seen: pd.DataFrame, asked: pd.DataFrame) -> dict[str, pd.Series]:
    """Return log step times by each rule of thumb, by the index of what is asked."""
    batches = ["local_batch_size", "gradient_accumulation_steps"]
    samples = seen[batches].prod(axis=1)
    speed = seen["world_size"] * samples / seen["step_time_s"]
    found: dict[str, list[pd.Series]] = {"last efficiency": [], "last gain": []}
    for batch, alike_asked in asked.groupby(asked[batches].prod(axis=1)):
        is_alike = samples == batch
        if seen.loc[is_alike, "world_size"].nunique() < 2:
            is_alike = samples > 0
        speeds = np.log(speed[is_alike].groupby(seen["world_size"]).median())
        last, faster, gain = speeds.index[-1], speeds.iloc[-1], 1.0
        if len(speeds) > 1:
            gain = (faster - speeds.iloc[-2]) / math.log(last / speeds.index[-2])
        size = alike_asked["world_size"]
        for rule, power in zip(found, (1.0, gain), strict=True):
            reached = faster + power * np.log(size / last)
            found[rule].append(np.log(size * batch) - reached)
    return {rule: pd.concat(parts) for rule, parts in found.items()}


def predicted(curve: pd.DataFrame, known: int) -> pd.DataFrame:
    """Return what law and rules say of the counts beyond ``known``, one row each."""
    is_known = curve["world_size"] <= known
    seen, rest = curve[is_known], curve[~is_known]
    law = StepTimeLaw.fit(seen)
    answers = [law.predict(rest, interval=mass) for mass in MASSES]
    ends = {
        f"{end}{100 * mass:.0f}": np.log(answer[f"step_time_{end}_s"])
        for mass, answer in zip(MASSES, answers, strict=True)
        for end in ("lo", "hi")
    }
    found = {LAW: pd.DataFrame({"point": np.log(answers[0]["step_time_s"]), **ends})}
    for rule, point in by_rules(seen, rest).items():
        found[rule] = pd.DataFrame({"point": point})
    known_of = {
        "true": np.log(rest["step_time_s"]),
        "beyond": rest["world_size"] / known,
    }
    return pd.concat(each.assign(by=by, **known_of) for by, each in found.items())


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """Return errors, coverage and interval scores of each row."""
    rows = rows.reset_index(drop=True)
    rows["signed"] = rows["true"] - rows["point"]
    for (source, rule), own in rows[rows["by"] != LAW].groupby(["source", "by"]):
        others = rows[(rows["by"] == rule) & (rows["source"] != source)]
        for mass in MASSES:
            ends = zip(("lo", "hi"), ((1 - mass) / 2, (1 + mass) / 2), strict=True)
            for end, level in ends:
                moved = own["point"] + others["signed"].quantile(level)
                rows.loc[own.index, f"{end}{100 * mass:.0f}"] = moved
    for mass in MASSES:
        name = f"{100 * mass:.0f}"
        lo, hi, true = rows[f"lo{name}"], rows[f"hi{name}"], rows["true"]
        missed = np.maximum(lo - true, 0) + np.maximum(true - hi, 0)
        rows[f"held {name}"] = missed == 0
        rows[f"score {name}"] = hi - lo + 2 / (1 - mass) * missed
    rows["error"] = rows["signed"].abs()
    rows["distance"] = pd.cut(rows["beyond"], [1, 2, 4, np.inf], labels=["2", "4", "+"])
    return rows


def show(title: str, rows: pd.DataFrame) -> None:
    """Print the figures, means over curves, by source and by distance."""
    names = ["signed", "error", *(f"held {100 * mass:.0f}" for mass in MASSES)]
    names += [f"score {100 * mass:.0f}" for mass in MASSES]
    rows = scored(rows)
    for by in ("source", "distance"):
        groups = rows.groupby([by, "by", "curve"], observed=True)[names].mean()
        table = groups.groupby([by, "by"], observed=True).mean()
        print(f"\n{title}, by {by}\n{table.round(3).to_string()}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--curves", type=int, default=8)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    for family in FAMILIES:
        for seed in range(arguments.curves):
            curve = made_up(family, seed)
            found += [
                predicted(curve, known).assign(source=family, curve=f"{seed} {known}")
                for known in KNOWN
            ]
    show("made up", pd.concat(found))
    if arguments.data:
        found = []
        for number, (source, curve) in enumerate(published(arguments.data)):
            sizes = sorted(curve["world_size"].unique())
            known = sizes[max(2, math.ceil(len(sizes) / 2)) - 1]
            answered = predicted(curve, known if len(sizes) > 4 else sizes[-2])
            found.append(answered.assign(source=source, curve=str(number)))
        show("published", pd.concat(found))


if __name__ == "__main__":
    main()
