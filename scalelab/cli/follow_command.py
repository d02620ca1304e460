"""``scalelab follow``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from scalelab.cli.arguments import flag, option
from scalelab.cli.recommend_command import print_json, said_beyond_defaults
from scalelab.errors import SpecError


def run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] JOBID|LOG",
            help="A run's directory, and the id of a job or the file that it printed.",
        ),
    ],
    log: Annotated[
        Path | None,
        option("FILE", "What the job has printed [default: where its log lies]."),
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
    **question: Any,
) -> None:
    """Hold a job that ran against its answer, and say what it used.

    The answer is that of the job's script, where `recommend --sbatch` has printed it;
    else the one that these options ask for. Without a run: what a job used of what it
    asked for.
    """
    from scalelab.session import follow

    if len(words) > 2:
        raise SpecError(
            f"follow takes a run and a job, or a job alone, not {len(words)} words. "
            "Write, for example, scalelab follow runs/vit 4711.",
            code="not_run_and_job",
        )

    *runs, job = words
    asked = said_beyond_defaults(question)
    if not runs and (asked or log):
        raise SpecError(
            "Without a run there is no answer to hold the job against. Write scalelab "
            f"follow RUN {job}.",
            code="job_without_run",
        )

    report = follow(job, runs[0] if runs else None, log=log, **asked)
    if as_json:
        about = {"command": "follow", "job": job, "run": runs and runs[0], **asked}
        given = {name: value for name, value in about.items() if value}
        values = report.to_dict()
        print_json(given, facts=[], text=values.pop("text"), **values)
    else:
        typer.echo(repr(report))
