"""``scalelab import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file.")
    ],
    run_directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="Directory of the new run [default: runs/TABLE]."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OURS=THEIRS", help="The table's name of one of our columns."
        ),
    ] = None,
    constant: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="What a column holds in every row."),
    ] = None,
) -> None:
    """Import a table of measurements as a run."""
    from scalelab.running.sweep import RUNS
    from scalelab.session import import_table

    run = import_table(
        table,
        run_directory or RUNS / table.stem,
        mapping=pairs("--column", column or []),
        constants=pairs("--constant", constant or []),
    )
    typer.echo(f"{len(run.observations):,} observations are in {run.directory}")


def pairs(option: str, texts: list[str]) -> dict[str, str]:
    """Return NAME=VALUE options as a mapping.

    Raises
    ------
    SpecError
        If one has another form, or a name occurs twice.
    """
    from scalelab.errors import SpecError

    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or name in pairs:
            raise SpecError(
                f"{option} {text!r} is not NAME=VALUE with a name given once. Write, "
                f"for example, {option} step_time_s=seconds_per_step."
            )
        pairs[name] = value
    return pairs
