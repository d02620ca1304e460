"""Configurations: the settings, devices and batches that an experiment combines."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

from scalelab.errors import SpecError
from scalelab.experiment.sections import AutoBatch
from scalelab.experiment.spec import Experiment
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.layout import Layout
from scalelab.kinds.strategies import strategy_of
from scalelab.kinds.strategy import Strategy, TrialSizes
from scalelab.site.profile import Site

MAX_TRIALS = 100_000
DEFAULT_LARGEST_LOCAL_BATCH = 16_384


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The batch sizes that were asked for; those that are None follow from the other.

    Local: samples per rank per forward pass. Global: samples per optimiser step.
    """

    local_batch_size: int | None = None
    global_batch_size: int | None = None
    gradient_accumulation_steps: int = 1

    def at(
        self, data_parallel_size: int, largest: int | None = None
    ) -> tuple[int, int]:
        """Return local batch and accumulation on ranks that see different samples.

        ``largest`` is the largest local batch that fits, where that is looked for: then
        it is accumulated in the fewest steps.
        """
        local, total = self.local_batch_size, self.global_batch_size
        accumulation = self.gradient_accumulation_steps
        if total is None:
            local = local or largest or 1
        elif largest is not None:
            per_rank = _share(total, data_parallel_size)
            local = min(per_rank, largest)
            while per_rank % local:
                local -= 1
            accumulation = per_rank // local
        elif local is not None:
            one_pass = local * data_parallel_size
            if total % one_pass:
                raise SpecError(
                    f"global_batch_size={total} is not divisible by data_parallel_size="
                    f"{data_parallel_size} * local_batch_size={local} (={one_pass}). "
                    f"Use a multiple of {one_pass} or change local_batch_size.",
                    code="batch_does_not_divide",
                )
            accumulation = total // one_pass
        else:
            local = _share(total, data_parallel_size, accumulation)

        return local, accumulation


def _share(total: int, data_parallel_size: int, accumulation: int = 1) -> int:
    shares = data_parallel_size * accumulation
    if total % shares:
        divisor = f"data_parallel_size={data_parallel_size}"
        if accumulation > 1:
            divisor += f" * gradient_accumulation_steps={accumulation} (={shares})"
        raise SpecError(
            f"global_batch_size={total} is not divisible by {divisor}. Use a multiple "
            f"of {shares} or change the number of devices.",
            code="batch_does_not_divide",
        )
    return total // shares


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
                f"{allocation.world_size}: no rank would see samples. Use more "
                "devices.",
                code="no_rank_left",
            )

        return size

    def on(
        self, allocation: Allocation, request: BatchRequest, largest: int | None = None
    ) -> Configuration:
        """Return the setup on an allocation, with the batch that is asked for."""
        parallel = self.data_parallel_size(allocation)
        local, accumulation = request.at(parallel, largest)
        if self.layout is not None:
            self.layout.check_local_batch(local)

        self.strategy.check(
            TrialSizes(
                allocation=allocation,
                local_batch_size=local,
                gradient_accumulation_steps=accumulation,
                options=self.options,
            )
        )
        return Configuration(
            setup=self,
            allocation=allocation,
            local_batch_size=local,
            gradient_accumulation_steps=accumulation,
            global_batch_size=local * parallel * accumulation,
        )

    def smallest(self, places: Iterable[Allocation], local: int) -> Allocation:
        """Return one device, or the fewest of the places that can use a local batch.

        One device stands for all of them, unless the strategy spreads state over them,
        a layout does, or the options need more.
        """
        request = BatchRequest(local_batch_size=local)
        tried = sorted(places, key=lambda place: place.world_size)
        if not self.strategy.shards_state and self.layout is None:
            tried.insert(0, Allocation(devices_per_node=(1,)))

        for place in tried:
            try:
                self.on(place, request)
            except SpecError as error:
                refused = error
            else:
                return place

        raise refused

    def __str__(self) -> str:
        words = [
            self.program and f"program={self.program}",
            self.precision,
            self.parallelism,
            *(f"{name}={value}" for name, value in self.axes),
            str(self.layout or ""),
            self.node_group and f"node_group={self.node_group}",
        ]
        return " ".join(filter(None, words))


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """What a throughput trial measures: a setup and a batch on an allocation."""

    setup: Setup
    allocation: Allocation
    local_batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoBatchSearch:
    """Where the largest local batch is looked for, and up to which size."""

    at_most: int
    allocations: Mapping[Setup, Allocation]


