"""The table of ``scalelab plan --twin``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scalelab.inputs.lines import aligned
from scalelab.inputs.numerals import number

if TYPE_CHECKING:
    from scalelab.running.sweep import Sweep
    from scalelab.running.twin import TwinRow

_OWN_COLUMNS = ("communication_window",)


def twin_lines(asked: Sweep) -> Iterator[str]:
    """Run the twins of a plan; return their table and what it means, line by line."""
    from scalelab.running.twin import MESSAGE, MOST_STEPS, twins

    rows = list(twins(asked.experiment.programs().get(None), asked.plan.trials))
    yield "VIRTUAL: parameter servers in virtual time. Nothing here was measured."
    yield ""
    yield from _table(rows)
    yield ""
    yield (
        f"Each was trained in this process for at most {MOST_STEPS:,} optimiser steps "
        "of all workers together; a step takes one unit of declared time, a message "
        f"{MESSAGE:g}. Nothing is stored."
    )
    yield (
        "Steps x rate: workers x window x rate, by which downpour moves the parameters "
        "between two messages of a worker. learning_rate: {rule: staleness} divides "
        "the rate by workers x window."
    )
    yield (
        "Diverges: parameters are no longer finite numbers, or val_loss ended above "
        "that of the untrained model."
    )


def _table(rows: Sequence[TwinRow]) -> list[str]:
    options = _varied(rows)
    precision = ["precision"] if len({row.trial.precision for row in rows}) > 1 else []
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    titles = (
        *(
            "workers",
            "window",
            *precision,
            *options,
            "rate",
            "steps x rate",
            "samples",
            *metrics,
        ),
        *("staleness", "max", ""),
    )
    cells = [
        tuple(_cells(row, options, metrics, has_precision=bool(precision)))
        for row in rows
    ]
    left = [title in (*precision, *options, "") for title in titles]
    return aligned([titles, *cells], left=left)


def _varied(rows: Sequence[TwinRow]) -> list[str]:
    """Return the names of the options that have several values, the window aside."""
    names = dict.fromkeys(name for row in rows for name in row.trial.options)
    return [
        name
        for name in names
        if name not in _OWN_COLUMNS
        and len({repr(row.trial.options.get(name)) for row in rows}) > 1
    ]


def _cells(
    row: TwinRow,
    options: Sequence[str],
    metrics: Sequence[str],
    *,
    has_precision: bool,
) -> Iterator[str]:
    from scalelab.kinds.strategies import STRATEGIES

    trial = row.trial
    strategy = STRATEGIES[trial.parallelism]
    in_flight = strategy.steps_in_flight(trial.world_size, trial.options)
    yield str(trial.world_size)
    yield str(in_flight // trial.world_size)
    if has_precision:
        yield trial.precision
    yield from (str(trial.options.get(name, "")) for name in options)
    yield f"{row.rate:.3g}"
    yield f"{in_flight * row.rate:.3g}"
    yield number(row.num_samples)
    yield from (
        f"{row.metrics[name]:.4g}" if name in row.metrics else "-" for name in metrics
    )
    yield f"{row.staleness_mean:.2f}"
    yield str(row.staleness_max)
    yield "diverges" if row.diverges else ""
