"""``scalelab sweep``."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scalelab.cli.arguments import ExperimentFile, RunToMake, SiteName
from scalelab.inputs.lines import ended
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome

if TYPE_CHECKING:
    from types import FrameType

    from scalelab.cli.progress import ProgressView
    from scalelab.errors import FitError, SpecError
    from scalelab.records.control.stop_request import StopRequests
    from scalelab.running.execution import RunningSweep, SweepSummary
    from scalelab.running.sweep import Sweep
    from scalelab.session import Recommendation

NOT_ALL_WELL, INTERRUPTED = 1, 130
MAX_SHOWN = 5


def run(
    experiment: ExperimentFile,
    site: SiteName = None,
    run_directory: RunToMake = None,
    sweep_budget: Annotated[
        str | None,
        typer.Option(
            metavar="10gpu-h",
            help="Start no trial once the run has used this much device time.",
        ),
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Go on although code, command or measurement changed; measure again.",
        ),
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed", help="Run trials again that could not be measured."
        ),
    ] = False,
    skip_check: Annotated[
        bool,
        typer.Option(
            "--skip-check",
            help="Run every trial, whatever the first one of a program shows.",
        ),
    ] = False,
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process",
            help="Run one trial on one device in this process, for the debugger; "
            "record nothing.",
        ),
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Run apart from this shell, in a process or, where the site has a "
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
    from scalelab.errors import ClusterError, FitError, SpecError
    from scalelab.inputs.quantities import parse_gpu_hours
    from scalelab.running.sweep import Sweep

    if in_process and detach:
        raise SpecError("--in-process runs in this shell, --detach apart from it.")
    if in_process:
        _run_in_process(experiment, site)
        return
    budget = parse_gpu_hours(sweep_budget) if sweep_budget is not None else None
    asked = Sweep.prepare(
        experiment,
        site=site,
        directory=run_directory,
        accept_changes=accept_changes,
        retry_failed=retry_failed,
        skip_check=skip_check,
    )
    if not yes and (question := asked.question):
        _confirm(question)
    words = {
        "--site": site,
        "--run": str(asked.directory),
        "--sweep-budget": sweep_budget,
        "--accept-changes": accept_changes,
        "--retry-failed": retry_failed,
        "--skip-check": skip_check,
        "--quiet": quiet,
    }
    arguments = ["sweep", str(experiment), "--yes", *_spelt(words)]
    if detach:
        _detach(asked, arguments)
        return
    interrupts = _Interrupts()
    summary = _run(
        asked, budget, interrupts, is_quiet=quiet, job=as_driver_job and arguments
    )
    if summary.stopped and not interrupts.count:
        typer.echo(f"The sweep ended early: {summary.stopped}.", err=True)
    if summary.unsound:
        from scalelab.cli.shown.first_trials import of_sweep

        typer.echo(of_sweep(asked, summary.unsound, experiment), err=True)
    for line in _closing(summary, asked.num_remaining):
        typer.echo(line, err=True)
    left = _left_jobs(asked.directory)
    if interrupts.count or interrupts.was_asked:
        if left:
            typer.echo(left, err=True)
        raise typer.Exit(INTERRUPTED)
    has_nothing = summary.unsound and summary.stopped and not summary.num_resumed
    answer = None if has_nothing else _answer(asked.directory, is_quiet=quiet)
    if left:
        raise ClusterError(left)
    unsound = {row["outcome"] for row in summary.unsound}
    if summary.stopped and Outcome.REFUSED in unsound:
        raise typer.Exit(SpecError.exit_code)
    # Without a job nothing was asked, and a sweep that was stopped may still tell.
    is_asked = asked.experiment.job is not None or isinstance(answer, FitError)
    is_unanswered = isinstance(answer, Exception) and is_asked and not summary.stopped
    if summary.num_failed or unsound or is_unanswered:
        raise typer.Exit(NOT_ALL_WELL)


def _spelt(words: Mapping[str, str | bool | None]) -> list[str]:
    """Return options in the notation of the command line."""
    spelt: list[str] = []
    for name, value in words.items():
        if value is True:
            spelt.append(name)
        elif value:
            spelt += [name, str(value)]
    return spelt


def _detach(asked: Sweep, arguments: list[str]) -> None:
    from scalelab.running.detached import detach

    detached = detach(asked, arguments)
    typer.echo(detached.text, err=bool(detached.exit_code))
    if detached.exit_code:
        raise typer.Exit(detached.exit_code)


def _run(
    asked: Sweep,
    budget: float | None,
    interrupts: _Interrupts,
    *,
    is_quiet: bool,
    job: list[str] | Literal[False],
) -> SweepSummary:
    """Run the sweep in this process, in a terminal or in a driver's batch job."""
    from rich.console import Console

    from scalelab.cli.progress import view
    from scalelab.running.detached import DriverJobLife, refuse_second_driver
    from scalelab.running.execution import run_sweep

    started_s = time.monotonic()
    life: DriverJobLife | None = None
    if not job:
        refuse_second_driver(asked.directory)

    def started(running: RunningSweep) -> None:
        interrupts.control(running)
        if life is not None:
            life.control(running)
        progress.watch(running.source)
        if running.dashboard_link is not None:
            progress.announce(f"Dask dashboard: {running.dashboard_link}")

    progress: ProgressView
    with (
        view(
            Console(stderr=True), asked.device_hour_word, is_quiet=is_quiet
        ) as progress,
        interrupts,
    ):
        interrupts.say = progress.announce
        if job:
            life = DriverJobLife(asked, job, say=progress.announce, started_s=started_s)
        for line in _opening(asked):
            progress.announce(line)
        return run_sweep(
            asked, budget_gpu_hours=budget, on_event=progress, on_start=started
        )


