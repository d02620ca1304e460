"""What of an imported table was more likely read wrongly than measured."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import filterfalse, pairwise
from typing import TYPE_CHECKING

from scalelab.inputs.numerals import counted, duration
from scalelab.inputs.problems import Option, shown
from scalelab.reading.tables.curves import Curves, ImportedRow
from scalelab.reading.tables.match import Matching
from scalelab.reading.tables.names import is_measured, meaning_of

if TYPE_CHECKING:
    import pandas as pd

_CONFIGURATION = (
    "world_size num_nodes data_parallel_size local_batch_size "
    "gradient_accumulation_steps"
).split()
_LEAST = math.log(1.03)  # what no setting is asked about
_WITHOUT_REPEATS = math.log(1.1)
_EVIDENT = math.log(1.5)
_SPREADS = 5.0  # of what repeats would differ by
_MEASURED_SHARE = 0.9
_USUAL_ON_NODE = 16
_MOST_ON_NODE = 72
_WIDE_NODES = re.compile(r"nvl\d*|gb[23]00|grace", re.IGNORECASE)
_APART = 100.0
_APART_ACROSS_NODES = 500.0  # slow links explain a hundredfold, no thousandfold
_RISES = 1.15
_FALLS = 0.7  # as an epoch's times fall at any fair efficiency, and a step's never
_MOST_TOKENS_PER_DEVICE_S = 1e6


def doubt(
    matching: Matching,
    curves: Curves,
    rows: Sequence[ImportedRow],
    constant: Container[str] = (),
) -> tuple[list[str], list[str]]:
    """Return what is refused unless it is accepted, the gravest first, and the rest.

    Each says what is doubted, with name and value; the rule; what to do.
    """
    is_said = "gpus_per_node" in matching.columns or "gpus_per_node" in constant
    is_one = not is_said and all(row.values["num_nodes"] == 1 for row in rows)
    refused = (
        _pooled(curves, matching),
        _times_apart(curves),
        _falling_times(curves, matching),
        _flat_throughput(curves, matching),
        _tokens_as_samples(rows, matching),
        _devices_of_a_node(rows, matching),
        _crowded_nodes(rows, _MOST_ON_NODE, math.inf),
        _within_one_batch(rows),
    )

    mentioned = (
        _curves_apart(curves),
        _single_rows(curves),
        _crowded_nodes(rows, _USUAL_ON_NODE, _MOST_ON_NODE) if is_one else "",
        "none of its rows tells a time, so nothing can be recommended from them. Add "
        "rows that ran."
        if not curves.rows
        else "",
    )
    return list(filter(None, refused)), list(filter(None, mentioned))


def _pooled(curves: Curves, matching: Matching) -> str:
    found = list(_pooled_settings(curves, matching.unused))
    if not found:
        return ""

    name, *pair = found[0]
    times = " and ".join(
        f"{duration(row.time_s)} with {shown(row.cells[name])} (line {row.line})"
        for row in pair
    )
    likewise = ", ".join(shown(name) for name, *_ in found[1:])
    more = f" Likewise {likewise}." if likewise else ""

    return (
        f"the column {shown(name)} is not read, and rows that are otherwise alike "
        f"differ with it: a step takes {times}. Rows of different settings are no "
        f"repeats of one another.{more} Say {Option('axis', [name])} if it is a "
        f"setting, or {Option('ignore', [name])} if the rows are repeats."
    )


def _pooled_settings(
    curves: Curves, unused: Iterable[str]
) -> Iterator[tuple[str, ImportedRow, ImportedRow]]:
    """Yield unused columns that make a difference at one configuration, with two rows.

    A column of a known meaning never does: another one tells the same. One named like
    a result does only where its values recur and the times differ evidently.
    """
    import pandas as pd

    keyed = [
        ((key, *map(row.values.get, _CONFIGURATION)), row)
        for key, rows in curves.rows.items()
        for row in sorted(rows, key=lambda row: row.time_s)
    ]
    numbers = {at: number for number, (at, _) in enumerate(keyed)}

    frame = pd.DataFrame(
        {
            "row": [row for _, row in keyed],
            "configuration": [numbers[at] for at, _ in keyed],
            "log_time": [math.log(row.time_s) for _, row in keyed],
        }
    )
    for name in sorted(filterfalse(meaning_of, unused), key=is_measured):
        frame["value"] = [row.cells[name] for row in frame["row"]]
        num_values = frame.groupby("configuration")["value"].transform("nunique")
        several = frame.loc[num_values > 1]

        labels_rows = several["value"].nunique() > _MEASURED_SHARE * len(several)
        if several.empty or (labels_rows and several["configuration"].nunique() > 1):
            continue

        levels = several.groupby(["configuration", "value"])["log_time"]
        medians = levels.median().unstack()
        gaps = medians.max(axis=1) - medians.min(axis=1)
        typical = sorted(gaps)[math.ceil(0.8 * len(gaps)) - 1]

        may_be_result = is_measured(name) and (labels_rows or typical <= _EVIDENT)
        if not may_be_result and _differ(several, medians, gaps):
            widest = medians.iloc[gaps.argmax()]
            at, ends = widest.name, (widest.idxmin(), widest.idxmax())
            by_level = several.groupby(["configuration", "value"])["row"]
            fast, slow = (by_level.get_group((at, value)) for value in ends)
            yield name, fast.iloc[len(fast) // 2], slow.iloc[len(slow) // 2]


def _differ(rows: pd.DataFrame, medians: pd.DataFrame, gaps: pd.Series[float]) -> bool:
    """Tell whether times differ by value anywhere by more than repeats scatter.

    ``rows`` are those of configurations with several values; ``medians`` are of their
    log times, by configuration and value, and ``gaps`` are between the outermost.
    """
    widest, levels = gaps.max(), rows.groupby(["configuration", "value"])["log_time"]
    num_free = len(rows) - levels.ngroups
    if num_free >= 2:
        apart = rows["log_time"] - levels.transform("mean")
        scatter = _scatter((apart**2).sum(), num_free, len(rows) / levels.ngroups)
        return bool(widest > max(_LEAST, scatter))

    # without repeats, whether the same value is always the slow one, whether one
    # difference is far beyond the others, and how steady the difference is
    slow = {*medians[gaps > _LEAST].idxmax(axis=1)}
    is_far = widest > _SPREADS * gaps.median()
    if widest > _WITHOUT_REPEATS and (len(slow) == 1 or is_far):
        return True

    effects = medians.sub(medians.mean(axis=1), axis=0)
    num_free = levels.ngroups - sum(medians.shape) + 1
    if num_free < 3:
        return bool(widest > _WITHOUT_REPEATS)

    means = effects.mean()
    squares = ((effects - means) ** 2).sum().sum()
    scatter = _scatter(squares, num_free, effects.count().mean())
    return bool(means.max() - means.min() > max(_LEAST, scatter))


def _scatter(squares: float, num_free: int, mean_size: float) -> float:
    # by how much means of samples may differ at most by chance
    return _SPREADS * math.sqrt(2 * squares / num_free / mean_size)


def _times_apart(curves: Curves) -> str:
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
            # more samples and links between nodes explain some of it
            has_more_nodes = slow.values["num_nodes"] > fast.values["num_nodes"]

            apart = _APART_ACROSS_NODES if has_more_nodes else _APART
            if factor >= apart * max(1.0, slow.work / fast.work):
                return (
                    f"step_time_s={slow.time_s:g} in line {slow.line} is {factor:,.0f} "
                    f"times the {fast.time_s:g} of line {fast.line}, of the same "
                    f"curve: {_configured(slow)}, against {_configured(fast)}. Times "
                    "are in seconds; milliseconds may stand among them. Correct the "
                    "cells, or name the column by its unit, such as step_time_ms."
                )
    return ""


def _configured(row: ImportedRow) -> str:
    samples = counted(row.values["local_batch_size"], "sample")
    devices = counted(row.values["world_size"], "device")
    return f"{samples} each on {devices} of {counted(row.values['num_nodes'], 'node')}"


def _curves_apart(curves: Curves) -> str:
    if len(curves.rows) < 2:
        return ""
    paces = {
        key: statistics.median(row.time_s / row.work for row in rows)
        for key, rows in curves.rows.items()
    }
    slow, fast = max(paces, key=paces.__getitem__), min(paces, key=paces.__getitem__)
    if paces[slow] >= _APART * paces[fast]:
        return (
            f"a sample takes {paces[slow] / paces[fast]:,.0f} times as long "
            f"at {curves.called(slow)} (line {curves.rows[slow][0].line}) as at "
            f"{curves.called(fast)} (line {curves.rows[fast][0].line}). Times are in "
            "seconds; those of one curve may be milliseconds."
        )

    return ""


def _falling_times(curves: Curves, matching: Matching) -> str:
    meaning = matching.columns.get("step_time_s")
    falling = [
        (size, times)
        for rows in curves.rows.values()
        for size, times in _by_devices(rows, "local_batch_size", "step_time_s")
        if times[max(times)] <= times[min(times)] * (min(times) / max(times)) ** _FALLS
    ]
    if meaning is None or not falling:
        return ""

    size, widest = max(
        falling, key=lambda times_of_size: max(times_of_size[1]) / min(times_of_size[1])
    )
    fewest, most = min(widest), max(widest)
    return (
        f"the times in the column {shown(meaning.theirs)} fall with the number of "
        f"devices at local_batch_size={size}: a step takes {duration(widest[fewest])} "
        f"on {fewest} and {duration(widest[most])} on {most}. A step of the same work "
        "on each device cannot. Give the time of a step if these are times of an epoch "
        "(time * global_batch_size / samples per epoch) or divided by the devices; say "
        f"{Option('column', 'NAME', key='global_batch_size')} if the batch is that of "
        "all devices."
    )


def _flat_throughput(curves: Curves, matching: Matching) -> str:
    meaning = matching.columns.get("throughput_samples_per_s")
    if meaning is None or meaning.is_per_device or "step_time_s" in matching.columns:
        return ""

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
        return ""

    widest = max(flat, key=lambda group: max(group) / min(group))
    fewest, most = min(widest), max(widest)
    return (
        f"the throughput in the column {shown(meaning.theirs)} does not rise with the "
        f"number of devices: {widest[fewest]:g} samples/s on {fewest} and "
        f"{widest[most]:g} on {most}. Throughput is that of all devices together. Say "
        f"{Option('per_device', True)} if it is that of one."
    )


def _by_devices(
    rows: Sequence[ImportedRow], batch: str, speed: str
) -> Iterator[tuple[int, dict[int, float]]]:
    # a batch and its median speeds by number of devices, of two or more
    found: dict[tuple[int, int, int], dict[int, list[float]]] = {}
    for row in rows:
        values = row.values
        of_a_copy = values["world_size"] // values["data_parallel_size"]
        at = (values[batch], values["gradient_accumulation_steps"], of_a_copy)
        by_devices = found.setdefault(at, {})
        by_devices.setdefault(values["world_size"], []).append(values[speed])

    for (size, *_), by_count in found.items():
        if len(by_count) > 1:
            yield size, {n: statistics.median(by_count[n]) for n in sorted(by_count)}


def _tokens_as_samples(rows: Sequence[ImportedRow], matching: Matching) -> str:
    meaning = matching.columns.get("throughput_samples_per_s")
    if meaning is None or meaning.is_in_tokens or "step_time_s" in matching.columns:
        return ""

    for row in rows:
        tokens = row.values.get("sequence_length") or 0
        rate = row.values.get("throughput_samples_per_s") or 0.0
        if tokens * rate / row.values["world_size"] > _MOST_TOKENS_PER_DEVICE_S:
            return (
                f"throughput_samples_per_s={rate:g} in line {row.line} with "
                f"sequence_length={tokens} is {tokens * rate:.3g} tokens/s: batches "
                "count sequences, and so must the throughput. Say "
                f"{Option('tokens_per_sample', tokens)} if it counts tokens."
            )

    return ""


def _devices_of_a_node(rows: Sequence[ImportedRow], matching: Matching) -> str:
    sizes = {row.values["world_size"] for row in rows}
    nodes = sorted({row.values["num_nodes"] for row in rows})

    meaning = matching.columns.get("world_size")
    if meaning and len(sizes) == 1 and len(nodes) > 1 and max(sizes) > 1:
        return (
            f"world_size={max(sizes)} (column {shown(meaning.theirs)}) in all rows, on "
            f"{' and '.join(map(str, (nodes[0], nodes[-1])))} nodes: world_size is the "
            "number of devices on all nodes together. Say "
            f"{Option('column', meaning.theirs, key='gpus_per_node')} if it is that of "
            "one node."
        )

    return ""


def _crowded_nodes(rows: Sequence[ImportedRow], usual: int, most: float) -> str:
    for row in rows:
        devices, nodes = row.values["world_size"], row.values["num_nodes"]
        is_wide = row.values.get("device_type") in ("cpu", "tpu") or _WIDE_NODES.search(
            str(row.values.get("device_name"))
        )
        if usual < devices / nodes <= most and not is_wide:
            return (
                f"world_size={devices} on {counted(nodes, 'node')} in line {row.line} "
                f"is {devices / nodes:g} devices on one node; few nodes have more than "
                f"{usual} GPUs. Give num_nodes as measured, or instead of it how many "
                f"devices a node has ({Option('constant', '8', key='gpus_per_node')}, "
                f"and {Option('ignore')} for a column of nodes); for processor cores, "
                f"say {Option('constant', 'cpu', key='device_type')}."
            )
    return ""


def _within_one_batch(rows: Sequence[ImportedRow]) -> str:
    for row in rows:
        samples, batch = (
            row.values.get("samples_to_target"),
            row.values["global_batch_size"],
        )
        if samples and samples <= batch:
            return (
                f"samples_to_target={samples:,} in line {row.line} is reached within "
                f"one global batch of {batch:,}: no training is that short. Say "
                f"{Option('column', 'NAME', key='epochs_to_target')} and "
                f"{Option('samples_per_epoch')} if the column counts epochs, or "
                f"{Option('column', 'NAME', key='steps_to_target')} if steps."
            )
    return ""


def _single_rows(curves: Curves) -> str:
    single = [(key, rows[0]) for key, rows in curves.rows.items() if len(rows) == 1]
    if not single or len(curves.rows) == 1:
        return ""

    key, row = single[0]
    which = "all" if len(single) == len(curves.rows) else f"{len(single):,}"
    have = "has" if len(single) == 1 else "have"

    return (
        f"{which} of {len(curves.rows):,} curves {have} a single row, such as "
        f"{curves.called(key)} (line {row.line}): one row tells nothing of scaling. "
        f"Curves differ in {curves.by}; {Option('ignore', ['NAME'])} passes over a "
        "column that is no setting."
    )
