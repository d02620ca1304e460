"""Doubts about a table: what is possible, but more likely read in a wrong way."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

from scalelab.inputs.numerals import counted, duration
from scalelab.inputs.problems import shown
from scalelab.inputs.wording import Option
from scalelab.records.tables.columns import Matching
from scalelab.records.tables.curves import Curves, ImportedRow, pooled_settings
from scalelab.records.tables.file import ForeignTable, lines_listed
from scalelab.records.tables.names import EPOCH_SIZES, plain
from scalelab.records.tables.values import plain_number

_MOST_ON_NODE = 16
_WIDE_NODES = re.compile(r"nvl\d*|gb[23]00|grace", re.IGNORECASE)
_APART = 100.0
_APART_ACROSS_NODES = 500.0  # slow links explain a hundredfold, no thousandfold
_RISES = 1.15
_FALLS = 0.7  # as an epoch's times fall at any fair efficiency, and a step's never
_MOST_TOKENS_PER_DEVICE_S = 1e6


def doubtful(
    table: ForeignTable,
    matching: Matching,
    curves: Curves,
    rows: Sequence[ImportedRow],
    decimal: str,
) -> tuple[list[str], list[str]]:
    """Return what is refused unless it is accepted, the gravest first, and the rest.

    Each says what is doubted, with name and value; the rule; what to do.
    """
    refused = [
        *_pooled(curves, matching),
        *_times_apart(curves),
        *_falling_times(curves, matching),
        *_flat_throughput(curves, matching),
        *_tokens_as_samples(rows, matching),
        *_devices_of_a_node(rows, matching),
        *_crowded_nodes(rows),
    ]
    said = [
        *_curves_apart(curves),
        *_single_rows(curves),
        *_beyond_epoch(table, rows, decimal),
    ]
    if not curves.rows:
        said.append(
            "none of its rows tells a time, so nothing can be recommended from them. "
            "Add rows that ran."
        )
    return refused, said


def _pooled(curves: Curves, matching: Matching) -> Iterator[str]:
    found = pooled_settings(curves, matching.unused)
    if not found:
        return
    first, *others = found
    likewise = ", ".join(shown(each.name) for each in others)
    more = f" Likewise {likewise}." if others else ""
    yield (
        f"{first.sentence}. Rows of different settings are no repeats of one another."
        f"{more} Say {Option('axis', [first.name])} if it is a setting, or "
        f"{Option('ignore', [first.name])} if the rows are repeats."
    )


def _times_apart(curves: Curves) -> Iterator[str]:
    """Doubt times of a curve that are further apart than batches and links explain.

    Compared are repeats, the neighbouring batches on the same devices, and the
    neighbouring numbers of devices at the same batch.
    """
    for rows in curves.rows.values():
        by_configuration: dict[tuple[int, int, int], list[ImportedRow]] = {}
        for row in sorted(rows, key=lambda row: row.time_s):
            at = (row.values["num_nodes"], row.values["world_size"], row.work)
            by_configuration.setdefault(at, []).append(row)
        middle = {at: same[len(same) // 2] for at, same in by_configuration.items()}
        of_devices = [middle[at] for at in sorted(middle)]
        of_work = [middle[at] for at in sorted(middle, key=lambda at: (at[2], *at[:2]))]
        compared = (
            *((same[0], same[-1]) for same in by_configuration.values()),
            *pairwise(of_devices),
            *pairwise(of_work),
        )
        for pair in compared:
            fast, slow = sorted(pair, key=lambda row: row.time_s)
            factor = slow.time_s / fast.time_s
            if factor >= _explained(slow, fast):
                yield (
                    f"step_time_s={slow.time_s:g} in line {slow.line} is {factor:,.0f} "
                    f"times the {fast.time_s:g} of line {fast.line}, of the same "
                    f"curve: {_configured(slow)}, against {_configured(fast)}. Times "
                    "are in seconds; milliseconds may stand among them. Correct the "
                    "cells, or name the column by its unit, such as step_time_ms."
                )
                return


def _explained(slow: ImportedRow, fast: ImportedRow) -> float:
    """Return by what factor more samples and links between nodes may slow a row."""
    has_more_nodes = slow.values["num_nodes"] > fast.values["num_nodes"]
    apart = _APART_ACROSS_NODES if has_more_nodes else _APART
    return apart * max(1.0, slow.work / fast.work)


def _configured(row: ImportedRow) -> str:
    values = row.values
    samples = counted(values["local_batch_size"], "sample")
    devices = counted(values["world_size"], "device")
    return f"{samples} each on {devices} of {counted(values['num_nodes'], 'node')}"


def _curves_apart(curves: Curves) -> Iterator[str]:
    """Doubt the units where one curve is a hundred times slower than another."""
    if len(curves.rows) < 2:
        return
    paces = {
        key: statistics.median(row.time_s / row.work for row in rows)
        for key, rows in curves.rows.items()
    }
    slow, fast = max(paces, key=paces.__getitem__), min(paces, key=paces.__getitem__)
    if paces[slow] >= _APART * paces[fast]:
        yield (
            f"a sample takes {paces[slow] / paces[fast]:,.0f} times as long "
            f"at {curves.called(slow)} (line {curves.rows[slow][0].line}) as at "
            f"{curves.called(fast)} (line {curves.rows[fast][0].line}). Times are in "
            "seconds; those of one curve may be milliseconds."
        )


def _falling_times(curves: Curves, matching: Matching) -> Iterator[str]:
    """Doubt times of a step that fall though each device does the same work."""
    column = matching.columns.get("step_time_s")
    falling = [
        (size, times)
        for rows in curves.rows.values()
        for size, times in _by_devices(rows, "local_batch_size", "step_time_s")
        if times[max(times)] <= times[min(times)] * (min(times) / max(times)) ** _FALLS
    ]
    if column is None or not falling:
        return
    size, widest = max(falling, key=lambda each: max(each[1]) / min(each[1]))
    fewest, most = min(widest), max(widest)
    yield (
        f"the times in the column {shown(column)} fall with the number of devices at "
        f"local_batch_size={size}: a step takes {duration(widest[fewest])} on {fewest} "
        f"and {duration(widest[most])} on {most}. A step of the same work on each "
        "device cannot. Give the time of a step if these are times of an epoch "
        "(time * global_batch_size / samples per epoch) or divided by the devices; say "
        f"{Option('column', 'NAME', key='global_batch_size')} if the batch is that of "
        "all devices."
    )


def _flat_throughput(curves: Curves, matching: Matching) -> Iterator[str]:
    """Doubt a throughput that no number of devices raises, at one batch of any kind."""
    reading = matching.readings.get("throughput_samples_per_s")
    if reading is None or reading.is_per_device or "step_time_s" in matching.columns:
        return
    groups = [
        group
        for rows in curves.rows.values()
        for name in ("local_batch_size", "global_batch_size")
        for _, group in _by_devices(rows, name, "throughput_samples_per_s")
    ]
    flat = [
        group
        for group in groups
        if max(group) >= 2 * min(group)
        and max(group[n] for n in sorted(group)[1:]) <= _RISES * group[min(group)]
    ]
    if not flat or len(flat) < 0.8 * len(groups):
        return
    widest = max(flat, key=lambda group: max(group) / min(group))
    fewest, most = min(widest), max(widest)
    yield (
        f"the throughput in the column "
        f"{shown(matching.columns['throughput_samples_per_s'])} does not rise with the "
        f"number of devices: {widest[fewest]:g} samples/s on {fewest} and "
        f"{widest[most]:g} on {most}. Throughput is that of all devices together. Say "
        f"{Option('per_device', True)} if it is that of one."
    )


def _by_devices(
    rows: Sequence[ImportedRow], batch: str, speed: str
) -> Iterator[tuple[int, dict[int, float]]]:
    """Yield a batch and its median speeds by number of devices, of two or more."""
    found: dict[tuple[int, int, int], dict[int, list[float]]] = {}
    for row in rows:
        values = row.values
        of_a_copy = values["world_size"] // values["data_parallel_size"]
        at = (values[batch], values["gradient_accumulation_steps"], of_a_copy)
        by_devices = found.setdefault(at, {})
        by_devices.setdefault(values["world_size"], []).append(values[speed])
    for (size, *_), each in found.items():
        if len(each) > 1:
            yield size, {n: statistics.median(each[n]) for n in sorted(each)}


def _tokens_as_samples(
    rows: Sequence[ImportedRow], matching: Matching
) -> Iterator[str]:
    reading = matching.readings.get("throughput_samples_per_s")
    if reading is None or reading.is_in_tokens or "step_time_s" in matching.columns:
        return
    for row in rows:
        tokens, rate = (
            row.values.get(name)
            for name in ("sequence_length", "throughput_samples_per_s")
        )
        if not tokens or not rate:
            continue
        if tokens * rate / row.values["world_size"] > _MOST_TOKENS_PER_DEVICE_S:
            yield (
                f"throughput_samples_per_s={rate:g} in line {row.line} with "
                f"sequence_length={tokens} is {tokens * rate:.3g} tokens/s: batches "
                "count sequences, and so must the throughput. Say "
                f"{Option('tokens_per_sample', tokens)} if it counts tokens."
            )
            return


def _devices_of_a_node(
    rows: Sequence[ImportedRow], matching: Matching
) -> Iterator[str]:
    """Doubt a number of devices that is the same on any number of nodes."""
    sizes = {row.values["world_size"] for row in rows}
    nodes = sorted({row.values["num_nodes"] for row in rows})
    column = matching.columns.get("world_size")
    if column and len(sizes) == 1 and len(nodes) > 1 and max(sizes) > 1:
        yield (
            f"world_size={max(sizes)} (column {shown(column)}) in all rows, on "
            f"{' and '.join(map(str, (nodes[0], nodes[-1])))} nodes: world_size is the "
            "number of devices on all nodes together. Say "
            f"{Option('column', column, key='gpus_per_node')} if it is that of one "
            "node."
        )


def _crowded_nodes(rows: Sequence[ImportedRow]) -> Iterator[str]:
    for row in rows:
        values = row.values
        on_node = values["world_size"] / values["num_nodes"]
        is_wide = values.get("device_type") in ("cpu", "tpu") or _WIDE_NODES.search(
            str(values.get("device_name"))
        )
        if on_node > _MOST_ON_NODE and not is_wide:
            nodes = counted(values["num_nodes"], "node")
            gpus = Option("constant", "8", key="gpus_per_node")
            yield (
                f"world_size={values['world_size']} on {nodes} in line {row.line} is "
                f"{on_node:g} devices on one node; a node has at most "
                f"{_MOST_ON_NODE} GPUs. Give num_nodes as measured, or instead of it "
                f"how many devices a node has ({gpus}, and {Option('ignore')} for a "
                "column of nodes); for processor cores, say "
                f"{Option('constant', 'cpu', key='device_type')}."
            )
            return


def _single_rows(curves: Curves) -> Iterator[str]:
    single = [(key, rows[0]) for key, rows in curves.rows.items() if len(rows) == 1]
    if not single or len(curves.rows) == 1:
        return
    key, row = single[0]
    which = "all" if len(single) == len(curves.rows) else f"{len(single):,}"
    have = "has" if len(single) == 1 else "have"
    yield (
        f"{which} of {len(curves.rows):,} curves {have} a single row, such as "
        f"{curves.called(key)} (line {row.line}): one row tells nothing of scaling. "
        f"Curves differ in {curves.by}; {Option('ignore', ['NAME'])} passes over a "
        "column that is no setting."
    )


def _beyond_epoch(
    table: ForeignTable, rows: Sequence[ImportedRow], decimal: str
) -> Iterator[str]:
    for name in (each for each in table.names if plain(each) in EPOCH_SIZES):
        beyond = []
        for row in rows:
            with suppress(ValueError):
                size = float(plain_number(row.cells[name], decimal))
                if row.values["global_batch_size"] > size:
                    beyond.append(row)
        if beyond:
            first = beyond[0]
            yield (
                f"global_batch_size={first.values['global_batch_size']} in "
                f"{lines_listed(row.line for row in beyond)} is more than the "
                f"{first.cells[name]} samples of an epoch (column {shown(name)}): a "
                "step would see some samples twice. Check the batch; it counts samples."
            )