def _answer(
    directory: Path, *, is_quiet: bool
) -> Recommendation | FitError | SpecError:
    """Write the report, print the answer, and return it or why there is none."""
    from scalelab.cli.answering import print_answer, print_steadiness
    from scalelab.session import load

    finished = load(directory)
    report = finished.write_report()
    answer = finished.answer()
    print_answer(answer)
    if isinstance(answer, Exception) and finished.accepted:
        typer.echo(finished.accepted)
    print_steadiness(finished.observations)
    if not is_quiet:
        typer.echo(f"Report: {report}")
    return answer


def _left_jobs(directory: Path) -> str:
    """Say which batch jobs may hold nodes still; empty where there are none."""
    from scalelab.records.control.job_list import CLUSTER_DIRECTORY, JobList

    left = JobList.read(directory / CLUSTER_DIRECTORY).jobs
    if not left:
        return ""
    listed = "; ".join(map(str, left))
    return (
        f"{counted(len(left), 'job')} may hold nodes still, since the batch system did "
        f"not cancel them: {listed}. Cancel them by hand, or run the same command "
        "again once it answers."
    )


class _Interrupts:
    """The first Ctrl-C finishes what runs, the second ends it, a third ends all.

    Attributes
    ----------
    count
        Signals so far.
    say
        Tells the user what a signal leads to.
    """

    def __init__(self) -> None:
        self.count = 0
        self.say: Callable[[str], None] = lambda text: None
        self._drain: Callable[[], None] | None = None
        self._kill: Callable[[], None] | None = None
        self._requests: StopRequests | None = None
        self._before: list[tuple[int, object]] = []

    @property
    def was_asked(self) -> bool:
        """``scalelab stop`` asked for the sweep's end."""
        return self._requests is not None and self._requests.came

    def control(self, running: RunningSweep) -> None:
        """Stop this sweep from now on; run nothing if a signal came before it."""
        if self.count:
            raise KeyboardInterrupt
        self._drain, self._kill = running.driver.drain, running.driver.kill
        self._requests = running.stop_requests

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before.append((number, signal.signal(number, self._on_signal)))

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > (1 if self._kill is None else 2):
            raise KeyboardInterrupt
        if self._drain is None or self._kill is None:
            # In a thread: the signal may have come in the middle of a print, and that
            # cannot be entered a second time.
            text = "Interrupted: the sweep ends as soon as its nodes have started."
            threading.Thread(target=self.say, args=(text,)).start()
        elif self.count == 1 and number == signal.SIGINT:
            self._drain()
        else:
            self._kill()


