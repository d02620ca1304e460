"""``scalelab data``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set: cifar10.")],
    directory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to put it [default: data/NAME]."),
    ] = None,
) -> None:
    """Obtain a data set that a built-in workload needs."""
    from scalelab.session import obtain_data

    where = obtain_data(name, directory)
    typer.echo(f"{name} is in {where}")
