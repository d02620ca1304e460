from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalelab.cli.arguments import ExperimentFile, RunToMake, SiteName, flag, option
from scalelab.cli.recommend_command import print_answer, print_steadiness, say
from scalelab.errors import INTERRUPTED, NOT_ALL_MEASURED, SpecError
from scalelab.inputs.numerals import counted, duration
from scalelab.plan.inquiry import in_lines

if TYPE_CHECKING:
    from types import FrameType

    from scalelab.running.sweep import RunningSweep, Sweep
    from scalelab.running.sweep_end import SweepEnd


def run(
    experiment: ExperimentFile,
    site: SiteName = None,
    run_directory: RunToMake = None,
    sweep_budget: Annotated[
        str | None,
        option(
            "10gpu-h|20usd|2h",
            "The most that the run may take: device time, money or time.",
        ),
    ] = None,
    adapt: Annotated[
        str | None,
        option("RUN", "Start source: adaptive from the rows of a run, or an import."),
    ] = None,
    accept_changes: Annotated[
        bool,
        flag(
            "--accept-changes",
            "Go on although code, command or measurement changed; measure again.",
        ),
    ] = False,
    retry_failed: Annotated[
        bool, flag("--retry-failed", "Run trials again that could not be measured.")
    ] = False,
    skip_check: Annotated[
        bool,
        flag(
            "--skip-check",
            "Run every trial, whatever the first one of a program shows.",
        ),
    ] = False,
    trial: Annotated[
        str | None,
        option(
            "gpus=16,nodes=2,local_batch_size=64",
            "One trial more, such as the one that the answer names next.",
        ),
    ] = None,
    in_process: Annotated[
        bool,
        flag(
            "--in-process",
            "Run one trial on one device in this process, for the debugger; "
            "record nothing.",
        ),
    ] = False,
    detach: Annotated[
        bool,
        flag(
            "--detach",
            "Run apart from this shell, in a process or, where the site has a "
            "driver_job, in a batch job; come back once the sweep has begun.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print failures and the answer only.")
    ] = False,
    as_driver_job: Annotated[
        bool, typer.Option("--as-driver-job", hidden=True)
    ] = False,
) -> None:
    """Run, continue or extend a sweep, then recommend.

    The same command again resumes; further values in the experiment extend the run.
    Ctrl-C finishes the trials that run, a second one ends them; scalelab stop does the
    same from another shell.
    """
    from scalelab.running import detached
    from scalelab.running.sweep import Sweep
    from scalelab.session.sweep_cost import to_come

    if in_process and detach:
        raise SpecError(
            "--in-process runs in this shell, --detach apart from it.",
            code="two_places_to_run",
        )
    if in_process:
        _run_in_process(experiment, site)
        return

    asked = Sweep.read(
        experiment,
        site=site,
        directory=run_directory,
        retry_failed=retry_failed,
        skip_check=skip_check,
        trial=trial,
        budget=sweep_budget,
        adapt=adapt,
    ).prepared(accept_changes=accept_changes)
    if not as_driver_job:
        detached.refuse_second_driver(asked.directory)
    if asked.site.batch_system is not None and not quiet:
        for line in to_come(asked):
            say(line, err=True)
    if not yes and (question := asked.question):
        _confirm(question)

    options = {
        "--site": site,
        "--run": str(asked.directory),
        "--sweep-budget": sweep_budget,
        "--adapt": adapt,
        "--accept-changes": accept_changes,
        "--retry-failed": retry_failed,
        "--skip-check": skip_check,
        "--trial": trial,
        "--quiet": quiet,
    }

    arguments = ["sweep", str(experiment), "--yes"]
    for name, value in options.items():
        if value:
            arguments += [name] if value is True else [name, value]

    if detach:
        apart = detached.detach(asked, arguments)
        typer.echo(apart.text, err=bool(apart.exit_code))
        raise typer.Exit(apart.exit_code)

    interrupts = _Interrupts()
    end = _run(
        asked, interrupts, is_quiet=quiet, job=arguments if as_driver_job else None
    )
    raise typer.Exit(_show_end(asked, end, experiment, interrupts, is_quiet=quiet))


def _show_end(
    asked: Sweep,
    end: SweepEnd,
    experiment: Path,
    interrupts: _Interrupts,
    *,
    is_quiet: bool,
) -> int:
    """Print how a sweep ended, and its answer; return the exit code."""
    from scalelab.cli.shown.sweep_end import closing, left_jobs
    from scalelab.running.sweep_end import EXIT

    summary = end.summary
    if summary.stopped and not interrupts.count:
        say(f"The sweep ended early: {summary.stopped}.", err=True)

    if summary.unsound:
        from scalelab.cli.shown.first_trials import of_sweep

        typer.echo(of_sweep(asked, summary.unsound, experiment), err=True)

    for line in closing(end, asked.num_remaining):
        say(line, err=True)

    if (inquiry := asked.source.inquiry) is not None:
        for line in in_lines(inquiry, asked.words):
            say(line, err=True)

    meets_limits = True
    if end.is_to_be_answered:
        meets_limits = _answer(asked.directory, is_quiet=is_quiet)
    if end.left_jobs:
        typer.echo(f"Error: {left_jobs(end.left_jobs)}", err=True)

    return EXIT[end.reason(meets_limits=meets_limits)]


