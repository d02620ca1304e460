"""``scalelab status`` and ``scalelab stop``."""

from dataclasses import asdict
from typing import Annotated

import typer

from scalelab.cli.arguments import RunDirectory, flag
from scalelab.cli.recommend_command import print_json, print_steadiness


def run(
    run_directory: RunDirectory,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Show what a run has done, and what is missing."""
    from scalelab.session import load

    run = load(run_directory)
    status = run.status()

    text = run.status_lines(status, run_directory)
    if as_json:
        question = {"command": "status", "run": run_directory}
        print_json(question, facts=[], text=text, **asdict(status))
        return

    typer.echo("\n".join(text))
    if status.has_canaries:  # what tells of them takes longer to load than all above
        print_steadiness(run.observations)


def stop(
    run_directory: RunDirectory,
    now: Annotated[
        bool, flag("--now", "End the trials that run, and wait for it.")
    ] = False,
) -> None:
    """Stop a run's sweep, wherever its driver is.

    The trials that run are finished first. The same sweep command goes on later.
    """
    from scalelab.running.stop import stop

    typer.echo(stop(run_directory, at_once=now))
