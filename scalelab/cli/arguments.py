"""The arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
