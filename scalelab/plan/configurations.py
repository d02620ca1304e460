"""Configurations of trials: a setup and a batch on an allocation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.experiment.batch_sizes import BatchRequest, BatchSizes
from scalelab.inputs.allocation import Allocation
from scalelab.kinds.strategy import TrialSizes
from scalelab.plan.setups import Setup

if TYPE_CHECKING:
    from scalelab.experiment.spec import Experiment


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a throughput trial measures: a setup and a batch on an allocation."""

    setup: Setup
    allocation: Allocation
    batch: BatchSizes


def batch_at(request: BatchRequest, setup: Setup, place: Allocation) -> BatchSizes:
    """Return the batch that is asked for on an allocation."""
    batch = request.at(setup.data_parallel_size(place))
    if setup.layout is not None:
        setup.layout.check_local_batch(batch.local_batch_size)
    setup.strategy.check(
        TrialSizes(
            allocation=place,
            local_batch_size=batch.local_batch_size,
            gradient_accumulation_steps=batch.gradient_accumulation_steps,
            options=setup.options,
        )
    )
    return batch


def fewest_devices(
    setup: Setup, places: Iterable[Allocation], local_batch_size: int
) -> Allocation:
    """Return one device, or the fewest of the places that can use a local batch.

    One device stands for all of them, unless the strategy spreads state over them, a
    layout does, or the options need more.
    """
    request = BatchRequest(local_batch_size=local_batch_size)
    tried = sorted(places, key=lambda place: place.world_size)
    if not setup.strategy.shards_state and setup.layout is None:
        tried.insert(0, Allocation(devices_per_node=(1,)))
    for place in tried:
        try:
            batch_at(request, setup, place)
        except SpecError as error:
            refused = error
        else:
            return place
    raise refused


def where_convergence_runs(
    experiment: Experiment, configurations: list[Configuration]
) -> list[Configuration]:
    """Return one configuration per global batch and normalisation batch.

    Batch norm sees the local batch, so each global batch keeps the local batches of the
    allocations it is meant for, and gradient accumulation makes up for the ranks.
    Without batch norm one run per global batch says it all, and one node group for all,
    and one layout: it says which ranks compute the step, not what the step is.
    Where statistics see the ranks together, or the strategy ties convergence to the
    number of workers, each allocation needs runs of its own.
    """
    of_setup: dict[Setup, dict[Allocation, None]] = {}
    for found in configurations:
        of_setup.setdefault(found.setup, {})[found.allocation] = None
    chosen: dict[tuple[Setup, int, int | None, int | None], Configuration] = {}
    # The largest local batch first: without batch norm it stands for the others.
    for found in sorted(configurations, key=lambda item: -item.batch.local_batch_size):
        setup, batch = found.setup, found.batch
        local, total = batch.local_batch_size, batch.global_batch_size
        held = local if experiment.has_batch_norm else None
        workers = None
        place = _place_for(experiment, setup, of_setup[setup], local, total)
        if _synchronises_batch_norm(experiment, setup):
            place = found.allocation
            held = local * setup.data_parallel_size(place)
        if not setup.strategy.factorises:
            place = found.allocation
            workers = setup.data_parallel_size(place)
        request = BatchRequest(local_batch_size=local, global_batch_size=total)
        anywhere = replace(setup, node_group=None, layout=None)
        chosen.setdefault(
            (anywhere, total, held, workers),
            Configuration(setup, place, batch_at(request, setup, place)),
        )
    return sorted(
        chosen.values(),
        key=lambda item: (item.batch.global_batch_size, item.batch.local_batch_size),
    )


def _synchronises_batch_norm(experiment: Experiment, setup: Setup) -> bool:
    fixed = experiment.workload.parameters if experiment.workload else {}
    return bool({**fixed, **setup.options}.get("sync_batch_norm", False))


def _place_for(
    experiment: Experiment,
    setup: Setup,
    places: Iterable[Allocation],
    local: int,
    total: int,
) -> Allocation:
    """Return the fewest devices that divide, or most up to ``convergence_gpus``."""
    fitting = sorted(
        (
            place
            for place in places
            if total % (local * setup.data_parallel_size(place)) == 0
        ),
        key=lambda place: place.world_size,
    )
    limit = experiment.measure.convergence_gpus or 1
    allowed = [place for place in fitting if place.world_size <= limit]
    return allowed[-1] if allowed else fitting[0]
