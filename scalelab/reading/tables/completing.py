"""Fill in what follows from the cells of a row, and check that it fits together."""

import math
import re
from collections.abc import Mapping
from typing import Any

from scalelab.errors import SpecError
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import Option, Placeholder
from scalelab.reading.tables.names import (
    LENGTHS,
    OF_DEVICES,
    SHARED,
    SPEEDS,
    Meaning,
    plain,
)
from scalelab.records.columns import OPTION_PREFIX

_TOKENS = Option("tokens_per_sample", Placeholder("N"))
_LONGEST = 10  # times the time of its steps that a training takes
_SLICE = re.compile(r"(v\d+\w*)-\d+", re.IGNORECASE)
_TPU = re.compile(r"(.*\W)?(tpu|trillium|ironwood)([\Wv].*)?|v[2-7][ep]?(-\d+)?")


def complete(values: dict[str, Any], readings: Mapping[str, Meaning]) -> dict[str, Any]:
    """Derive what follows from what is given, and check that it fits together."""
    is_alone = OF_DEVICES.isdisjoint(values) and not {*LENGTHS}.isdisjoint(values)
    if not is_alone:
        values = {**values, **_devices(values)}

    batch, throughput = map(
        readings.get, ("global_batch_size", "throughput_samples_per_s")
    )
    tokens = values.get("global_batch_size")
    if batch is not None and batch.is_in_tokens and tokens is not None:
        length = values.get("sequence_length")
        values["global_batch_size"] = _batch_in_samples(tokens, length)
    if not is_alone:
        values |= _batch(values)

    values |= _length(values)
    measured = (Outcome.COMPLETED, Outcome.TARGET_NOT_REACHED, Outcome.PRUNED)
    if values.get("outcome", Outcome.COMPLETED) in measured:
        if throughput is not None:
            values["throughput_samples_per_s"] = _in_samples_of_all(values, throughput)
        tells_time = any(map(values.get, SPEEDS))
        has_missed = values.get("outcome") == Outcome.TARGET_NOT_REACHED
        if not tells_time and (has_missed or values.get("samples_to_target")):
            return {**values, "kind": "convergence"}
        values |= _times(values)
        _check_length(values)

    return values