def configurations(
    experiment: Experiment,
    site: Site,
    local_batch_sizes: Mapping[Setup, int] | None = None,
) -> tuple[list[Configuration], list[str], AutoBatchSearch]:
    """Return feasible configurations, why others are not run, and the search of auto.

    A listed value that no feasible configuration has is refused.
    """
    refuse_above_limit(_num_combinations(experiment))
    left_out: list[str] = []
    allocations = _allocations(experiment, site, left_out)
    listed = experiment.local_batch_size
    requests = [
        BatchRequest(local, total, experiment.gradient_accumulation_steps or 1)
        for local in (listed if isinstance(listed, tuple) else (None,))
        for total in experiment.global_batch_size or (None,)
    ]
    every = [
        (setup, allocations[setup.node_group]) for setup in setups(experiment, site)
    ]
    most = _largest(experiment, every)
    searched_on: dict[Setup, Allocation] = {}
    feasible: list[Configuration] = []
    problems: dict[tuple[str, Scalar | None], SpecError] = {}

    used: set[tuple[str, Scalar | None]] = set()
    for setup, places in every:
        largest = None
        if isinstance(listed, AutoBatch):
            try:
                searched_on[setup] = setup.smallest(places, most)
                why = f"{setup}: not even local_batch_size=1 fits into memory."
            except SpecError as error:
                why = str(error)
            largest = (local_batch_sizes or {}).get(setup, most)
            if local_batch_sizes and setup not in local_batch_sizes:
                left_out.append(why)
                continue
        for place, request in product(places, requests):
            values: tuple[tuple[str, Scalar | None], ...] = (
                ("gpus", place.world_size),
                ("local", request.local_batch_size),
                ("global", request.global_batch_size),
                ("parallelism", setup.parallelism),
                *(setup.layout.degrees.items() if setup.layout else ()),
            )
            try:
                found = setup.on(place, request, largest)
            except SpecError as error:
                left_out.append(str(error))
                for value in values:
                    problems.setdefault(value, error)
            else:
                used.update(values)
                feasible.append(found)

    for value, problem in problems.items():
        if value not in used:
            raise problem

    search = AutoBatchSearch(at_most=most, allocations=searched_on)
    return feasible, list(dict.fromkeys(left_out)), search


def refuse_above_limit(num_trials: int) -> None:
    """Refuse more trials than a plan may have."""
    if num_trials > MAX_TRIALS:
        raise SpecError(
            f"the experiment asks for more than {MAX_TRIALS:,} trials. Shorten its "
            "lists or lower measure.repeats.",
            code="too_many_trials",
        )


def _num_combinations(experiment: Experiment) -> int:
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
        *experiment.axes.values(),
        *(experiment.layout.axes().values() if experiment.layout else ()),
    ]
    return math.prod(max(1, len(axis)) for axis in axes)


def setups(experiment: Experiment, site: Site) -> Iterator[Setup]:
    """Yield every combination of the axes other than devices and batch.

    Options that belong to one of several strategies are varied for that one alone.
    """
    listed = experiment.layout
    for program in experiment.by_program():
        for group, precision, parallelism in product(
            _node_groups(experiment, site), experiment.precision, experiment.parallelism
        ):
            for axes in _axes(experiment, parallelism):
                for layout in listed.layouts() if listed else (None,):
                    yield Setup(
                        precision=precision,
                        parallelism=parallelism,
                        axes=axes,
                        node_group=group,
                        layout=layout,
                        tensor_across_nodes=bool(listed and listed.tensor_across_nodes),
                        program=program,
                    )


def _node_groups(experiment: Experiment, site: Site) -> tuple[str | None, ...]:
    return experiment.node_group or tuple(site.groups)[:1]


