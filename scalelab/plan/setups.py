"""The axes of an experiment other than devices and batch: setups and allocations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.layout import Layout
from scalelab.kinds.strategies import strategy_of
from scalelab.kinds.strategy import Strategy

if TYPE_CHECKING:
    from scalelab.experiment.spec import Experiment
    from scalelab.site.profile import Site


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a trial other than devices and batch; they decide what fits."""

    precision: str
    parallelism: str
    axes: tuple[tuple[str, Scalar], ...]
    node_group: str | None = None
    layout: Layout | None = None
    tensor_across_nodes: bool = False
    program: str | None = None

    @property
    def options(self) -> Mapping[str, Scalar]:
        """Value of ``Trial.options``."""
        return dict(self.axes)

    @property
    def strategy(self) -> Strategy:
        """The strategy of the setup."""
        return strategy_of(self.parallelism)

    def data_parallel_size(self, allocation: Allocation) -> int:
        """Return how many ranks see different samples."""
        if self.layout is not None:
            parallel = self.layout.data_parallel_size(allocation.world_size)
            if not self.tensor_across_nodes:
                self.layout.check_nodes(allocation)
            return parallel
        size = self.strategy.data_parallel_size(allocation.world_size, self.options)
        if size < 1:
            raise SpecError(
                f"parallelism={self.parallelism} needs more devices than gpus="
                f"{allocation.world_size}: no rank would see samples. Use more devices."
            )
        return size

    def __str__(self) -> str:
        axes = (f"{name}={value}" for name, value in self.axes)
        group = [f"node_group={self.node_group}"] if self.node_group else []
        layout = [str(self.layout)] if self.layout else []
        program = [f"program={self.program}"] if self.program else []
        words = [*program, self.precision, self.parallelism, *axes, *layout, *group]
        return " ".join(words)


def num_combinations(experiment: Experiment) -> int:
    """Count the combinations of listed values without making them."""
    local = experiment.local_batch_size
    axes = [
        experiment.gpus or (),
        experiment.nodes or (),
        experiment.gpus_per_node or (),
        local if isinstance(local, tuple) else (),
        experiment.global_batch_size or (),
        experiment.precision,
        experiment.parallelism,
        experiment.node_group or (),
        experiment.program or (),
        *experiment.options.values(),
        *(experiment.layout.axes().values() if experiment.layout else ()),
    ]
    return math.prod(max(1, len(axis)) for axis in axes)


def node_groups(experiment: Experiment, site: Site) -> tuple[str | None, ...]:
    """Return the node groups that trials run on: those asked for, else the first."""
    asked = experiment.node_group
    if asked is None:
        return tuple(site.groups)[:1]
    for name in asked:
        site.in_group(name)
    return asked


def setups(experiment: Experiment, site: Site) -> tuple[Setup, ...]:
    """Return every combination of the axes other than devices and batch.

    Options that belong to one of several strategies are varied for that one alone.
    """
    listed = experiment.layout
    return tuple(
        Setup(
            precision.value,
            parallelism,
            axes,
            group,
            layout,
            listed is not None and listed.tensor_across_nodes,
            program,
        )
        for program in experiment.by_program()
        for group, precision, parallelism in product(
            node_groups(experiment, site), experiment.precision, experiment.parallelism
        )
        for axes in _axes(experiment, parallelism)
        for layout in (listed.layouts() if listed else (None,))
    )


def _axes(
    experiment: Experiment, parallelism: str
) -> Sequence[tuple[tuple[str, Scalar], ...]]:
    """Return every combination of the further axes that this strategy varies.

    A command gets every axis, because its command line may name any of them.
    """
    foreign: set[str] = set()
    if experiment.workload:
        listed = {name: strategy_of(name).options for name in experiment.parallelism}
        own = listed.pop(parallelism)
        foreign = {name for options in listed.values() for name in options} - {*own}
    names = sorted(experiment.options.keys() - foreign)
    combinations = product(*(experiment.options[name] for name in names))
    axes = [tuple(zip(names, values, strict=True)) for values in combinations]
    if not experiment.workload:
        return axes
    effective = strategy_of(parallelism).effective_options
    return list(dict.fromkeys(tuple(effective(dict(each)).items()) for each in axes))


@dataclass(frozen=True, slots=True)
class GroupAllocations:
    """Allocations that trials get, by node group."""

    of_group: Mapping[str | None, tuple[Allocation, ...]]
    left_out: tuple[str, ...]


def group_allocations(experiment: Experiment, site: Site) -> GroupAllocations:
    """Return the allocations that trials get in each node group."""
    asked = _asked(experiment)
    of_group: dict[str | None, tuple[Allocation, ...]] = {}
    problems: dict[_Asked, list[SpecError]] = {each: [] for each in asked}
    for name in node_groups(experiment, site):
        found: list[Allocation] = []
        for each in asked:
            try:
                found.append(_allocation(*each, site.groups[name]))
            except SpecError as error:
                problems[each].append(error)
        if not found:
            raise problems[asked[0]][-1]
        of_group[name] = tuple(found)
    for errors in problems.values():
        if len(errors) == len(of_group):
            raise errors[0]
    said = tuple(str(problem) for errors in problems.values() for problem in errors)
    return GroupAllocations(of_group, said)


_Asked = tuple[int | None, int]
"""Nodes and devices per node; or None, for as few nodes as possible, and devices."""


def _asked(experiment: Experiment) -> list[_Asked]:
    if experiment.gpus:
        return [(None, num_devices) for num_devices in experiment.gpus]
    return list(product(experiment.nodes or (), experiment.gpus_per_node or ()))


def _allocation(nodes: int | None, devices: int, site: Site) -> Allocation:
    if nodes is None:
        return _packed(devices, site)
    return _explicit(nodes, devices, site)


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
