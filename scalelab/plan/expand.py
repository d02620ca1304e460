"""Expand an experiment into its trials.

Time for a job = samples it needs x time per sample. For synchronous training the first
factor depends on the global batch, the learning-rate rule and the normalisation batch,
the second on the allocation and the local batch. So two cheap families of trials
replace one product; ``product: true`` asks for the product.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from scalelab.experiment.command_values import check_received
from scalelab.experiment.rates import RateSetting
from scalelab.experiment.sections import AutoBatch
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial, TrialKind, with_canaries
from scalelab.inputs.allocation import Allocation
from scalelab.plan.configurations import (
    AutoBatchSearch,
    BatchRequest,
    Configuration,
    Setup,
    configurations,
    refuse_above_limit,
)
from scalelab.site.profile import Site

# Repeats, outermost so that they interleave, seeds, configurations and rates.
_Axes = tuple[
    Sequence[int],
    Sequence[int],
    Sequence[Configuration],
    Sequence[RateSetting | None],
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The trials of an experiment, in the order they are proposed.

    Repeats are interleaved, so that slow drifts of the machine spread over all
    configurations; canaries stand where they are due.
    """

    trials: tuple[Trial, ...] = ()
    left_out: tuple[str, ...] = ()  # why other combinations are not run
    search: AutoBatchSearch | None = None  # None: the local batches are known

    @property
    def assumes_local_batch(self) -> bool:
        """``auto`` is not resolved yet: trials have the largest batch to be tried."""
        return self.search is not None


def plan(
    experiment: Experiment,
    site: Site,
    local_batch_sizes: Mapping[Setup, int] | None = None,
) -> Plan:
    """Return the trials of an experiment and what was left out.

    Without ``local_batch_sizes`` an ``auto`` batch is assumed to be the largest that
    will be tried.
    """
    feasible, left_out, search = configurations(experiment, site, local_batch_sizes)
    families = [
        (kind, _varied(experiment, kind, feasible)) for kind in experiment.measure.kind
    ]
    refuse_above_limit(sum(math.prod(map(len, axes)) for _, axes in families))

    distinct: dict[str, Trial] = {}
    for kind, axes in families:
        for repeat, seed, configuration, rate in product(*axes):
            trial = trial_of(
                experiment, configuration, kind, rate=rate, seed=seed, repeat=repeat
            )
            distinct.setdefault(trial.trial_id, trial)

    trials = with_canaries([*distinct.values()], experiment.measure.canary_every)
    check_received(experiment, trials)
    is_auto = isinstance(experiment.local_batch_size, AutoBatch)

    return Plan(
        trials=tuple(trials),
        left_out=tuple(left_out),
        search=search if is_auto and local_batch_sizes is None else None,
    )


def _varied(
    experiment: Experiment, kind: TrialKind, feasible: Sequence[Configuration]
) -> _Axes:
    seeds, rates = experiment.seed, experiment.rate_settings
    if kind is TrialKind.CONVERGENCE and not experiment.product:
        feasible = _where_convergence_runs(experiment, feasible)
    elif not experiment.product:
        seeds, rates = seeds[:1], rates[:1]
    repeats = experiment.measure.repeats if kind is TrialKind.THROUGHPUT else 1
    return range(repeats), seeds, feasible, rates


def _where_convergence_runs(
    experiment: Experiment, feasible: Sequence[Configuration]
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
    for found in feasible:
        of_setup.setdefault(found.setup, {})[found.allocation] = None

    parameters = experiment.workload.parameters if experiment.workload else {}
    limit = experiment.measure.convergence_gpus or 1

    chosen: dict[tuple[Setup, int, int | None, int | None], Configuration] = {}
    # The largest local batch first: without batch norm it stands for the others.
    for found in sorted(feasible, key=lambda item: -item.local_batch_size):
        setup = found.setup
        local, total = found.local_batch_size, found.global_batch_size
        held = local if experiment.has_batch_norm else None
        workers = None
        fitting = [
            place
            for place in sorted(of_setup[setup], key=lambda place: place.world_size)
            if total % (local * setup.data_parallel_size(place)) == 0
        ]
        allowed = [place for place in fitting if place.world_size <= limit]

        place = allowed[-1] if allowed else fitting[0]
        if {**parameters, **setup.options}.get("sync_batch_norm", False):
            place = found.allocation
            held = local * setup.data_parallel_size(place)
        if not setup.strategy.factorises:
            place = found.allocation
            workers = setup.data_parallel_size(place)

        request = BatchRequest(local_batch_size=local, global_batch_size=total)
        anywhere = replace(setup, node_group=None, layout=None)
        chosen.setdefault((anywhere, total, held, workers), setup.on(place, request))

    return sorted(
        chosen.values(),
        key=lambda item: (item.global_batch_size, item.local_batch_size),
    )


def trial_of(
    experiment: Experiment,
    configuration: Configuration,
    kind: TrialKind = TrialKind.THROUGHPUT,
    *,
    rate: RateSetting | None = None,
    seed: int | None = None,
    repeat: int = 0,
) -> Trial:
    """Return a trial of a configuration, by default with the first rate and seed."""
    setup, allocation = configuration.setup, configuration.allocation
    total = configuration.global_batch_size
    job, rate = experiment.job, rate or experiment.rate_settings[0]

    measurement = experiment.measure.measurement(kind, job, global_batch_size=total)
    if kind is not TrialKind.THROUGHPUT:
        judged_by = tuple(
            dict.fromkeys(condition.metric for condition in experiment.accept)
        )
        measurement = replace(measurement, judged_by=judged_by)

    return Trial(
        kind=kind,
        workload=experiment.workload_name,
        allocation=allocation,
        local_batch_size=configuration.local_batch_size,
        gradient_accumulation_steps=configuration.gradient_accumulation_steps,
        learning_rate=(
            rate.at(
                total,
                job.samples_per_epoch if job else None,
                steps_in_flight=setup.strategy.steps_in_flight(
                    allocation.world_size, setup.options
                ),
            )
            if rate
            else None
        ),
        node_group=setup.node_group,
        parallelism=setup.parallelism,
        precision=setup.precision,
        seed=experiment.seed[0] if seed is None else seed,
        repeat=repeat,
        options=setup.options,
        layout=setup.layout,
        program=setup.program,
        measurement=measurement,
    )
