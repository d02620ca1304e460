"""Expand an experiment into its trials.

Time for a job = samples it needs x time per sample. For synchronous training the first
factor depends on the global batch, the learning-rate rule and the normalisation batch,
the second on the allocation and the local batch. So two cheap families of trials
replace one product; ``product: true`` asks for the product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.experiment.batch_sizes import BatchRequest
from scalelab.experiment.lr_rules import LearningRateRule
from scalelab.experiment.sections import AutoBatch
from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.kinds.strategies import strategy_of
from scalelab.plan.canary import with_canaries
from scalelab.plan.configurations import (
    Configuration,
    batch_at,
    fewest_devices,
    where_convergence_runs,
)
from scalelab.plan.setups import (
    Setup,
    group_allocations,
    num_combinations,
    setups,
)
from scalelab.plan.told_axes import check_told

if TYPE_CHECKING:
    from scalelab.experiment.spec import Experiment
    from scalelab.site.profile import Site

MAX_TRIALS = 100_000
DEFAULT_LARGEST_LOCAL_BATCH = 16_384


@dataclass(frozen=True, slots=True)
class _Family:
    """Trials of one kind: every combination of what it varies, repeats outermost."""

    kind: TrialKind
    configurations: Sequence[Configuration]
    rules: Sequence[LearningRateRule]
    seeds: Sequence[int]
    repeats: int

    @property
    def num_trials(self) -> int:
        axes = (self.configurations, self.rules, self.seeds)
        return self.repeats * math.prod(len(axis) for axis in axes)

    def trials(self, experiment: Experiment) -> Iterator[Trial]:
        axes = (range(self.repeats), self.seeds, self.configurations, self.rules)
        for repeat, seed, configuration, rule in product(*axes):
            yield _trial(
                experiment,
                self.kind,
                configuration,
                rule=rule,
                seed=seed,
                repeat=repeat,
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The trials of an experiment.

    Parameters
    ----------
    trials
        In the order they are proposed: repeats interleaved, so that slow drifts of the
        machine spread over all configurations; canaries where they are due.
    left_out
        Why combinations of listed values are not run, one sentence each.
    assumes_local_batch
        ``local_batch_size: auto`` is not resolved yet; the trials assume the largest
        size that will be tried.
    """

    trials: tuple[Trial, ...]
    left_out: tuple[str, ...]
    assumes_local_batch: bool

    def counts(self) -> dict[str, int]:
        """Return the number of trials by kind."""
        kinds = [trial.kind.value for trial in self.trials]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def expand(
    experiment: Experiment,
    site: Site,
    local_batch_sizes: Mapping[Setup, int] | None = None,
) -> list[Trial]:
    """Return the trials of an experiment, in the order to propose them."""
    return list(plan(experiment, site, local_batch_sizes).trials)


def plan(
    experiment: Experiment,
    site: Site,
    local_batch_sizes: Mapping[Setup, int] | None = None,
) -> Plan:
    """Return the trials of an experiment and what was left out.

    See :func:`expand`; without ``local_batch_sizes`` an ``auto`` batch is assumed to be
    the largest that will be tried.
    """
    left_out: list[str] = []
    configurations = _configurations(experiment, site, local_batch_sizes, left_out)
    families = _families(experiment, configurations)
    _refuse_above_limit(sum(family.num_trials for family in families))
    trials = _distinct(
        trial for family in families for trial in family.trials(experiment)
    )
    check_told(experiment, trials)
    _check_launcher(experiment, trials)
    return Plan(
        trials=tuple(with_canaries(trials, experiment.measure.canary_every)),
        left_out=tuple(dict.fromkeys(left_out)),
        assumes_local_batch=(
            isinstance(experiment.local_batch_size, AutoBatch)
            and local_batch_sizes is None
        ),
    )


