"""The axes of an experiment other than devices and batch: setups and allocations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.experiment.trial import Allocation, Scalar

if TYPE_CHECKING:
    from scalelab.experiment.site import Site
    from scalelab.experiment.spec import Experiment


@dataclass(frozen=True, slots=True)
class Setup:
    """How the program runs, whatever the devices and the batch; decides what fits.

    Parameters
    ----------
    precision, parallelism
        As in a trial.
    axes
        The further axes, name and value, sorted by name.
    """

    precision: str
    parallelism: str
    axes: tuple[tuple[str, Scalar], ...]

    @property
    def options(self) -> Mapping[str, Scalar]:
        """Value of ``Trial.options``."""
        return dict(self.axes)

    def __str__(self) -> str:
        axes = (f"{name}={value}" for name, value in self.axes)
        return " ".join([self.precision, self.parallelism, *axes])


def num_combinations(experiment: Experiment) -> int:
    """Return how many combinations of listed values there are, cheaply."""
    local = experiment.local_batch_size
    axes = [
        experiment.gpus or (),
        experiment.nodes or (),
        experiment.gpus_per_node or (),
        local if isinstance(local, tuple) else (),
        experiment.global_batch_size or (),
        experiment.precision,
        experiment.parallelism,
        *experiment.options.values(),
    ]
    return math.prod(max(1, len(axis)) for axis in axes)


def setups(experiment: Experiment) -> tuple[Setup, ...]:
    """Return every combination of precision, parallelism and options."""
    names = sorted(experiment.options)
    axes = product(*(experiment.options[name] for name in names))
    return tuple(
        Setup(precision.value, parallelism, tuple(zip(names, values, strict=True)))
        for precision, parallelism, values in product(
            experiment.precision, experiment.parallelism, axes
        )
    )


def allocations(experiment: Experiment, site: Site) -> tuple[Allocation, ...]:
    """Return the devices that trials get, in the order written.

    Raises
    ------
    SpecError
        If the site has fewer nodes or smaller ones.
    """
    if experiment.gpus:
        return tuple(_packed(num_devices, site) for num_devices in experiment.gpus)
    grid = product(experiment.nodes or (), experiment.gpus_per_node or ())
    return tuple(_explicit(nodes, per_node, site) for nodes, per_node in grid)


def _packed(num_devices: int, site: Site) -> Allocation:
    limit = site.num_devices
    if limit is not None and num_devices > limit:
        raise SpecError(
            f"gpus={num_devices} is more than site {site.name!r} has: "
            f"{site.num_nodes} x {site.devices_per_node} = {limit} "
            f"{_device_word(site)}. Use at most "
            f"{limit}, or say in the site that it has more (nodes, gpus_per_node)."
        )
    return Allocation.packed(num_devices, site.devices_per_node)


def _explicit(nodes: int, per_node: int, site: Site) -> Allocation:
    if per_node > site.devices_per_node:
        raise SpecError(
            f"gpus_per_node={per_node} is more than a node of site {site.name!r} has: "
            f"{site.devices_per_node} {_device_word(site)}. Use at most that many, or "
            "change gpus_per_node in the site."
        )
    if site.num_nodes is not None and nodes > site.num_nodes:
        raise SpecError(
            f"nodes={nodes} is more than site {site.name!r} has: {site.num_nodes}. Use "
            "at most that many, or change nodes in the site."
        )
    return Allocation(devices_per_node=(per_node,) * nodes)


def _device_word(site: Site) -> str:
    return "GPUs" if site.device_type == "cuda" else "cores"