def try_out(
    experiment: ExperimentFile,
    site: SiteName = None,
    keep: Annotated[
        bool,
        flag(
            "--keep", "Keep records and logs in runs/.NAME.try, also where all is well."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the result only.")
    ] = False,
) -> None:
    """Run the smallest trial and show what was read of it.

    Where several devices are asked for, the smallest trial of several follows. No later
    sweep counts these trials.
    """
    from scalelab.cli.progress import view
    from scalelab.cli.shown.first_trials import table, verdict
    from scalelab.running import execution

    started_s = time.monotonic()

    sweep = execution.prepare(experiment, site=site)
    with view(sweep.words, is_quiet=quiet) as progress:
        tried = execution.try_out(
            sweep,
            keep=keep,
            on_event=progress,
            on_start=lambda running: progress.watch(running.source),
        )

    trials = counted(len(tried.trials), "trial")
    title = (
        f"{sweep.experiment.name}: {trials} of a few steps in "
        f"{duration(time.monotonic() - started_s)}"
    )
    typer.echo("\n".join([title, *table(tried), "", *verdict(tried)]))

    if tried.directory is not None:
        typer.echo(f"Records and logs: {tried.directory}")
    if not tried.is_well:
        raise typer.Exit(NOT_ALL_MEASURED)

    typer.echo(f"Next: scalelab sweep {experiment}")


def _run(
    asked: Sweep,
    interrupts: _Interrupts,
    *,
    is_quiet: bool,
    job: list[str] | None,
) -> SweepEnd:
    from scalelab.cli.progress import view
    from scalelab.running.detached import DriverJobLife
    from scalelab.running.execution import run_sweep
    from scalelab.session.sweep_cost import rate_of

    started_s = time.monotonic()
    with view(asked.words, is_quiet=is_quiet) as progress, interrupts:
        say = interrupts.say = progress.announce
        life = job and DriverJobLife(asked, job, say=say, started_s=started_s)

        def started(running: RunningSweep) -> None:
            interrupts.control(running)
            if life:
                life.control(running)
            progress.watch(running.source)
            if running.dashboard_link is not None:
                say(f"Dask dashboard: {running.dashboard_link}")

        for line in _opening(asked):
            say(line)

        return run_sweep(
            asked, rate=rate_of(asked), on_event=progress, on_start=started
        )


def _answer(directory: Path, *, is_quiet: bool) -> bool:
    """Print the answer; return whether it keeps the limits, if there is one."""
    from scalelab.session import load
    from scalelab.session.next_step import explaining

    finished = load(directory)

    report, answer = finished.write_report(), finished.answer()
    if result := finished.search_result:
        typer.echo("\n".join(result.sentences))
    else:
        print_answer(answer, explaining=explaining(finished, {}))

    if isinstance(answer, Exception) and finished.accepted:
        typer.echo(finished.accepted)

    print_steadiness(finished.observations)
    if not is_quiet:
        say(f"Report: {report}")

    return isinstance(answer, Exception) or answer.meets_constraints


class _Interrupts:
    """The first Ctrl-C finishes what runs, the second ends it, a third ends all."""

    def __init__(self) -> None:
        self.count = 0  # signals so far
        self.say: Callable[[str], None] = lambda text: None  # what one leads to
        self._running: RunningSweep | None = None
        self._before: dict[int, Any] = {}

    def control(self, running: RunningSweep) -> None:
        """Stop this sweep from now on; run nothing if a signal came before it."""
        if self.count:
            raise KeyboardInterrupt
        self._running = running

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.count and self._running is None and error[0] is None:
            raise KeyboardInterrupt  # nothing was left to run

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > (1 if self._running is None else 2):
            raise KeyboardInterrupt

        if self._running is None:
            # In a thread: the signal may have come in the middle of a print, and that
            # cannot be entered a second time.
            text = "Interrupted: the sweep ends as soon as its nodes have started."
            threading.Thread(target=self.say, args=(text,)).start()
        else:
            is_first = self.count == 1 and number == signal.SIGINT
            self._running.stop_requests.stop(at_once=not is_first)


def _opening(asked: Sweep) -> Iterator[str]:
    if asked.crowding:
        yield asked.crowding
    yield from (f"Changed: {change}." for change in asked.changes)
    num_done, where = asked.num_finished, asked.directory

    done, left = counted(num_done, "trial"), counted(asked.num_remaining or 0, "trial")
    if asked.num_remaining is None:
        verb = f"Continuing ({done} done)" if num_done else "Running"
        proposed = f"the trials that source={asked.experiment.source.name} proposes"
        yield f"{verb} {proposed} into {where}."
    elif asked.plan.assumes_local_batch:
        yield f"Into {where}: first the largest local batch."
    elif not num_done:
        yield f"Running {left} into {where}."
    elif asked.num_remaining:
        yield f"Continuing {where}: {done} done, {left} to run."
    else:
        yield f"All {done} of {where} are done."


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise SpecError(
            f"{question} There is no terminal to ask on: pass --yes.", code="no_consent"
        )
    if not typer.confirm(question, err=True):
        typer.echo("Nothing was run.", err=True)
        raise typer.Exit(INTERRUPTED)


def _run_in_process(experiment: Path, site: str | None) -> None:
    from scalelab.running.execution import debug

    trial, result = debug(experiment, site=site)
    typer.echo(f"{result.outcome}: {trial}. {result.reason}".rstrip())
    for name, value in result.measurements.items():
        if isinstance(value, int | float):
            typer.echo(f"  {name:<26} {value:.6g}")
