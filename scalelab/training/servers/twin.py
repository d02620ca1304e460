"""A cheap first pass over parameter-server trials, in virtual time.

Which window and rate diverge is seen before a device is spent: one process trains the
workload's own model by the rules of real trials, and only the times are declared.
Nothing of it is stored.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from scalelab.errors import SpecError
from scalelab.experiment.program import Program, WorkloadProgram
from scalelab.experiment.trial import Trial
from scalelab.inputs.lines import aligned
from scalelab.inputs.numerals import number
from scalelab.kinds.strategies import STRATEGIES, ParameterServer, slow_rank_factor
from scalelab.training.servers.rules import rule_of
from scalelab.training.servers.virtual_time import (
    VirtualJob,
    VirtualWorkers,
    asynchronous,
    untrained,
)
from scalelab.training.workloads.registry import workload_of

MOST_STEPS = 1000
"""Optimiser steps of all workers together that one configuration is trained for."""
MESSAGE = 0.1
"""Time that a message takes one way, in steps of a worker."""
_NUM_EVALUATIONS = 10
_LOSS = "val_loss"
_OWN_COLUMNS = ("communication_window",)


@dataclass(frozen=True, kw_only=True, slots=True)
class TwinRow:
    """What the twin of one planned configuration did."""

    trial: Trial
    rate: float
    num_samples: int
    metrics: dict[str, float]  # at the end; empty: no longer finite before any
    staleness_mean: float
    staleness_max: int
    diverges: bool


def twin_lines(program: Program | None, trials: Iterable[Trial]) -> Iterator[str]:
    """Run the twins of planned trials; yield their table and what it means."""
    rows = list(twins(program, trials))
    yield from (
        "VIRTUAL: parameter servers in virtual time. Nothing here was measured.",
        "",
        *_table(rows),
        "",
        f"Each was trained in this process for at most {MOST_STEPS:,} optimiser steps "
        "of all workers together; a step takes one unit of declared time, a message "
        f"{MESSAGE:g}. Nothing is stored.",
        "Steps x rate: workers x window x rate, by which downpour moves the parameters "
        "between two messages of a worker. learning_rate: {rule: staleness} divides "
        "the rate by workers x window.",
        "Diverges: parameters are no longer finite numbers, or val_loss ended above "
        "that of the untrained model.",
    )


def twins(program: Program | None, trials: Iterable[Trial]) -> Iterator[TwinRow]:
    """Run the twin of each configuration of the trials that has parameter servers.

    Seeds and repeats of a configuration are not repeated. Warm-up and schedule of the
    learning rate are left out.
    """
    if not isinstance(program, WorkloadProgram):
        raise SpecError(
            "The twin trains a workload's model in this process, and the experiment "
            "runs a command. Name an experiment with a workload."
        )
    asked = {_configuration(each): each for each in reversed(list(trials))}
    served = [
        trial
        for trial in reversed(asked.values())
        if STRATEGIES[trial.parallelism].num_servers(trial.world_size, trial.options)
    ]
    if not served:
        raise SpecError(
            "The twin shows what parameter servers do, and no planned trial has one. "
            "Add parallelism: parameter_server with several devices."
        )
    torch.set_num_threads(1)  # threads of small matrices would only wait
    return (_row(program, trial) for trial in served)


def _configuration(trial: Trial) -> tuple[object, ...]:
    options = tuple(sorted(trial.options.items()))
    batch = (trial.local_batch_size, trial.gradient_accumulation_steps)
    rate = trial.learning_rate and trial.learning_rate.value
    size = trial.world_size
    return (trial.parallelism, trial.precision, size, batch, rate, options)


def _row(program: WorkloadProgram, trial: Trial) -> TwinRow:
    job, options = _job(program, trial), ParameterServer.Options.of(trial.options)
    step_times_s = (1.0,) * (trial.world_size - 1) + (slow_rank_factor(trial.options),)
    course = asynchronous(
        job,
        VirtualWorkers(step_times_s=step_times_s, message_s=MESSAGE),
        rule_of(trial.options, trial.world_size),
        window=options.communication_window,
        staleness_bound=options.staleness_bound,
    )
    last = course.evaluations[-1] if course.evaluations else None
    diverges = last is None or last.samples < job.max_samples  # no longer finite
    if last is not None and not diverges:
        before = untrained(job).get(_LOSS)
        diverges = before is not None and not last.metrics[_LOSS] <= before
    return TwinRow(
        trial=trial,
        rate=job.learning_rate,
        num_samples=last.samples if last else 0,
        metrics=last.metrics if last else {},
        staleness_mean=course.staleness.mean,
        staleness_max=course.staleness.maximum,
        diverges=diverges,
    )


def _job(program: WorkloadProgram, trial: Trial) -> VirtualJob:
    workload, options = workload_of(program, trial)
    batch = trial.local_batch_size * trial.gradient_accumulation_steps
    limits = (MOST_STEPS * batch, trial.measurement.max_samples)
    max_samples = min(limit for limit in limits if limit)
    rate = trial.learning_rate
    return VirtualJob(
        workload=workload,
        local_batch_size=batch,
        learning_rate=rate.value if rate else workload.default_learning_rate,
        max_samples=max_samples,
        evaluate_every_samples=max(max_samples // _NUM_EVALUATIONS, 1),
        seed=trial.seed,
        precision=trial.precision,
        options=options,
    )


def _table(rows: Sequence[TwinRow]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row.trial.options)
    options = [
        name
        for name in names
        if name not in _OWN_COLUMNS
        and len({repr(row.trial.options.get(name)) for row in rows}) > 1
    ]
    precision = ["precision"] if len({row.trial.precision for row in rows}) > 1 else []
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    told = ("rate", "steps x rate", "samples")
    titles = ("workers", "window", *precision, *options, *told, *metrics)
    titles += ("staleness", "max", "")
    cells = [
        _cells(row, options, metrics, has_precision=bool(precision)) for row in rows
    ]
    left = [title in (*precision, *options, "") for title in titles]
    return aligned([titles, *cells], left=left)


def _cells(
    row: TwinRow,
    options: Sequence[str],
    metrics: Sequence[str],
    *,
    has_precision: bool,
) -> tuple[str, ...]:
    trial = row.trial
    strategy = STRATEGIES[trial.parallelism]
    in_flight = strategy.steps_in_flight(trial.world_size, trial.options)
    told = (f"{row.rate:.3g}", f"{in_flight * row.rate:.3g}", number(row.num_samples))
    measured = (
        f"{row.metrics[name]:.4g}" if name in row.metrics else "-" for name in metrics
    )
    return (
        *(str(trial.world_size), str(in_flight // trial.world_size)),
        *([trial.precision] if has_precision else []),
        *(str(trial.options.get(name, "")) for name in options),
        *told,
        *measured,
        *(f"{row.staleness_mean:.2f}", str(row.staleness_max)),
        "diverges" if row.diverges else "",
    )
