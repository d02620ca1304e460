"""``scalelab export``."""

from pathlib import Path
from typing import Annotated

import typer

from scalelab.cli.arguments import flag, option


def run(
    run_directories: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, by its ending as CSV, Parquet or JSON.",
        ),
    ],
    per: Annotated[
        str,
        option("attempt|configuration", "What a row is; of configurations, medians."),
    ] = "attempt",
    keep_formulas: Annotated[
        bool,
        flag(
            "--keep-formulas",
            "Write texts in CSV as they are. Without it, a text that a spreadsheet "
            "would run as a formula gets an apostrophe in front.",
        ),
    ] = False,
) -> None:
    """Write what runs measured as CSV, Parquet or JSON.

    `scalelab import` reads the rows of attempts back as they are.
    """
    from scalelab.session import export

    typer.echo(export(run_directories, output, per=per, keep_formulas=keep_formulas))
