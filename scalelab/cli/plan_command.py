import typer

from scalelab.cli.arguments import ExperimentFile, RunToMake, SiteName


def run(
    experiment: ExperimentFile,
    site: SiteName = None,
    run_directory: RunToMake = None,
) -> None:
    """Show what a sweep would run, and what it would cost; run nothing."""
    from scalelab.session import dry_run

    typer.echo(dry_run(experiment, site=site, directory=run_directory))