def largest_tried_batch(experiment: Experiment, site: Site) -> int:
    """Return the largest local batch that ``auto`` may come to.

    That is the least of ``at_most``, an epoch, what the smallest allocation needs of
    the largest global batch, and 16,384 where ``at_most`` is not given.
    """
    auto = experiment.local_batch_size
    asked = auto.at_most if isinstance(auto, AutoBatch) else None
    limits = [asked or DEFAULT_LARGEST_LOCAL_BATCH]
    if experiment.job and experiment.job.samples_per_epoch:
        limits.append(experiment.job.samples_per_epoch)
    if experiment.global_batch_size:
        smallest = _smallest_data_parallel_size(experiment, site)
        limits.append(max(1, max(experiment.global_batch_size) // smallest))
    return min(limits)


def _smallest_data_parallel_size(experiment: Experiment, site: Site) -> int:
    found = group_allocations(experiment, site).of_group
    sizes = []
    for setup in setups(experiment, site):
        for place in found[setup.node_group]:
            with suppress(SpecError):  # left out, and said so, when trials are made
                sizes.append(setup.data_parallel_size(place))
    return min(sizes, default=1)


def throughput_trial(experiment: Experiment, configuration: Configuration) -> Trial:
    """Return the first throughput trial of a configuration: first seed, first rule."""
    return _trial(
        experiment,
        TrialKind.THROUGHPUT,
        configuration,
        rule=_rules(experiment)[0],
        seed=experiment.seed[0],
        repeat=0,
    )


def _configurations(
    experiment: Experiment,
    site: Site,
    local_batch_sizes: Mapping[Setup, int] | None,
    left_out: list[str],
) -> list[Configuration]:
    """Return every feasible configuration; every listed value occurs in one."""
    _refuse_above_limit(num_combinations(experiment))
    assumed = largest_tried_batch(experiment, site)
    where = group_allocations(experiment, site)
    left_out += where.left_out
    found: list[Configuration] = []
    problems: dict[tuple[str, str | int | None], SpecError] = {}
    used: set[tuple[str, str | int | None]] = set()
    for setup in setups(experiment, site):
        largest = (local_batch_sizes or {}).get(setup, assumed)
        if local_batch_sizes and setup not in local_batch_sizes:
            places = where.of_group[setup.node_group]
            left_out.append(_why_no_batch(setup, places, assumed))
            continue
        allocations = where.of_group[setup.node_group]
        for place, request in product(allocations, _requests(experiment, largest)):
            values: tuple[tuple[str, str | int | None], ...] = (
                ("gpus", place.world_size),
                ("local", request.local_batch_size),
                ("global", request.global_batch_size),
                ("parallelism", setup.parallelism),
                *(setup.layout.degrees.items() if setup.layout else ()),
            )
            try:
                batch = batch_at(request, setup, place)
            except SpecError as error:
                left_out.append(str(error))
                for value in values:
                    problems.setdefault(value, error)
                continue
            used.update(values)
            found.append(Configuration(setup, place, batch))
    for value, problem in problems.items():
        if value not in used:
            raise problem
    return found


def _why_no_batch(setup: Setup, places: Iterable[Allocation], largest: int) -> str:
    try:
        fewest_devices(setup, places, largest)
    except SpecError as error:
        return str(error)
    return f"{setup}: not even local_batch_size=1 fits into memory."


def _requests(experiment: Experiment, largest: int) -> list[BatchRequest]:
    local = experiment.local_batch_size
    sizes = (None,) if isinstance(local, AutoBatch) or not local else local
    return [
        BatchRequest(
            local_batch_size=size,
            global_batch_size=total,
            gradient_accumulation_steps=experiment.gradient_accumulation_steps or 1,
            largest=largest if isinstance(local, AutoBatch) else None,
        )
        for size, total in product(sizes, experiment.global_batch_size or (None,))
    ]


def _families(
    experiment: Experiment, configurations: list[Configuration]
) -> list[_Family]:
    """Return the factorised plan, or, with ``product: true``, the full grid."""
    rules, seeds = _rules(experiment), experiment.seed
    families = []
    for kind in experiment.measure.kind:
        is_throughput = kind is TrialKind.THROUGHPUT
        is_convergence = kind is TrialKind.CONVERGENCE
        varies = experiment.product or is_convergence
        chosen = configurations
        if is_convergence and not experiment.product:
            chosen = where_convergence_runs(experiment, configurations)
        families.append(
            _Family(
                kind,
                chosen,
                rules if varies else rules[:1],
                seeds if varies else seeds[:1],
                experiment.measure.repeats if is_throughput else 1,
            )
        )
    return families


def _rules(experiment: Experiment) -> tuple[LearningRateRule, ...]:
    rates = experiment.learning_rate
    return rates.rule if rates else (LearningRateRule.NONE,)


def _trial(
    experiment: Experiment,
    kind: TrialKind,
    configuration: Configuration,
    *,
    rule: LearningRateRule,
    seed: int,
    repeat: int,
) -> Trial:
    setup, batch = configuration.setup, configuration.batch
    rates, job = experiment.learning_rate, experiment.job
    total = batch.global_batch_size
    return Trial(
        kind=kind,
        workload=experiment.workload_name,
        allocation=configuration.allocation,
        local_batch_size=batch.local_batch_size,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        learning_rate=(
            rates.at(
                rule,
                total,
                job.samples_per_epoch if job else None,
                steps_in_flight=strategy_of(setup.parallelism).steps_in_flight(
                    configuration.allocation.world_size, setup.options
                ),
            )
            if rates
            else None
        ),
        node_group=setup.node_group,
        parallelism=setup.parallelism,
        precision=setup.precision,
        seed=seed,
        repeat=repeat,
        options=setup.options,
        layout=setup.layout,
        program=setup.program,
        measurement=_measurement(experiment, kind, total),
    )


def _measurement(
    experiment: Experiment, kind: TrialKind, global_batch_size: int
) -> Measurement:
    measurement = experiment.measure.measurement(
        kind, experiment.job, global_batch_size=global_batch_size
    )
    if kind is TrialKind.THROUGHPUT:
        return measurement
    judged_by = tuple(dict.fromkeys(each.metric for each in experiment.accept))
    return replace(measurement, judged_by=judged_by)


def _distinct(trials: Iterable[Trial]) -> list[Trial]:
    distinct: dict[str, Trial] = {}
    for trial in trials:
        distinct.setdefault(trial.trial_id, trial)
    return list(distinct.values())


def _refuse_above_limit(num_trials: int) -> None:
    if num_trials > MAX_TRIALS:
        raise SpecError(
            f"the experiment asks for more than {MAX_TRIALS:,} trials. Shorten its "
            "lists or lower measure.repeats."
        )


def _check_launcher(experiment: Experiment, trials: Iterable[Trial]) -> None:
    """Refuse trials on several nodes where the launcher is for one."""
    if experiment.workload:
        return
    alone = experiment.by_program()
    launchers = {name: each.launcher.row() for name, each in alone.items()}
    for trial in trials:
        of = f" of program={trial.program}" if trial.program else ""
        named = f"the trial{of} on {trial.world_size} devices"
        launcher = launchers[trial.program]
        launcher.check_nodes(trial.allocation.num_nodes, named)
