"""``scalelab plan``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalelab.cli.wording import columns, trials

if TYPE_CHECKING:
    from scalelab.experiment.trial import Trial

HEADER = (
    "trials",
    "kind",
    "devices",
    "nodes",
    "global batch",
    "= local x ranks x acc.",
)
MAX_LEFT_OUT_SHOWN = 5


def run(
    experiment: Annotated[Path, typer.Argument(help="The experiment's YAML file.")],
    site: Annotated[
        str | None, typer.Option(help="Name or path of a site profile.")
    ] = None,
) -> None:
    """Show what a sweep would run, and what it would cost."""
    from scalelab.experiment.expand import plan
    from scalelab.experiment.spec import Experiment

    asked = Experiment.from_file(experiment)
    where = asked.resolve_site(site)
    planned = plan(asked, where)
    typer.echo(f"{asked.name} on site {where.name}: {trials(len(planned.trials))}")
    typer.echo()
    for line in columns([HEADER, *_rows(planned.trials)]):
        typer.echo(line)
    if planned.assumes_local_batch:
        typer.echo()
        typer.echo(
            "local_batch_size: auto is found first, on one device; the table assumes "
            "the largest size that is tried."
        )
    if planned.left_out:
        typer.echo()
        typer.echo(f"Left out, {len(planned.left_out)} combinations:")
        for reason in planned.left_out[:MAX_LEFT_OUT_SHOWN]:
            typer.echo(f"  {reason}")
    if asked.job:
        typer.echo()
        typer.echo(f"Job to recommend for: {asked.job}")


def _rows(planned: Iterable[Trial]) -> list[tuple[str, ...]]:
    """Return a row per configuration, seeds and repeats counted."""
    counts: dict[tuple[str, ...], int] = {}
    for trial in planned:
        row = (
            trial.kind.value,
            str(trial.world_size),
            str(trial.allocation),
            f"{trial.global_batch_size:,}",
            f"{trial.local_batch_size:,} x {trial.data_parallel_size} "
            f"x {trial.gradient_accumulation_steps}",
        )
        counts[row] = counts.get(row, 0) + 1
    return [(str(count), *row) for row, count in counts.items()]
