"""``scalelab report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scalelab.cli.arguments import RunDirectory


def run(
    run_directory: RunDirectory,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write [default: RUN/report.html].",
        ),
    ] = None,
    **question: Any,
) -> None:
    """Write the run's report: one self-contained HTML file.

    Its answer is that of the run's own job without limits unless options say more.
    """
    from scalelab.cli.recommend_command import asked
    from scalelab.session import load

    found = load(run_directory)
    typer.echo(str(found.write_report(output, **asked(**question))))
