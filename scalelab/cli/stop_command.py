"""``scalelab stop``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    run_directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory of the run.")
    ],
    now: Annotated[
        bool, typer.Option("--now", help="End the trials that run, and wait for it.")
    ] = False,
) -> None:
    """Stop a run's sweep, wherever its driver is.

    The trials that run are finished first. The same sweep command goes on later.
    """
    from scalelab.running.stop import stop

    typer.echo(stop(run_directory, at_once=now))
