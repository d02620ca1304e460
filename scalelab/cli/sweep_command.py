"""``scalelab sweep``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalelab.cli.wording import trials

if TYPE_CHECKING:
    from types import FrameType

    from scalelab.scheduling.driver import Driver
    from scalelab.scheduling.summary import SweepSummary
    from scalelab.sweeping import Sweep

SOME_FAILED, INTERRUPTED = 1, 130
MAX_SHOWN = 5


def run(
    experiment: Annotated[Path, typer.Argument(help="The experiment's YAML file.")],
    site: Annotated[
        str | None, typer.Option(help="Name or path of a site profile.")
    ] = None,
    run_directory: Annotated[
        Path | None, typer.Option("--run", help="Directory of the run [runs/NAME].")
    ] = None,
    sweep_budget: Annotated[
        str | None,
        typer.Option(help="Start no trial beyond this device time, e.g. 10gpu-h."),
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="Go on although what trials mean changed."
        ),
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed", help="Run trials again that could not be measured."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print failures and the answer only.")
    ] = False,
) -> None:
    """Run, continue or extend a sweep, then recommend."""
    from rich.console import Console

    from scalelab.cli.answering import print_answer
    from scalelab.cli.progress import view
    from scalelab.experiment.quantities import parse_gpu_hours
    from scalelab.session import load
    from scalelab.sweeping import RunningSweep, Sweep

    budget = parse_gpu_hours(sweep_budget) if sweep_budget else None
    asked = Sweep.prepare(
        experiment,
        site=site,
        directory=run_directory,
        accept_changes=accept_changes,
        retry_failed=retry_failed,
    )
    if not yes and (question := asked.question):
        _confirm(question)
    interrupts = _Interrupts()
    with view(Console(stderr=True), len(asked.plan.trials), is_quiet=quiet) as progress:
        for line in _opening(asked):
            progress.announce(line)

        def started(running: RunningSweep) -> None:
            interrupts.control(running.driver)
            progress.announce(f"Dask dashboard: {running.dashboard_link}")

        with interrupts:
            summary = asked.run(
                budget_gpu_hours=budget, on_event=progress, on_start=started
            )
    finished = load(asked.directory)
    report = finished.write_report()
    for line in _closing(summary):
        typer.echo(line, err=True)
    print_answer(finished.answer())
    if not quiet:
        typer.echo(f"Report: {report}")
    if interrupts.count:
        raise typer.Exit(INTERRUPTED)
    if summary.num_failed:
        raise typer.Exit(SOME_FAILED)


class _Interrupts:
    """The first Ctrl-C finishes what runs, the second ends it."""

    def __init__(self) -> None:
        self.count = 0
        self._drain: Callable[[], None] | None = None
        self._kill: Callable[[], None] | None = None
        self._before: list[tuple[int, object]] = []

    def control(self, driver: Driver) -> None:
        """Take over from Python's own handling, which ends the program at once."""
        self._drain, self._kill = driver.drain, driver.kill

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before.append((number, signal.signal(number, self._on_signal)))

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self._drain is None or self._kill is None:
            raise KeyboardInterrupt
        if self.count == 1 and number == signal.SIGINT:
            self._drain()
        else:
            self._kill()


def _opening(asked: Sweep) -> list[str]:
    lines = [f"Accepted change: {change}" for change in asked.changes]
    if asked.num_finished:
        done, left = trials(asked.num_finished), asked.num_remaining
        lines.append(f"Continuing {asked.directory}: {done} done, {left} to run.")
    else:
        count = trials(len(asked.plan.trials))
        lines.append(f"Running {count} into {asked.directory}.")
    return lines


def _closing(summary: SweepSummary) -> list[str]:
    """Say what failed and what is missing."""
    lines = []
    for failure in summary.failures[:MAX_SHOWN]:
        log = f" Log: {failure.log}" if failure.log else ""
        lines.append(f"{failure.outcome}: {failure.trial}. {failure.reason}{log}")
    if more := len(summary.failures) - MAX_SHOWN:
        lines += [f"... and {trials(more)} more."] if more > 0 else []
    if summary.num_failed:
        count = trials(summary.num_failed)
        lines.append(f"Not measured: {count}. --retry-failed tries again.")
    if summary.unfinished:
        count = trials(len(summary.unfinished))
        lines.append(f"Not run: {count}. The same command goes on with them.")
    if summary.stopped:
        lines.append(f"The sweep ended early: {summary.stopped}.")
    return lines


def _confirm(question: str) -> None:
    from scalelab.errors import SpecError

    if not sys.stdin.isatty():
        raise SpecError(f"{question} There is nobody to ask here: pass --yes.")
    typer.confirm(question, abort=True, err=True)