def _opening(asked: Sweep) -> list[str]:
    lines = [asked.crowding] if asked.crowding else []
    lines += [f"Changed: {change}." for change in asked.changes]
    if asked.num_remaining is None:
        name, done = asked.experiment.source.name, counted(asked.num_finished, "trial")
        verb = f"Continuing ({done} done)" if asked.num_finished else "Running"
        where = f"into {asked.directory}"
        lines.append(f"{verb} the trials that source={name} proposes {where}.")
        return lines
    left = counted(asked.num_remaining, "trial")
    if asked.plan.assumes_local_batch:
        lines.append(f"Into {asked.directory}: first the largest local batch.")
    elif not asked.num_finished:
        lines.append(f"Running {left} into {asked.directory}.")
    elif asked.num_remaining:
        done = counted(asked.num_finished, "trial")
        lines.append(f"Continuing {asked.directory}: {done} done, {left} to run.")
    else:
        lines.append(
            f"All {counted(asked.num_finished, 'trial')} of {asked.directory} are done."
        )
    return lines


def _closing(summary: SweepSummary, num_before: int | None) -> list[str]:
    """Say what failed, and what is missing of the trials there were to run before."""
    lines = []
    if pruned := summary.outcomes.get(Outcome.PRUNED, 0):
        lines.append(
            f"Ended early by their source (pruned): {counted(pruned, 'trial')}."
        )
    if unfitting := summary.outcomes.get(Outcome.OUT_OF_MEMORY, 0):
        lines.append(f"Did not fit into memory: {counted(unfitting, 'trial')}.")
    unsound = {row["trial_id"] for row in summary.unsound}
    failures = [f for f in summary.failures if f.trial.trial_id not in unsound]
    for failure in failures[:MAX_SHOWN]:
        log = f" Log: {failure.log}" if failure.log else ""
        reason = ended(failure.reason) if log else failure.reason
        lines.append(f"{failure.outcome}: {failure.trial}. {reason}{log}")
    if more := len(failures) - MAX_SHOWN:
        lines += [f"... and {counted(more, 'trial')} more."] if more > 0 else []
    if summary.num_failed and (failures or not unsound):
        lines.append(_what_failed(summary))
    if summary.unfinished:
        # A canary is not known to the sweep before its turn has come.
        ended_here = summary.num_finished - summary.num_resumed
        left = 0 if num_before is None else num_before - ended_here
        count = counted(max(left, len(summary.unfinished)), "trial")
        lines.append(f"Not run: {count}. The same command goes on with them.")
    return lines


def _what_failed(summary: SweepSummary) -> str:
    count = counted(summary.num_failed, "trial")
    if set(summary.outcomes) != {Outcome.FAILED}:
        return f"Not measured: {count}. sweep --retry-failed tries again."
    first = summary.failures[:1]
    why = "".join(f": {ended(failure.reason)}" for failure in first) or "."
    return f"All {count} failed{why} Fix the script, then sweep --retry-failed."


def _confirm(question: str) -> None:
    from scalelab.errors import SpecError

    if not sys.stdin.isatty():
        raise SpecError(f"{question} There is no terminal to ask on: pass --yes.")
    if not typer.confirm(question, err=True):
        typer.echo("Nothing was run.", err=True)
        raise typer.Exit(INTERRUPTED)


def _run_in_process(experiment: Path, site: str | None) -> None:
    from scalelab.running.debug import debug

    trial, result = debug(experiment, site=site)
    typer.echo(f"{result.outcome}: {trial}. {result.reason}".rstrip())
    for name, value in result.measurements.items():
        if isinstance(value, int | float):
            typer.echo(f"  {name:<26} {value:.6g}")
