"""``scalelab try``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from scalelab.cli.arguments import ExperimentFile, SiteName, flag
from scalelab.inputs.numerals import counted, duration

NOT_WELL = 1


def run(
    experiment: ExperimentFile,
    site: SiteName = None,
    keep: Annotated[
        bool,
        flag(
            "--keep", "Keep records and logs in runs/.NAME.try, also where all is well."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the result only.")
    ] = False,
) -> None:
    """Run the smallest trial and show what was read of it.

    Where several devices are asked for, the smallest trial of several follows. No later
    sweep counts these trials.
    """
    from rich.console import Console

    from scalelab.cli.progress import view
    from scalelab.cli.shown.first_trials import table, verdict
    from scalelab.running.trying import prepare, try_out

    started_s = time.monotonic()
    sweep = prepare(experiment, site=site)
    with view(Console(stderr=True), sweep.device_hour_word, is_quiet=quiet) as progress:
        tried = try_out(
            sweep,
            keep=keep,
            on_event=progress,
            on_start=lambda running: progress.watch(running.source),
        )
    took = duration(time.monotonic() - started_s)
    count = counted(len(tried.trials), "trial")
    typer.echo(f"{sweep.experiment.name}: {count} of a few steps in {took}")
    for line in (*table(tried), "", *verdict(tried)):
        typer.echo(line)
    if tried.directory is not None:
        typer.echo(f"Records and logs: {tried.directory}")
    if not tried.is_well:
        raise typer.Exit(NOT_WELL)
    typer.echo(f"Next: scalelab sweep {experiment}")
