"""What a law for step time is asked on published tables, each a pure split of a curve.

A curve is one workload on one kind of device; its rows are configurations. ``dense``
curves have many local batches, the others only device counts.

T1, T2, T3: at most four, one, two nodes, then more. T4: a random 30%, then the rest.
T5: five probes spread over at most two nodes, then the rest. T6: all but the most
devices, then these, on curves that are not dense. T7: the smaller half of the local
batches, then the larger. T8: three probes, then the rest. With full curves of the other
workloads on the machine: T8, and T2m, T3m, T5m as T2, T3, T5. With that of the same
workload on another machine: T3w, T5w, T7w as T3, T5, T7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

MANY_ROWS = 15


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows to learn from and rows to predict, of one curve unless ``others``."""

    task: str
    curve_id: str
    train: pd.DataFrame
    query: pd.DataFrame
    others: pd.DataFrame | None = None


def cases(table: pd.DataFrame) -> list[Case]:
    """Return every case of a table."""
    sizes = table.groupby("curve_id")["step_time_s"].transform("size")
    dense = sizes.groupby(table["source"]).transform("median") >= MANY_ROWS
    found: list[Case] = []
    for _, curve in table[dense].groupby("curve_id"):
        machine = curve[["source", "gpu_type"]].iloc[0]
        beside = dense & (table["gpu_type"] == machine["gpu_type"])
        beside &= (table["source"] == machine["source"]) & ~table.index.isin(
            curve.index
        )
        known = _dense_cases(curve.reset_index(drop=True), table[beside])
        found += known
        if "workload" in table.columns:
            elsewhere = dense & (table["source"] == machine["source"])
            elsewhere &= table["gpu_type"] != machine["gpu_type"]
            elsewhere &= table["workload"] == curve["workload"].iloc[0]
            found += _known_elsewhere(known, table[elsewhere])
    for name, curve in table[~dense].groupby("curve_id"):
        largest = curve["gpus"] == curve["gpus"].max()
        found += _case("T6", str(name), curve, ~largest)
    return found


def _case(
    task: str,
    name: str,
    curve: pd.DataFrame,
    seen: pd.Series,
    others: pd.DataFrame | None = None,
) -> Iterator[Case]:
    if (seen.sum() >= 2 or others is not None) and not seen.all():
        yield Case(
            task=task,
            curve_id=name,
            train=curve[seen],
            query=curve[~seen],
            others=others,
        )


def _known_elsewhere(found: list[Case], others: pd.DataFrame) -> Iterator[Case]:
    """Yield cases again, their workload measured on other machines."""

    def named(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(curve_id=table["workload"])

    for case in found if len(others) else ():
        if case.task in ("T3", "T5", "T7"):
            yield replace(
                case,
                task=f"{case.task}w",
                train=named(case.train),
                query=named(case.query),
                others=named(others),
            )


def _dense_cases(curve: pd.DataFrame, others: pd.DataFrame) -> list[Case]:
    name = str(curve["curve_id"].iloc[0])
    nodes, batch = curve["nodes"], curve["local_batch"]
    batches = np.sort(batch.unique())
    five = curve.index.isin(_nearest(curve, _five_probes(curve, batches)))
    three = curve.index.isin(_nearest(curve, _three_probes(curve, batches)))
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:12], 16) % 2**32
    order = np.random.default_rng(seed).permutation(len(curve))
    some = np.isin(np.arange(len(curve)), order[: max(4, round(0.3 * len(curve)))])
    splits = {
        "T1": nodes <= 4,
        "T2": nodes == 1,
        "T3": nodes <= 2,
        "T4": pd.Series(some),
        "T5": pd.Series(five),
    }
    if len(batches) >= 4:
        splits["T7"] = batch <= batches[len(batches) // 2 - 1]
    found = [c for task, seen in splits.items() for c in _case(task, name, curve, seen)]
    if len(others):
        splits = {
            "T2m": nodes == 1,
            "T3m": nodes <= 2,
            "T5m": pd.Series(five),
            "T8": pd.Series(three),
        }
        for task, seen in splits.items():
            found += _case(task, name, curve, seen, others)
    return found


Probe = tuple[int, int, float]


def _five_probes(curve: pd.DataFrame, batches: np.ndarray) -> list[Probe]:
    low, middle, high = batches[0], batches[len(batches) // 2], batches[-1]
    full = int(curve.loc[curve["nodes"] == 1, "gpus"].max())
    two = curve.loc[curve["nodes"] == 2, "gpus"]
    if len(two):
        most = int(two.max())
        last: list[Probe] = [(1, full, middle), (2, most, low), (2, most, high)]
    else:
        last = [(1, 2, middle), (1, full, low), (1, full, high)]
    return [(1, 1, low), (1, 1, high), *last]


def _three_probes(curve: pd.DataFrame, batches: np.ndarray) -> list[Probe]:
    low, middle, high = batches[0], batches[len(batches) // 2], batches[-1]
    full = int(curve.loc[curve["nodes"] == 1, "gpus"].max())
    two = curve.loc[curve["nodes"] == 2, "gpus"]
    if len(two):
        return [(1, 1, low), (1, full, high), (2, int(two.max()), middle)]
    return [(1, 1, low), (1, 2, high), (1, full, middle)]


def _nearest(curve: pd.DataFrame, probes: list[Probe]) -> list[int]:
    """Return the rows that come closest to the probes in local batch."""
    found = []
    for nodes, devices, batch in probes:
        there = curve[(curve["nodes"] == nodes) & (curve["gpus"] == devices)]
        found.append(int((there["local_batch"] - batch).abs().idxmin()))
    return found
