"""Strategies: the ways to train one model on several devices (axis ``parallelism``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.kinds.registry import Registry
from scalelab.kinds.strategy_options import (
    ListedValues,
    altering_options_of_ddp,
    any_values,
    averaging_period,
    check_ddp,
    check_fsdp,
    check_local_sgd,
    check_micro_batches,
    check_parameter_server,
    check_pipeline,
    check_shard_group,
    check_slow_rank,
    check_static_graph,
    communication_window,
    effective_options_of_ddp,
    num_pipelines,
    num_servers,
)

Options = Mapping[str, Scalar]
DataParallelSize = Callable[[int, Options], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSizes:
    """The sizes of a trial, which a strategy may refuse before anything runs.

    Parameters
    ----------
    allocation
        Devices and nodes; one rank per device.
    local_batch_size, gradient_accumulation_steps
        As in a trial.
    options
        The trial's further axes.
    """

    allocation: Allocation
    local_batch_size: int
    gradient_accumulation_steps: int = 1
    options: Options = field(default_factory=dict)


def every_rank(world_size: int, options: Options) -> int:
    """Return the data-parallel size where every rank sees samples of its own."""
    return world_size


def every_step(options: Options) -> int:
    """Return the length of a cycle where all steps do the same work."""
    return 1


def no_servers(world_size: int, options: Options) -> int:
    """Return how many parameter servers there are where ranks need none."""
    return 0


def one_step(world_size: int, options: Options) -> int:
    """Return the steps in flight where all ranks take each step together."""
    return 1


def all_options(options: Options) -> Options:
    """Return the options where each says something whatever the others are."""
    return options


def no_options(options: Options) -> Options:
    """Return no option: none alters what is learned."""
    return {}


def any_sizes(sizes: TrialSizes) -> None:
    """Accept the sizes of every trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """The way in which a model and its batch are spread over the ranks.

    Parameters
    ----------
    name
        Value of the axis ``parallelism``.
    data_parallel_size
        Ranks that see different samples, of the world size and the trial's options. It
        raises a SpecError where the ranks cannot be divided up.
    options
        Axes under ``options`` that belong to the strategy and not to the workload.
        Trials of other strategies in the same experiment do not vary them.
    check_options
        Raises a SpecError where an experiment with a workload lists wrong values for
        them, or lacks one.
    effective_options
        Of a trial's options those that say something beside the others. The rest is not
        varied, and is no part of the trial.
    check
        Raises a SpecError where the sizes of a trial do not suit the strategy.
    cycle
        Steps after which the work of a step repeats, of the trial's options. A
        throughput trial measures whole cycles.
    num_servers
        Processes that keep the parameters, of the world size and the trial's options.
        They run beside rank 0, on the CPU, and hold no device.
    steps_in_flight
        Optimiser steps of all workers between two messages of one, of the world size
        and the trial's options; 1 where workers wait for each other.
    altering_options
        Of a trial's options those that alter what is learned from a global batch, on
        one rank as on many. Convergence is measured apart for their values, and the
        accuracy of other ways is not compared with such a rank.
    is_synchronous
        All ranks take the same step, from the same weights. Where not, the number of
        workers changes what training converges to.
    factorises
        Samples to a target do not depend on who computed them, so that time to target
        is samples needed times time per sample.
    shards_state
        Parameters, gradients or optimiser state are spread over the ranks, so that more
        of them leave each more memory.
    splits_model
        The layers of the model are divided over the ranks, and the local batch into
        micro-batches: the workload must train a model, and its local batches are
        listed, not searched for.
    """

    name: str
    data_parallel_size: DataParallelSize = every_rank
    options: tuple[str, ...] = ()
    check_options: Callable[[ListedValues], None] = any_values
    effective_options: Callable[[Options], Options] = all_options
    check: Callable[[TrialSizes], None] = any_sizes
    cycle: Callable[[Options], int] = every_step
    num_servers: Callable[[int, Options], int] = no_servers
    steps_in_flight: Callable[[int, Options], int] = one_step
    altering_options: Callable[[Options], Options] = no_options
    is_synchronous: bool = True
    factorises: bool = True
    shards_state: bool = False
    splits_model: bool = False


def _check_ddp_sizes(sizes: TrialSizes) -> None:
    world_size, options = sizes.allocation.world_size, sizes.options
    check_static_graph(world_size, sizes.gradient_accumulation_steps, options)
    check_slow_rank(world_size, options)


DDP = Strategy(
    name="ddp",
    options=(
        "sync_batch_norm",
        "gradient_compression",
        "powersgd_rank",
        "bucket_cap_mb",
        "static_graph",
        "slow_rank_factor",
    ),
    check_options=check_ddp,
    effective_options=effective_options_of_ddp,
    check=_check_ddp_sizes,
    altering_options=altering_options_of_ddp,
)
FSDP = Strategy(
    name="fsdp",
    options=("shard_group",),
    check_options=check_fsdp,
    check=lambda sizes: check_shard_group(sizes.allocation.world_size, sizes.options),
    shards_state=True,
)
LOCAL_SGD = Strategy(
    name="local_sgd",
    options=("averaging_period", "synchronous_steps", "slow_rank_factor"),
    check_options=check_local_sgd,
    check=lambda sizes: check_slow_rank(sizes.allocation.world_size, sizes.options),
    cycle=averaging_period,
    is_synchronous=False,
    factorises=False,
)
PARAMETER_SERVER = Strategy(
    name="parameter_server",
    options=(
        "rule",
        "communication_window",
        "num_servers",
        "staleness_bound",
        "slow_rank_factor",
    ),
    check_options=check_parameter_server,
    check=lambda sizes: check_slow_rank(sizes.allocation.world_size, sizes.options),
    cycle=communication_window,
    num_servers=lambda world_size, options: (
        num_servers(options) if world_size > 1 else 0
    ),
    steps_in_flight=lambda world_size, options: (
        world_size * communication_window(options) if world_size > 1 else 1
    ),
    is_synchronous=False,
    factorises=False,
)
PIPELINE = Strategy(
    name="pipeline",
    data_parallel_size=num_pipelines,
    options=("schedule", "split_size", "stages"),
    check_options=check_pipeline,
    check=lambda sizes: check_micro_batches(
        sizes.allocation.world_size, sizes.local_batch_size, sizes.options
    ),
    shards_state=True,
    splits_model=True,
)
DEFAULT_STRATEGY = DDP.name
"""How a trial is run, and a recorded row is understood, that names no strategy."""
STRATEGIES = Registry(
    "scalelab.strategies",
    Strategy,
    key="parallelism",
    built_in=(DDP, FSDP, LOCAL_SGD, PARAMETER_SERVER, PIPELINE),
)
_FOREIGN = Strategy(name="", shards_state=True)


def strategy_of(name: object) -> Strategy:
    """Return the strategy that a trial or a recorded row names; it is never refused.

    Commands, and tables that somebody else measured, may name a way of training that no
    registry knows. Such a strategy counts as synchronous, since nearly all are, and its
    ranks as data-parallel unless a row says otherwise. It also counts as sharded: that
    assumes least, because a batch that ran on many devices is then not taken to fit on
    fewer. A missing name stands for :data:`DEFAULT_STRATEGY`.
    """
    if not isinstance(name, str):
        return DDP
    return STRATEGIES[name] if name in STRATEGIES else replace(_FOREIGN, name=name)
