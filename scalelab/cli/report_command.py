"""``scalelab report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    run_directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory of the run.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write [default: RUN/report.html].",
        ),
    ] = None,
) -> None:
    """Write the run's report: one self-contained HTML file."""
    from scalelab.session import load

    typer.echo(str(load(run_directory).write_report(output)))
