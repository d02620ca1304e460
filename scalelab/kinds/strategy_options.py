"""Options of the built-in strategies: what an experiment may list for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import counted
from scalelab.inputs.problems import one_of, shown

ListedValues = Mapping[str, Sequence[Scalar]]
"""The values that an experiment lists for each option of a strategy that it sets."""

SERVER_RULES = ("downpour", "adag", "dynsgd", "elastic")
NO_COMPRESSION = "none"
_POWER_SGD = "powersgd"
GRADIENT_COMPRESSIONS = (NO_COMPRESSION, "fp16", "bf16", _POWER_SGD)
SCHEDULES = ("gpipe", "1f1b")


def any_values(listed: ListedValues) -> None:
    """Accept whatever is listed."""


def check_local_sgd(listed: ListedValues) -> None:
    """Refuse numbers of steps that are none, or no period at all."""
    if "averaging_period" not in listed:
        raise SpecError(
            "parallelism=local_sgd needs options.averaging_period: the steps after "
            "which ranks average their parameters. Add, for example, options: "
            "{averaging_period: [4, 16]}."
        )
    _check_slow_rank_factors(listed)
    _check_whole_numbers(listed, "averaging_period", at_least=1)
    _check_whole_numbers(listed, "synchronous_steps", at_least=0)


def check_slow_rank(world_size: int, options: Mapping[str, Scalar]) -> None:
    """Refuse a slow rank that nobody waits for."""
    factor = slow_rank_factor(options)
    if world_size == 1 and factor > 1:
        raise SpecError(
            f"options.slow_rank_factor={factor:g} makes one of several ranks slow, and "
            "one device has one rank. Use more devices."
        )


def slow_rank_factor(options: Mapping[str, Scalar]) -> float:
    """Return how many times as long the last rank takes for a step."""
    return float(options.get("slow_rank_factor", 1))


def _check_slow_rank_factors(listed: ListedValues) -> None:
    for value in listed.get("slow_rank_factor", ()):
        if isinstance(value, str | bool) or not value >= 1:
            raise SpecError(
                f"options.slow_rank_factor={shown(value)} must be a number, at least "
                "1: how many times as long the last rank takes for a step."
            )


def averaging_period(options: Mapping[str, Scalar]) -> int:
    """Return the steps from one averaging of the parameters to the next."""
    return int(options.get("averaging_period", 1))


def check_ddp(listed: ListedValues) -> None:
    """Refuse what is no way of exchanging gradients."""
    _check_slow_rank_factors(listed)
    for name in ("sync_batch_norm", "static_graph"):
        for value in listed.get(name, ()):
            if type(value) is not bool:
                raise SpecError(f"options.{name}={shown(value)} must be true or false.")
    for value in listed.get("gradient_compression", ()):
        if value not in GRADIENT_COMPRESSIONS:
            raise SpecError(
                f"options.gradient_compression={shown(value)} is no format of "
                f"gradients. {one_of(GRADIENT_COMPRESSIONS, str(value))}"
            )
    _check_powersgd_ranks(listed)
    for value in listed.get("bucket_cap_mb", ()):
        if isinstance(value, str | bool) or not value > 0:
            raise SpecError(
                f"options.bucket_cap_mb={shown(value)} must be a size above 0, in MiB."
            )


def _check_powersgd_ranks(listed: ListedValues) -> None:
    _check_whole_numbers(listed, "powersgd_rank", at_least=1)
    is_used = _POWER_SGD in listed.get("gradient_compression", ())
    if "powersgd_rank" in listed and not is_used:
        raise SpecError(
            "options.powersgd_rank is the rank of what options.gradient_compression="
            "powersgd exchanges, and that is not listed. Add powersgd to "
            "gradient_compression, or remove powersgd_rank."
        )


def powersgd_rank(options: Mapping[str, Scalar]) -> int | None:
    """Return the rank of the products that PowerSGD exchanges; None: it is not used."""
    altering = altering_options_of_ddp(options)
    return int(altering["powersgd_rank"]) if altering else None


def altering_options_of_ddp(options: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """Return what is set for PowerSGD; nothing where it is not used."""
    if options.get("gradient_compression") != _POWER_SGD:
        return {}
    rank = options.get("powersgd_rank", 1)
    return {"gradient_compression": _POWER_SGD, "powersgd_rank": rank}


def effective_options_of_ddp(options: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """Return the options without the rank of PowerSGD where it is not used."""
    if altering_options_of_ddp(options):
        return options
    return {name: options[name] for name in options if name != "powersgd_rank"}


def check_static_graph(
    world_size: int, accumulation_steps: int, options: Mapping[str, Scalar]
) -> None:
    """Refuse a static graph where the first pass of a step exchanges nothing.

    torch records the graph in the first exchange and fails where a pass came before it.
    """
    if options.get("static_graph") is True and min(world_size, accumulation_steps) > 1:
        raise SpecError(
            f"parallelism=ddp: options.static_graph does not go with "
            f"gradient_accumulation_steps={accumulation_steps}: torch fails where a "
            "pass without exchange comes first. Use 1, larger local batches or one "
            "device."
        )


def check_fsdp(listed: ListedValues) -> None:
    """Refuse shard groups that are no number of ranks."""
    _check_whole_numbers(listed, "shard_group", at_least=1)


def check_shard_group(world_size: int, options: Mapping[str, Scalar]) -> None:
    """Refuse a world size that shard groups do not divide."""
    divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
    size = options.get("shard_group", world_size)
    if size not in divisors:
        raise SpecError(
            f"parallelism=fsdp: options.shard_group={shown(size)} does not divide "
            f"{counted(world_size, 'device')}, so that ranks cannot be grouped. Use "
            f"one of {', '.join(map(str, divisors))}, or other numbers of devices."
        )


def shard_group(world_size: int, options: Mapping[str, Scalar]) -> int:
    """Return how many ranks hold one copy of the state between them."""
    return int(options.get("shard_group", world_size))


def check_parameter_server(listed: ListedValues) -> None:
    """Refuse rules that do not exist, and numbers that are none."""
    for value in listed.get("rule", ()):
        if value not in SERVER_RULES:
            raise SpecError(
                f"options.rule={shown(value)} is no rule of parameter servers. "
                f"{one_of(SERVER_RULES, str(value))}"
            )
    _check_slow_rank_factors(listed)
    _check_whole_numbers(listed, "communication_window", at_least=1)
    _check_whole_numbers(listed, "num_servers", at_least=1)
    _check_whole_numbers(listed, "staleness_bound", at_least=1)


def server_rule(options: Mapping[str, Scalar]) -> str:
    """Return the rule by which servers change the parameters."""
    return str(options.get("rule", "adag"))


def communication_window(options: Mapping[str, Scalar]) -> int:
    """Return the optimiser steps from one exchange with the servers to the next."""
    return int(options.get("communication_window", 1))


def num_servers(options: Mapping[str, Scalar]) -> int:
    """Return over how many servers the parameters are spread."""
    return int(options.get("num_servers", 1))


def staleness_bound(options: Mapping[str, Scalar]) -> int | None:
    """Return by how many steps a worker may be ahead of the slowest; None: any."""
    bound = options.get("staleness_bound")
    return None if bound is None else int(bound)


def check_pipeline(listed: ListedValues) -> None:
    """Refuse schedules that do not exist, numbers that are none, or no split size."""
    if "split_size" not in listed:
        raise SpecError(
            "parallelism=pipeline needs options.split_size: the samples per "
            "micro-batch. Add, for example, options: {split_size: [4, 8]}."
        )
    for value in listed.get("schedule", ()):
        if value not in SCHEDULES:
            raise SpecError(
                f"options.schedule={shown(value)} is no schedule of pipelines. "
                f"{one_of(SCHEDULES, str(value))}"
            )
    _check_whole_numbers(listed, "split_size", at_least=1)
    _check_whole_numbers(listed, "stages", at_least=1)


def num_stages(world_size: int, options: Mapping[str, Scalar]) -> int:
    """Return among how many ranks the layers of a model are divided."""
    stages = options.get("stages")
    return stages if type(stages) is int else world_size


def num_pipelines(world_size: int, options: Mapping[str, Scalar]) -> int:
    """Return how many pipelines the ranks form; each has the whole model.

    Raises
    ------
    SpecError
        If the stages do not divide the ranks.
    """
    stages = num_stages(world_size, options)
    divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
    if stages not in divisors:
        raise SpecError(
            f"parallelism=pipeline: options.stages={stages} does not divide "
            f"{counted(world_size, 'device')}, so that they form no whole pipelines. "
            f"Use one of {', '.join(map(str, divisors))}, or other numbers of devices."
        )
    return world_size // stages


def check_micro_batches(
    world_size: int, local_batch_size: int, options: Mapping[str, Scalar]
) -> None:
    """Refuse a local batch that cannot be split, or is split into too few parts."""
    size = options.get("split_size")
    if type(size) is not int:  # a command may call its options as it likes
        return
    if local_batch_size % size:
        raise SpecError(
            f"parallelism=pipeline: options.split_size={size} does not divide "
            f"local_batch_size={local_batch_size} into equal micro-batches. Use a "
            "divisor, or another local batch."
        )
    stages, micro_batches = num_stages(world_size, options), local_batch_size // size
    if pipeline_schedule(options) == "1f1b" and micro_batches < stages:
        raise SpecError(
            f"parallelism=pipeline: options.schedule=1f1b needs a micro-batch for "
            f"each of the {stages} stages, and local_batch_size={local_batch_size} / "
            f"split_size={size} is {micro_batches}. Use a smaller split_size, a "
            "larger local batch, fewer stages, or schedule: gpipe."
        )


def pipeline_schedule(options: Mapping[str, Scalar]) -> str:
    """Return the order in which stages compute micro-batches."""
    return str(options.get("schedule", "gpipe"))


def split_size(options: Mapping[str, Scalar]) -> int:
    """Return the samples of a micro-batch."""
    return int(options["split_size"])


def _check_whole_numbers(listed: ListedValues, name: str, *, at_least: int) -> None:
    for value in listed.get(name, ()):
        if type(value) is not int or value < at_least:
            raise SpecError(
                f"options.{name}={shown(value)} must be a whole number, at least "
                f"{at_least}."
            )
