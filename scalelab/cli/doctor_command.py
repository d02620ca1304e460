"""``scalelab doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SOMETHING_BROKEN = 1


def run(
    runs: Annotated[
        Path, typer.Option(metavar="DIR", help="Where runs are written.")
    ] = Path("runs"),
) -> None:
    """Say what this machine can run, and what it cannot."""
    from scalelab.doctor import Health, examine

    is_broken = False
    for finding in examine(runs):
        is_broken |= finding.health is Health.BROKEN
        typer.echo(f"{finding.health:<7} {finding.subject:<17} {finding.text}")
    if is_broken:
        typer.echo("Sweeps cannot run here until what is broken is mended.")
        raise typer.Exit(SOMETHING_BROKEN)
    typer.echo("Sweeps can run here: scalelab sweep EXPERIMENT.yaml")
