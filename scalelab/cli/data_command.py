from pathlib import Path
from typing import Annotated

import typer

from scalelab.cli.arguments import option


def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set: cifar10.")],
    directory: Annotated[
        Path | None, option("DIR", "Where to put it [default: data/NAME].")
    ] = None,
) -> None:
    """Obtain a data set that a built-in workload needs."""
    from scalelab.session import obtain_data

    typer.echo(f"{name} is in {obtain_data(name, directory)}")
