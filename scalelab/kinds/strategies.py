"""Strategies: the ways to train one model on several devices (axis ``parallelism``)."""

from typing import Annotated, Literal

from pydantic import Field

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.kinds.registry import Registry
from scalelab.kinds.strategy import ListedValues, Strategy, TrialOptions, TrialSizes

Count = Annotated[int, Field(ge=1)]
Schedule = Literal["gpipe", "1f1b"]
ServerRule = Literal["downpour", "adag", "dynsgd", "elastic"]


class SlowRankStrategy(Strategy):
    """A strategy whose last rank can be made slow, to see what that costs."""

    class Options(Strategy.Options):
        """The last rank's slowness."""

        slow_rank_factor: float = Field(
            1,
            ge=1,
            description="How many times as long the last rank takes, 1 or more.",
        )

    def check(self, sizes: TrialSizes) -> None:
        """Refuse a slow rank that nobody waits for."""
        factor = slow_rank_factor(sizes.options)
        if factor > 1 and sizes.allocation.world_size == 1:
            raise SpecError(
                f"options.slow_rank_factor={factor:g} makes one of several ranks slow, "
                "and one device has one rank. Use more devices.",
                code="slow_rank_alone",
            )


def slow_rank_factor(options: TrialOptions) -> float:
    """Return how many times as long the last rank takes for a step."""
    return SlowRankStrategy.Options.of(options).slow_rank_factor


class Ddp(SlowRankStrategy):
    """Every rank has the whole model; gradients are averaged at every step."""

    name = "ddp"

    class Options(SlowRankStrategy.Options):
        """How gradients are exchanged."""

        sync_batch_norm: bool = Field(
            False, description="Batch normalisation sees the samples of all ranks."
        )
        gradient_compression: Literal["none", "fp16", "bf16", "powersgd"] = Field(
            "none", description="The format in which gradients are exchanged."
        )
        powersgd_rank: Count = Field(
            1, description="Rank of the products of PowerSGD, 1 or more."
        )
        bucket_cap_mb: float | None = Field(
            None, gt=0, description="MiB of gradients exchanged together, above 0."
        )
        static_graph: bool = Field(
            False, description="torch records the graph once and then relies on it."
        )

        @property
        def uses_powersgd(self) -> bool:
            """Gradients are exchanged as products of low rank."""
            return self.gradient_compression == "powersgd"

    def check_options(self, listed: ListedValues) -> None:
        """Refuse also a rank of products that no listed format exchanges."""
        super().check_options(listed)
        is_used = "powersgd" in listed.get("gradient_compression", ())
        if "powersgd_rank" in listed and not is_used:
            raise SpecError(
                "options.powersgd_rank is the rank of what options.gradient_compression"
                "=powersgd exchanges, and that is not listed. Add powersgd to "
                "gradient_compression, or remove powersgd_rank.",
                code="rank_without_powersgd",
            )

    def effective_options(self, options: TrialOptions) -> TrialOptions:
        """Return the options without the rank of products that are not exchanged."""
        if self.Options.of(options).uses_powersgd:
            return options
        return {name: options[name] for name in options if name != "powersgd_rank"}

    def altering_options(self, options: TrialOptions) -> TrialOptions:
        """Return the settings of PowerSGD where it is used."""
        chosen = self.Options.of(options)
        if not chosen.uses_powersgd:
            return {}
        return {
            "gradient_compression": chosen.gradient_compression,
            "powersgd_rank": chosen.powersgd_rank,
        }

    def check(self, sizes: TrialSizes) -> None:
        """Refuse also a static graph where the first pass of a step exchanges nothing.

        torch records the graph in the first exchange and fails where a pass came before
        it.
        """
        super().check(sizes)
        passes = sizes.gradient_accumulation_steps

        is_static = self.Options.of(sizes.options).static_graph
        if is_static and min(sizes.allocation.world_size, passes) > 1:
            raise SpecError(
                "parallelism=ddp: options.static_graph does not go with "
                f"gradient_accumulation_steps={passes}: torch fails where a pass "
                "without exchange comes first. Use 1, larger local batches or one "
                "device.",
                code="static_graph_with_passes",
            )


class Fsdp(Strategy):
    """Parameters, gradients and optimiser state are spread over the ranks."""

    name = "fsdp"
    shards_state = True

    class Options(Strategy.Options):
        """Which ranks share a copy of the state."""

        shard_group: Count | None = Field(
            None, description="Ranks that hold one copy of the state, 1 or more."
        )

    def check(self, sizes: TrialSizes) -> None:
        """Refuse a world size that shard groups do not divide."""
        world_size = sizes.allocation.world_size
        size = self.Options.of(sizes.options).shard_group or world_size
        _check_divides(
            f"parallelism=fsdp: options.shard_group={size}",
            size,
            world_size,
            "ranks cannot be grouped",
        )


