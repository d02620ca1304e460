"""Strategies: the ways to train one model on several devices (axis ``parallelism``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scalelab.inputs.document import Scalar
from scalelab.kinds.registry import Registry

DataParallelSize = Callable[[int, Mapping[str, Scalar]], int]


def every_rank(world_size: int, options: Mapping[str, Scalar]) -> int:
    """Return the data-parallel size where every rank sees samples of its own."""
    return world_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """How a model and its batch are spread over the ranks.

    Parameters
    ----------
    name
        Value of the axis ``parallelism``.
    engine
        Path, ``module:attribute``, of what trains a workload this way; see
        ``training.engines``.
    data_parallel_size
        Ranks that see different samples, of the world size and the trial's options.
    is_synchronous
        All ranks take the same step, from the same weights. Where not, gradients are
        stale and the number of workers changes what training converges to.
    factorises
        Samples to a target do not depend on who computed them, so that time to target
        is samples needed times time per sample.
    shards_state
        Parameters, gradients or optimiser state are spread over the data-parallel
        ranks, so that more of them leave each more memory.
    """

    name: str
    engine: str
    data_parallel_size: DataParallelSize = every_rank
    is_synchronous: bool = True
    factorises: bool = True
    shards_state: bool = False


STRATEGIES = Registry(
    "scalelab.strategies",
    Strategy,
    key="parallelism",
    built_in=(Strategy(name="ddp", engine="scalelab.training.engines.ddp:DdpEngine"),),
)