def _axes(
    experiment: Experiment, parallelism: str
) -> Iterable[tuple[tuple[str, Scalar], ...]]:
    """Return every combination of the further axes that this strategy varies.

    A command gets every axis, because its command line may name any of them.
    """
    foreign: set[str] = set()
    if experiment.workload:
        listed = {name: strategy_of(name).options for name in experiment.parallelism}
        values_of_strategy = listed.pop(parallelism)
        foreign = {name for options in listed.values() for name in options} - {
            *values_of_strategy
        }

    listed_axes = experiment.axes
    names = sorted(listed_axes.keys() - foreign)

    axes = [
        tuple(zip(names, values, strict=True))
        for values in product(*(listed_axes[name] for name in names))
    ]
    if not experiment.workload:
        return axes

    effective = strategy_of(parallelism).effective_options
    return dict.fromkeys(tuple(effective(dict(axis)).items()) for axis in axes)


def _allocations(
    experiment: Experiment, site: Site, left_out: list[str]
) -> Mapping[str | None, list[Allocation]]:
    asked: list[tuple[int | None, int]] = [
        *((None, num_devices) for num_devices in experiment.gpus or ()),
        *product(experiment.nodes or (), experiment.gpus_per_node or ()),
    ]
    found: dict[str | None, list[Allocation]] = {}

    problems: dict[tuple[int | None, int], list[SpecError]] = defaultdict(list)
    for name in _node_groups(experiment, site):
        found[name] = []
        for allocation in asked:
            try:
                found[name].append(_allocation(*allocation, site, name))
            except SpecError as error:
                problems[allocation].append(error)
        if not found[name]:
            raise problems[asked[0]][-1]

    for errors in problems.values():
        if len(errors) == len(found):
            raise errors[0]
        left_out += map(str, errors)

    return found


def _allocation(
    nodes: int | None, devices: int, site: Site, node_group: str | None
) -> Allocation:
    site = site.in_group(node_group)
    limit, per_node = site.num_devices, site.devices_per_node

    word = "GPUs" if site.device_type == "cuda" else "cores"
    if nodes is None:
        if limit is not None and devices > limit:
            raise SpecError(
                f"gpus={devices} is more than site {site.name!r} has: {site.num_nodes} "
                f"x {per_node} = {limit} {word}. Use at most {limit}, or say in the "
                "site that it has more (nodes, gpus_per_node).",
                code="more_than_site",
            )
        return Allocation.packed(devices, per_node)

    if devices > per_node:
        raise SpecError(
            f"gpus_per_node={devices} is more than a node of site {site.name!r} has: "
            f"{per_node} {word}. Use at most that many, or change gpus_per_node in the "
            "site.",
            code="more_than_a_node",
        )

    if site.num_nodes is not None and nodes > site.num_nodes:
        raise SpecError(
            f"nodes={nodes} is more than site {site.name!r} has: {site.num_nodes}. Use "
            "at most that many, or change nodes in the site.",
            code="more_nodes_than_site",
        )

    return Allocation(devices_per_node=(devices,) * nodes)


def _largest(
    experiment: Experiment, every: Iterable[tuple[Setup, Iterable[Allocation]]]
) -> int:
    """Return the largest local batch that ``auto`` may come to.

    That is the least of ``at_most``, an epoch, what the smallest allocation needs of
    the largest global batch, and 16,384 where ``at_most`` is not given.
    """
    auto, job = experiment.local_batch_size, experiment.job
    at_most = auto.at_most if isinstance(auto, AutoBatch) else None
    epoch = job.samples_per_epoch if job else None

    limits = [at_most or DEFAULT_LARGEST_LOCAL_BATCH, epoch]
    if experiment.global_batch_size:
        sizes = []
        for setup, places in every:
            for place in places:
                with suppress(SpecError):  # left out, and said so, with its batches
                    sizes.append(setup.data_parallel_size(place))
        smallest = min(sizes, default=1)
        limits.append(max(1, max(experiment.global_batch_size) // smallest))

    return min(filter(None, limits))
