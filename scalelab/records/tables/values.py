"""Parse the cells of a foreign table and check that their values are possible."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from scalelab.errors import SpecError
from scalelab.inputs.outcome import Outcome
from scalelab.records.columns import COLUMNS_BY_NAME

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST_WHOLE = 2**53
_MAX_DEVICES = 1_000_000
_MAX_STEP_TIME_S = 86_400.0
_COUNTS = frozenset(
    {
        "num_nodes",
        "world_size",
        "data_parallel_size",
        "threads_per_rank",
        "local_batch_size",
        "gradient_accumulation_steps",
        "global_batch_size",
        "normalization_batch_size",
        "sequence_length",
    }
)
_POSITIVE = frozenset(
    {
        "gpus_per_node",
        "step_time_s",
        "step_time_lo_s",
        "step_time_hi_s",
        "throughput_samples_per_s",
        "base_learning_rate",
        "learning_rate",
    }
)
_SIGNED = frozenset({"target_value", "final_metric"})
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "outcome": tuple(Outcome),
    "device_type": ("cpu", "cuda"),
    "metric_mode": ("min", "max"),
    "energy_source": ("measured", "modelled"),
}


def parse(name: str, text: str) -> Any:
    """Return the value of a cell of a known column; None where it is empty.

    Raises
    ------
    ValueError
        With the rule the text breaks, as the end of a sentence.
    """
    if not text:
        return None
    kind = COLUMNS_BY_NAME[name].kind
    value = _PARSERS[kind](text)
    _check_range(name, kind, value)
    return value


def _check_range(name: str, kind: str, value: Any) -> None:
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}")
    if kind not in ("integer", "number"):
        return
    if name in _COUNTS and value < 1:
        raise ValueError("must be at least 1")
    if name in _POSITIVE and value <= 0:
        raise ValueError("must be more than 0")
    if name not in _SIGNED and value < 0:
        raise ValueError("must not be negative")
    if name in ("world_size", "num_nodes") and value > _MAX_DEVICES:
        raise ValueError(f"must be at most {_MAX_DEVICES}")
    if name == "step_time_s" and value > _MAX_STEP_TIME_S:
        raise ValueError(
            f"must be at most {_MAX_STEP_TIME_S:.0f}: it is in seconds per step"
        )
    if name == "gpu_utilization" and value > 1:
        raise ValueError("must be a share between 0 and 1")


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text) or not math.isfinite(value := float(text)):
        raise ValueError(
            "must be a finite number such as 0.125; leave the cell empty if it is "
            "unknown"
        )
    return value


def _whole(text: str) -> int:
    try:
        value = _number(text)
    except ValueError:
        value = math.nan
    if not value.is_integer() or abs(value) > _LARGEST_WHOLE:
        raise ValueError("must be a whole number such as 8")
    return int(value)


def _flag(text: str) -> bool:
    flags = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in flags:
        raise ValueError("must be true or false")
    return flags[text.lower()]


def _time(text: str) -> str:
    try:
        is_aware = datetime.fromisoformat(text).utcoffset() is not None
    except ValueError:
        is_aware = False
    if not is_aware:
        raise ValueError("must be a time with its offset, e.g. 2026-01-31T12:00:00Z")
    return text


def _list(text: str) -> list[str]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(
        isinstance(each, str) for each in values
    ):
        raise ValueError('must be a JSON list of text, e.g. ["0", "1"]')
    return values


def _as_it_is(text: str) -> str:
    return text


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _whole,
    "number": _number,
    "flag": _flag,
    "text": _as_it_is,
    "time": _time,
    "list": _list,
}
_UNKNOWN = frozenset({"", "na", "n/a", "nan", "null", "none"})


def parse_option(texts: Sequence[str]) -> list[Any]:
    """Return the values of a further axis: whole numbers, numbers, flags or text.

    The first of these that every cell is; ``nan``, ``null``, ... are missing in a
    column of numbers or flags, and text in a column of text.
    """
    for parser in (_whole, _number, _flag):
        try:
            return [
                None if text.lower() in _UNKNOWN else parser(text) for text in texts
            ]
        except ValueError:
            continue
    return [text or None for text in texts]


def complete(values: dict[str, Any]) -> dict[str, Any]:
    """Derive what follows from what is given, and check that it fits together.

    Raises
    ------
    SpecError
        With the columns, their values, the rule and the remedy.
    """
    values = _complete_devices(values)
    values = _complete_batch(values)
    measured = (Outcome.COMPLETED, Outcome.TARGET_NOT_REACHED, Outcome.PRUNED)
    if values.get("outcome", Outcome.COMPLETED) in measured:
        values = _complete_times(values)
    return values


def _complete_devices(values: dict[str, Any]) -> dict[str, Any]:
    nodes, per_node = values.get("num_nodes"), values.get("gpus_per_node")
    devices = values.get("world_size")
    if devices is None:
        _require(values, "num_nodes", "gpus_per_node")
        devices = round(values["num_nodes"] * values["gpus_per_node"])
    if nodes is None:
        _require(values, "gpus_per_node")
        nodes = max(1, round(devices / values["gpus_per_node"]))
    if per_node is None:
        per_node = devices / nodes
    # A mean over uneven nodes is written with a few digits only.
    if not math.isclose(nodes * per_node, devices, rel_tol=1e-3) or nodes > devices:
        raise SpecError(
            f"world_size={devices} does not fit num_nodes={nodes} and "
            f"gpus_per_node={per_node:g}: world_size = num_nodes * gpus_per_node, at "
            "least one device per node. Correct one of them."
        )
    parallel = values.get("data_parallel_size") or devices
    found = {"world_size": devices, "num_nodes": nodes, "gpus_per_node": per_node}
    return {**values, **found, "data_parallel_size": parallel}


def _complete_batch(values: dict[str, Any]) -> dict[str, Any]:
    parallel = values["data_parallel_size"]
    local, total = values.get("local_batch_size"), values.get("global_batch_size")
    accumulation = values.get("gradient_accumulation_steps")
    if local is None:
        _require(values, "global_batch_size")
        accumulation = accumulation or 1
        local = max(1, total // (parallel * accumulation))
    if accumulation is None:
        accumulation = 1 if total is None else max(1, total // (local * parallel))
    product = local * parallel * accumulation
    if total is not None and total != product:
        raise SpecError(
            f"global_batch_size={total} is not local_batch_size={local} * "
            f"data_parallel_size={parallel} * gradient_accumulation_steps="
            f"{accumulation} (={product}). Correct one of them; local_batch_size is "
            "per device."
        )
    return {
        **values,
        "local_batch_size": local,
        "gradient_accumulation_steps": accumulation,
        "global_batch_size": product,
    }


def _complete_times(values: dict[str, Any]) -> dict[str, Any]:
    samples = values["global_batch_size"]
    step, throughput = values.get("step_time_s"), values.get("throughput_samples_per_s")
    if step is None:
        _require(values, "throughput_samples_per_s")
        step = samples / throughput
    if throughput is None:
        throughput = samples / step
    ratio = throughput * step / samples
    if not 0.95 < ratio < 1 / 0.95:
        raise SpecError(
            f"step_time_s={step:g} and throughput_samples_per_s={throughput:g} differ "
            f"by a factor of {ratio:.4g}: throughput = global_batch_size={samples} / "
            f"step_time_s.{_unit_hint(ratio, values)} Correct one or leave one out."
        )
    return {**values, "step_time_s": step, "throughput_samples_per_s": throughput}


def _unit_hint(ratio: float, values: Mapping[str, Any]) -> str:
    hints = {
        1e3: "The step time looks like milliseconds.",
        1e6: "The step time looks like microseconds.",
        1 / 60: "The step time looks like minutes.",
        1 / values["world_size"]: "The throughput looks like that of one device.",
        1
        / values["gradient_accumulation_steps"]: "The step time looks like that of one "
        "forward pass; it is per optimiser step.",
    }
    for factor, hint in hints.items():
        if math.isclose(ratio, factor, rel_tol=0.05):
            return f" {hint}"
    return ""


def _require(values: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if values.get(name) is None:
            raise SpecError(
                f"{name} is empty. Fill it in; nothing else in the row tells it."
            )