class LocalSgd(SlowRankStrategy):
    """Ranks step by themselves and average their parameters now and then."""

    name = "local_sgd"
    needed_options = ("averaging_period",)
    is_synchronous = False
    factorises = False

    class Options(SlowRankStrategy.Options):
        """When parameters are averaged."""

        averaging_period: Count = Field(
            1,
            description="Steps between averages, 1 or more: averaging_period: [4, 16].",
        )
        synchronous_steps: int = Field(
            0, ge=0, description="How many first steps are those of ddp, 0 or more."
        )

    def cycle(self, options: TrialOptions) -> int:
        """Return the steps from one averaging to the next."""
        return self.Options.of(options).averaging_period


class ParameterServer(SlowRankStrategy):
    """Workers step by themselves and exchange parameters with servers."""

    name = "parameter_server"
    is_synchronous = False
    factorises = False

    class Options(SlowRankStrategy.Options):
        """What servers do, and when they are asked."""

        rule: ServerRule = Field(
            "adag", description="The rule by which servers change the parameters."
        )
        communication_window: Count = Field(
            1, description="Steps between exchanges with the servers, 1 or more."
        )
        num_servers: Count = Field(
            1, description="Servers that share the parameters, 1 or more."
        )
        staleness_bound: Count | None = Field(
            None, description="Steps that a worker may be ahead of others, 1 or more."
        )

    def cycle(self, options: TrialOptions) -> int:
        """Return the steps from one exchange with the servers to the next."""
        return self.Options.of(options).communication_window

    def num_servers(self, world_size: int, options: TrialOptions) -> int:
        """Return the servers; one rank needs none."""
        return self.Options.of(options).num_servers if world_size > 1 else 0

    def steps_in_flight(self, world_size: int, options: TrialOptions) -> int:
        """Return the steps of all workers between two exchanges of one."""
        return world_size * self.cycle(options) if world_size > 1 else 1


class Pipeline(Strategy):
    """The layers of the model are divided over the ranks."""

    name = "pipeline"
    needed_options = ("split_size",)
    shards_state = True
    splits_model = True

    class Options(Strategy.Options):
        """How a model and its local batches are divided."""

        schedule: Schedule = Field(
            "gpipe", description="The order in which stages compute micro-batches."
        )
        split_size: Count | None = Field(
            None, description="Samples per micro-batch, 1 or more: split_size: [4, 8]."
        )
        stages: Count | None = Field(
            None, description="Ranks that share the layers, 1 or more."
        )

    def data_parallel_size(self, world_size: int, options: TrialOptions) -> int:
        """Return how many pipelines the ranks form; each has the whole model."""
        stages = self.Options.of(options).stages or world_size
        _check_divides(
            f"parallelism=pipeline: options.stages={stages}",
            stages,
            world_size,
            "they form no whole pipelines",
        )
        return world_size // stages

    def check(self, sizes: TrialSizes) -> None:
        """Refuse a local batch that cannot be split, or is split into too few parts."""
        options, local = self.Options.of(sizes.options), sizes.local_batch_size
        size, stages = options.split_size, options.stages or sizes.allocation.world_size
        if size is None:
            return

        if local % size:
            raise SpecError(
                f"parallelism=pipeline: options.split_size={size} does not divide "
                f"local_batch_size={local} into equal micro-batches. Use a divisor, or "
                "another local batch.",
                code="split_does_not_divide",
            )

        if options.schedule == "1f1b" and local // size < stages:
            raise SpecError(
                "parallelism=pipeline: options.schedule=1f1b needs a micro-batch for "
                f"each of the {stages} stages, and local_batch_size={local} / "
                f"split_size={size} is {local // size}. Use a smaller split_size, a "
                "larger local batch, fewer stages, or schedule: gpipe.",
                code="too_few_micro_batches",
            )


def _check_divides(wording: str, size: int, world_size: int, problem: str) -> None:
    divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
    if size not in divisors:
        raise SpecError(
            f"{wording} does not divide {counted(world_size, 'device')}, so that "
            f"{problem}. Use one of {', '.join(map(str, divisors))}, or other numbers "
            "of devices.",
            code="size_does_not_divide",
        )


# How a trial is run, and a recorded row is understood, that names no strategy.
DEFAULT_STRATEGY = Ddp.name
STRATEGIES = Registry(
    "scalelab.strategies",
    Strategy,
    key="parallelism",
    built_in=(Ddp(), Fsdp(), LocalSgd(), ParameterServer(), Pipeline()),
)


class _Foreign(Strategy):
    shards_state = True

    def __init__(self, name: str) -> None:
        self.name = name


def strategy_of(name: object) -> Strategy:
    """Return the strategy that a trial or a recorded row names; it is never refused.

    Commands, and tables that somebody else measured, may name a way of training that no
    registry knows. Such a strategy counts as synchronous, since nearly all are, and its
    ranks as data-parallel unless a row says otherwise. It also counts as sharded: that
    assumes least, because a batch that ran on many devices is then not taken to fit on
    fewer. A missing name stands for :data:`DEFAULT_STRATEGY`.
    """
    if not isinstance(name, str):
        return STRATEGIES[DEFAULT_STRATEGY]
    return STRATEGIES[name] if name in STRATEGIES else _Foreign(name)
