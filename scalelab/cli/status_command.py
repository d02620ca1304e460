"""``scalelab status`` and ``scalelab stop``."""

from dataclasses import asdict
from typing import Annotated

import typer

from scalelab.cli.answering import print_json, print_steadiness
from scalelab.cli.arguments import RunDirectory, flag
from scalelab.inputs.numerals import counted, device_time

MAX_SHOWN = 5


def run(
    run_directory: RunDirectory,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Show what a run has done, and what is missing."""
    from scalelab.plan.memory_limits import limits_in_words
    from scalelab.records.control.lease import LOG
    from scalelab.running.detached import waiting_driver_text
    from scalelab.session import load

    run = load(run_directory)
    status = run.status()
    used = device_time(status.used_gpu_s / 3600, status.device_hour_word)
    driver = status.driver or waiting_driver_text(run_directory)
    log, more = run_directory / LOG, len(status.jobs[MAX_SHOWN:])
    nodes = counted(status.num_nodes or 0, "node")
    devices = counted(status.num_devices or 0, "device")
    lines = [
        f"{run_directory}: {counted(sum(status.outcomes.values()), 'trial')} ended",
        *(f"  {count:>6,}  {outcome}" for outcome, count in status.outcomes.items()),
        *(f"  {text}" for text in limits_in_words(status.memory_limits)),
        f"Device time: {used}",
        f"Driver: {driver or 'none; the sweep is not running'}",
        f"  log: {log}" if status.driver and log.exists() else "",
        f"  up: {nodes} with {devices}" if status.num_nodes else "",
        f"  starts no more trials: {status.stopping}" if status.stopping else "",
        f"The last sweep ended early: {status.stopped}" if status.stopped else "",
        *(
            f"  begun, not ended: {trial_id}, attempt {number}"
            for trial_id, number in status.running[:MAX_SHOWN]
        ),
        *(f"  {job}" for job in status.jobs[:MAX_SHOWN]),
        f"  ... and {more} more jobs" if more else "",
        *(f"Waiting: {reason}" for reason in status.waiting[:MAX_SHOWN]),
        f"Of the last sweep nothing is known: {status.unreadable}"
        if status.unreadable
        else "",
        run.accepted,
        *(run.search_result.sentences if run.search_result else ()),
    ]
    if status.num_missing:
        lines.append(f"Not run yet: {counted(status.num_missing, 'trial')}")
    lines += [f"  {reason}" for reason in status.reasons[:MAX_SHOWN]]
    text = [*filter(None, lines)]
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
