"""``scalelab status`` and ``scalelab stop``."""

from __future__ import annotations

from typing import Annotated

import typer

from scalelab.cli.arguments import RunDirectory
from scalelab.inputs.numerals import counted

MAX_SHOWN = 5


def run(
    run_directory: RunDirectory,
) -> None:
    """Show what a run has done, and what is missing."""
    from scalelab.cli.answering import print_steadiness
    from scalelab.inputs.numerals import device_time
    from scalelab.plan.memory_limits import limits_in_words
    from scalelab.records.control.lease import LOG
    from scalelab.running.detached import waiting_driver_text
    from scalelab.session import load

    run = load(run_directory)
    status = run.status()
    typer.echo(
        f"{run_directory}: {counted(sum(status.outcomes.values()), 'trial')} ended"
    )
    for outcome, count in status.outcomes.items():
        typer.echo(f"  {count:>6,}  {outcome}")
    for text in limits_in_words(status.memory_limits):
        typer.echo(f"  {text}")
    used = device_time(status.used_gpu_s / 3600, status.device_hour_word)
    typer.echo(f"Device time: {used}")
    driver = status.driver or waiting_driver_text(run_directory)
    typer.echo(f"Driver: {driver or 'none; the sweep is not running'}")
    if status.driver and (run_directory / LOG).exists():
        typer.echo(f"  log: {run_directory / LOG}")
    if status.num_nodes:
        nodes, devices = counted(status.num_nodes, "node"), status.num_devices
        typer.echo(f"  up: {nodes} with {counted(devices, 'device')}")
    if status.stopping:
        typer.echo(f"  starts no more trials: {status.stopping}")
    if status.stopped:
        typer.echo(f"The last sweep ended early: {status.stopped}")
    for trial_id, number in status.running[:MAX_SHOWN]:
        typer.echo(f"  begun, not ended: {trial_id}, attempt {number}")
    for job in status.jobs[:MAX_SHOWN]:
        typer.echo(f"  {job}")
    if more := len(status.jobs[MAX_SHOWN:]):
        typer.echo(f"  ... and {more} more jobs")
    for reason in status.waiting[:MAX_SHOWN]:
        typer.echo(f"Waiting: {reason}")
    if run.accepted:
        typer.echo(run.accepted)
    if status.num_missing:
        typer.echo(f"Not run yet: {counted(status.num_missing, 'trial')}")
    for reason in status.reasons[:MAX_SHOWN]:
        typer.echo(f"  {reason}")
    if status.has_canaries:  # what tells of them takes longer to load than all above
        print_steadiness(run.observations)


def stop(
    run_directory: RunDirectory,
    now: Annotated[
        bool, typer.Option("--now", help="End the trials that run, and wait for it.")
    ] = False,
) -> None:
    """Stop a run's sweep, wherever its driver is.

    The trials that run are finished first. The same sweep command goes on later.
    """
    from scalelab.running.stop import stop

    typer.echo(stop(run_directory, at_once=now))
