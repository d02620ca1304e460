from typing import Annotated, Literal

import typer

from scalelab.cli.arguments import flag, option

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Site profiles: what a cluster has, and how to ask for it."""


@app.command("init")
def init(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the profile, or path of a YAML file [default: the cluster's "
            "own name].",
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition",
            "--queue",
            metavar="NAME",
            help="Partition or queue [default: the one with most GPUs].",
        ),
    ] = None,
    device_type: Annotated[
        Literal["cuda", "cpu"] | None,
        typer.Option(
            help="What ranks run on [default: cuda where nodes have GPUs]; with cpu "
            "they only hold the GPUs' places."
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        option(
            "NAME",
            "Batch system, such as slurm or pbs [default: the one that is here].",
        ),
    ] = None,
    force: Annotated[bool, flag("--force", "Replace a profile that is there.")] = False,
) -> None:
    """Write a commented profile of this cluster.

    It holds what the batch system says. Profiles lie in ~/.config/scalelab/sites.
    """
    from scalelab.doctor.site_profile import init_site

    path, nodes = init_site(
        name,
        queue=partition,
        device_type=device_type,
        scheduler=scheduler,
        force=force,
    )

    typer.echo(f"Wrote {path}: {nodes}.")
    typer.echo(f"Look through it, then: scalelab doctor --site {name or path.stem}")
