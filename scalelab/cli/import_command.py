from pathlib import Path
from typing import Annotated, Literal

import typer

from scalelab.cli.arguments import count, flag, option
from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted


def run(
    table: Annotated[
        Path | None, typer.Argument(metavar="TABLE", help="CSV or Parquet file.")
    ] = None,
    run_directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="Directory of the new run [default: runs/TABLE]."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        option("OURS=THEIRS", "The table's name of one of our columns."),
    ] = None,
    constant: Annotated[
        list[str] | None, option("COLUMN=VALUE", "What a column holds in every row.")
    ] = None,
    axis: Annotated[
        list[str] | None,
        option("NAME", "A column that is a setting: a curve for each value."),
    ] = None,
    ignore: Annotated[list[str] | None, option("NAME", "A column not to read.")] = None,
    melt: Annotated[
        str | None,
        option(
            "world_size=throughput_samples_per_s",
            "For a table with a column per device count, model, ...: what the "
            "names of these columns hold, and what their cells hold.",
        ),
    ] = None,
    per_device: Annotated[
        bool, flag("--per-device", "The throughput is of one device.")
    ] = False,
    tokens_per_sample: Annotated[
        int | None,
        option(
            "1024",
            "The throughput counts tokens; a sample has this many.",
            parser=count,
        ),
    ] = None,
    samples_per_epoch: Annotated[
        int | None,
        option(
            "1281167",
            "The table counts epochs to a target; one has this many.",
            parser=count,
        ),
    ] = None,
    decimal: Annotated[
        Literal[".", ","] | None,
        typer.Option(help="The decimal sign of the numbers, where they do not tell."),
    ] = None,
    header_row: Annotated[
        int | None,
        option(
            "LINE",
            "The line that names the columns [default: the first].",
            parser=count,
        ),
    ] = None,
    accept_doubts: Annotated[
        bool, flag("--accept-doubts", "Import what is doubted as it is.")
    ] = False,
    sacct: Annotated[
        str | None,
        option(
            "JOBID,JOBID",
            "Instead of a table: jobs that ran, by what the batch system accounts and "
            "their logs print.",
        ),
    ] = None,
) -> None:
    """Import a table of measurements as a run.

    With --sacct the table is written first, beside the run, and may be imported again.
    """
    from scalelab.running.sweep import RUNS
    from scalelab.session import import_table

    if sacct is not None:
        run_directory, table, constant = _of_jobs(sacct, table, constant or [])
    if table is None:
        raise SpecError(
            "import needs a TABLE, or --sacct with the ids of jobs.", code="no_table"
        )

    run = import_table(
        table,
        run_directory or RUNS / table.stem,
        column=pairs("--column", column or []),
        constant=pairs("--constant", constant or []),
        axis=axis or [],
        ignore=ignore or [],
        melt=pairs("--melt", [melt] if melt else []),
        per_device=per_device,
        tokens_per_sample=tokens_per_sample,
        samples_per_epoch=samples_per_epoch,
        decimal=decimal,
        header_row=header_row,
        accept_doubts=accept_doubts,
    )

    rows = counted(len(run.observations), "observation")

    are = "is" if len(run.observations) == 1 else "are"
    for line in (f"{rows} {are} in {run.directory}", *run.import_notes):
        typer.echo(line)

    for doubt in (*run.import_doubts, *run.doubted_rows):
        typer.echo(f"Doubtful: {doubt}", err=True)


_BATCHES = ("local_batch_size=", "global_batch_size=")


def _of_jobs(
    ids: str, run: Path | None, constant: list[str]
) -> tuple[Path, Path, list[str]]:
    """Write the table of some jobs.

    Returned are the run's directory, the table's path, and what is still to be said of
    it: the batch is in it.
    """
    from scalelab.running.sweep import RUNS
    from scalelab.session import jobs_table

    job_ids = [word.strip() for word in ids.split(",") if word.strip()]
    run = run or RUNS / f"jobs-{'-'.join(job_ids[:1])}"
    path = run.with_name(f"{run.name}.csv")
    table = jobs_table(job_ids, path, constant=pairs("--constant", constant))
    return run, table, [text for text in constant if not text.startswith(_BATCHES)]


_EXAMPLES = {
    "--column": "step_time_s=seconds_per_step",
    "--constant": "gpus_per_node=8",
    "--melt": "world_size=throughput_samples_per_s",
    "--select": "precision=bf16",
    "--spot": "interrupted_every=6h",
}


def pairs(option: str, texts: list[str]) -> dict[str, str]:
    """Return NAME=VALUE options as a mapping."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or name in pairs:
            raise SpecError(
                f"{option} {text!r} is not NAME=VALUE with a name given once. Write, "
                f"for example, {option} {_EXAMPLES[option]}.",
                code="no_name_and_value",
            )
        pairs[name] = value
    return pairs
