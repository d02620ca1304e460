"""``scalelab trainer`` and ``scalelab data``: what trainers offer besides sweeps."""

from pathlib import Path
from typing import Annotated

import typer

from scalelab.cli.arguments import RunToMake, SiteName, option
from scalelab.errors import SpecError
from scalelab.inputs.lines import aligned
from scalelab.inputs.problems import one_of, shown


def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Trainer: torch.")],
    command: Annotated[
        str | None,
        typer.Argument(metavar="COMMAND", help="What to do; none: list them."),
    ] = None,
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT", help="The experiment's YAML file."),
    ] = None,
    site: SiteName = None,
    run_directory: RunToMake = None,
) -> None:
    """Run a command of a trainer for an experiment.

    Torch has ``twin``, which tries parameter servers in virtual time.
    """
    from scalelab.kinds.registry import imported
    from scalelab.kinds.trainers import TRAINERS
    from scalelab.running.sweep import Sweep

    commands = TRAINERS[name].commands
    if command is None:
        rows = [(each, offered.summary) for each, offered in commands.items()]
        typer.echo("\n".join(aligned(rows, left=(True, True))))
        return
    if command not in commands:
        raise SpecError(
            f"Trainer {name} has no command {shown(command)}. "
            f"{one_of(commands, command)}"
        )
    if experiment is None:
        raise SpecError(
            f"`scalelab trainer {name} {command}` needs an experiment. Add the path of "
            "its YAML file."
        )
    asked = Sweep.read(experiment, site=site, directory=run_directory)
    program = asked.experiment.programs().get(None)
    for line in imported(commands[command].path)(program, asked.plan.trials):
        typer.echo(line)


def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set: cifar10.")],
    directory: Annotated[
        Path | None, option("DIR", "Where to put it [default: data/NAME].")
    ] = None,
) -> None:
    """Obtain a data set that a built-in workload needs."""
    from scalelab.session import obtain_data

    typer.echo(f"{name} is in {obtain_data(name, directory)}")