def _length(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the samples that a training to its target saw, and its throughput."""
    samples, steps = map(values.get, LENGTHS)
    if samples is None and steps is None:
        return {}

    _require(values, "global_batch_size")
    samples = samples or steps * values["global_batch_size"]

    seconds = values.get("time_to_target_s")
    if seconds is None or any(map(values.get, SPEEDS)):
        return {"samples_to_target": samples}

    rate = {"throughput_samples_per_s": samples / seconds}
    return {"samples_to_target": samples, **rate}


def _check_length(values: Mapping[str, Any]) -> None:
    seconds, samples = map(values.get, ("time_to_target_s", "samples_to_target"))
    rate = values["throughput_samples_per_s"]
    if seconds and samples and not 0.8 < seconds * rate / samples < _LONGEST:
        raise SpecError(
            f"time_to_target_s={seconds:g} at {rate:g} samples/s is {seconds * rate:g} "
            f"samples, but samples_to_target={samples}. Correct one of them or its "
            "unit, or leave the speed out.",
            code="length_contradicts",
        )


def _devices(values: Mapping[str, Any]) -> dict[str, Any]:
    nodes, on_node = values.get("num_nodes"), values.get("gpus_per_node")
    devices = values.get("world_size")
    if devices is None:
        _require(values, "num_nodes", "gpus_per_node")
        devices = round(values["num_nodes"] * values["gpus_per_node"])
    if nodes is None:
        _require(values, "gpus_per_node")
        nodes = _nodes_filled(devices, values["gpus_per_node"])

    if on_node is not None:
        # a mean over uneven nodes is written with a few digits only
        is_mean = on_node % 1 and math.isclose(nodes * on_node, devices, rel_tol=1e-3)
        if not is_mean and nodes != _nodes_filled(devices, on_node):
            raise SpecError(
                f"world_size={devices} does not fit num_nodes={nodes} and "
                f"gpus_per_node={on_node:g}: all nodes are filled, but for the last "
                f"one (num_nodes={_nodes_filled(devices, on_node)}). Correct one of "
                "them, or leave gpus_per_node out.",
                code="devices_contradict",
            )

    if nodes > devices:
        raise SpecError(
            f"world_size={devices} does not fit num_nodes={nodes}: a node has at least "
            "one device. Correct one of them; where some nodes only serve parameters "
            "to the others, count those that train.",
            code="devices_contradict",
        )

    return {
        "world_size": devices,
        "num_nodes": nodes,
        "gpus_per_node": devices / nodes,
        "devices_of_node": round(on_node) if on_node and not on_node % 1 else None,
        "data_parallel_size": values.get("data_parallel_size")
        or _copies(values, devices),
        **_device(values.get("device_name")),
    }


def _nodes_filled(devices: int, on_node: float) -> int:
    nodes = devices / on_node
    is_mean = on_node % 1 and math.isclose(nodes, round(nodes), rel_tol=1e-3)
    return round(nodes) if is_mean else math.ceil(nodes)


def _copies(values: Mapping[str, Any], devices: int) -> int:
    shared = {
        SHARED[setting]: (name, value)
        for name, value in values.items()
        if name.startswith(OPTION_PREFIX)
        and value not in (None, False, 0)
        and (setting := plain(name.removeprefix(OPTION_PREFIX))) in SHARED
    }

    is_whole = all(type(value) is int for _, value in shared.values())

    of_a_copy = math.prod(value for _, value in shared.values()) if is_whole else 0
    if of_a_copy <= 0 or devices % of_a_copy:
        shares = ", ".join(f"{name}={value}" for name, value in shared.values())
        raise SpecError(
            f"world_size={devices} does not fit {shares}: the devices are divided "
            "among copies of the model, as many in each as the product of these "
            "numbers. Correct one of them, or give data_parallel_size.",
            code="devices_contradict",
        )

    return devices // of_a_copy


def _device(name: object) -> dict[str, str]:
    """Return the name and the type of a device whose name says that it is a TPU.

    >>> _device("v5e"), _device("V100")
    ({'device_name': 'TPU v5e', 'device_type': 'tpu'}, {})
    >>> _device("v4-32")["device_name"]  # the size of a slice is that of no device
    'TPU v4'
    """
    if not isinstance(name, str) or not _TPU.fullmatch(name.lower()):
        return {}
    name = _SLICE.sub(r"\1", name)
    named = name if "tpu" in name.lower() else f"TPU {name}"
    return {"device_name": named, "device_type": "tpu"}


def _in_samples_of_all(values: Mapping[str, Any], meaning: Meaning) -> float | None:
    found: float | None = values.get("throughput_samples_per_s")
    if found is None:
        return None

    found *= values["world_size"] if meaning.is_per_device else 1
    length = values.get("sequence_length") if meaning.is_in_tokens else 1
    if not length:
        raise SpecError(
            f"{found:g} tokens/s, but batches count samples and nothing says how many "
            f"tokens one has. Say {_TOKENS}.",
            code="tokens_unknown",
        )

    return found / length


def _batch_in_samples(tokens: int, length: int | None) -> int:
    if not length:
        raise SpecError(
            f"The batch counts {tokens:,} tokens, but nothing says how many tokens a "
            f"sample has. Say {Option('constant', 'N', key='sequence_length')}.",
            code="tokens_unknown",
        )

    if tokens % length:
        raise SpecError(
            f"A batch of {tokens:,} tokens is no whole number of samples of "
            f"sequence_length={length} tokens. Correct one of them.",
            code="tokens_contradict",
        )
    return tokens // length


def _batch(values: Mapping[str, Any]) -> dict[str, int]:
    parallel = values["data_parallel_size"]
    local, total = values.get("local_batch_size"), values.get("global_batch_size")

    accumulation = values.get("gradient_accumulation_steps")
    if local is None:
        _require(values, "global_batch_size")
        accumulation = accumulation or 1
        shares = parallel * accumulation

        local, rest = divmod(values["global_batch_size"], shares)
        if rest and values.get("time_to_target_s"):
            # devices that share a copy of the model, as many as the batch asks for
            parallel = shares = math.gcd(parallel, values["global_batch_size"])
            local, rest = values["global_batch_size"] // shares, 0

        if rest:
            raise SpecError(
                f"global_batch_size={total} does not divide by data_parallel_size="
                f"{parallel} * gradient_accumulation_steps={accumulation} (={shares}): "
                "each device takes equally many samples. Correct one of them, or give "
                "the batch that was run, per device (local_batch_size) or of all.",
                code="batch_contradicts",
            )

    if accumulation is None:
        accumulation = 1 if total is None else max(1, total // (local * parallel))

    product = local * parallel * accumulation
    if total is not None and total != product:
        raise SpecError(
            f"global_batch_size={total} is not local_batch_size={local} * "
            f"data_parallel_size={parallel} * gradient_accumulation_steps="
            f"{accumulation} (={product}). Correct one of them; local_batch_size is "
            "per device.",
            code="batch_contradicts",
        )

    return {
        "local_batch_size": local,
        "gradient_accumulation_steps": accumulation,
        "global_batch_size": product,
        "data_parallel_size": parallel,
    }


def _times(values: Mapping[str, Any]) -> dict[str, float]:
    samples = values["global_batch_size"]
    step, throughput = values.get("step_time_s"), values.get("throughput_samples_per_s")
    if step is None:
        _require(values, "throughput_samples_per_s")
        step = samples / values["throughput_samples_per_s"]
    if throughput is None:
        throughput = samples / step

    ratio = throughput * step / samples
    if not 0.95 < ratio < 1 / 0.95:
        raise SpecError(
            f"step_time_s={step:g} and throughput_samples_per_s={throughput:g} differ "
            f"by a factor of {ratio:.4g}: throughput = global_batch_size={samples} / "
            f"step_time_s.{_unit_hint(ratio, values)} Correct one or leave one out.",
            code="times_contradict",
        )

    return {"step_time_s": step, "throughput_samples_per_s": throughput}


def _unit_hint(ratio: float, values: Mapping[str, Any]) -> str:
    of_one = f"that of one device; {Option('per_device', True)} says so"
    for factor, looks_like in (
        (1e3, "step time looks like milliseconds"),
        (1e6, "step time looks like microseconds"),
        (1 / 60, "step time looks like minutes"),
        (1 / values["world_size"], f"throughput looks like {of_one}"),
        (
            values.get("sequence_length") or 1,
            f"throughput looks like that of tokens; {_TOKENS} says so",
        ),
        (
            1 / values["gradient_accumulation_steps"],
            "step time looks like that of one forward pass; it is per optimiser step",
        ),
    ):
        if math.isclose(ratio, factor, rel_tol=0.05):
            return f" The {looks_like}."
    return ""


def _require(values: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if values.get(name) is None:
            raise SpecError(
                f"{name} is empty. Fill it in; nothing else in the row tells it.",
                code="value_missing",
            )
