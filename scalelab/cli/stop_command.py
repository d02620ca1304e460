"""``scalelab stop``."""

from __future__ import annotations

from typing import Annotated

import typer

from scalelab.cli.arguments import RunDirectory


def run(
    run_directory: RunDirectory,
    now: Annotated[
        bool, typer.Option("--now", help="End the trials that run, and wait for it.")
    ] = False,
) -> None:
    """Stop a run's sweep, wherever its driver is.

    The trials that run are finished first. The same sweep command goes on later.
    """
    from scalelab.running.stop import stop

    typer.echo(stop(run_directory, at_once=now))
