"""The arguments that several commands have."""

from pathlib import Path
from typing import Annotated, Any

import typer

ExperimentFile = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT", help="The experiment's YAML file.")
]
SiteName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name or path of a site profile.")
]
RunToMake = Annotated[
    Path | None,
    typer.Option(
        "--run", metavar="DIR", help="Directory of the run [default: runs/NAME]."
    ),
]
RunDirectory = Annotated[
    Path, typer.Argument(metavar="RUN", help="Directory of the run.")
]


def option(metavar: str, help: str, *names: str, **further: Any) -> Any:
    """Return an option with a value; by default it has the name of its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **further)


def flag(name: str, help: str) -> Any:
    """Return an option without a value, which has no opposite."""
    return typer.Option(name, help=help)
