"""Entry points, and the one place where errors become messages and exit codes.

Exit codes: 0 done, 1 some trials failed or no answer can be given, 2 the user's input
is wrong, 3 the cluster refused or vanished, 4 nothing meets the constraints, 130
interrupted, 141 the reader of the output left. Of several that apply: 130, 2, 3, 4, 1.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from types import FrameType, ModuleType
from typing import Annotated, Any, NoReturn, TextIO

import typer

from scalelab._version import __version__
from scalelab.cli.arguments import GroupedCommand
from scalelab.cli.recommend_command import print_error
from scalelab.errors import (
    INTERRUPTED,
    NOT_ALL_MEASURED,
    READER_LEFT,
    ScaleLabError,
    StoreError,
)
from scalelab.inputs.lines import ended, one_line
from scalelab.inputs.problems import for_the_command_line

AGAIN_AFTER_S = 0.01
RECOMMEND, REPORT, TABLE = "recommend", "report", "table"
COMPARE, FOLLOW = "compare", "follow"
QUESTIONS = (RECOMMEND, REPORT, TABLE, COMPARE, FOLLOW)

COMMANDS = {
    "sweep": "Run, continue or extend a sweep, then recommend.",
    "try": "Run the smallest trial and show what was read of it.",
    "plan": "Show what a sweep would run, and what it would cost.",
    "stop": "Stop a run's sweep, wherever its driver is.",
    "status": "Show what a run has done, and what is missing.",
    RECOMMEND: "Answer: which allocation, batch size and learning-rate rule.",
    REPORT: "Write the run's report: one self-contained HTML file.",
    TABLE: "Print strong and weak scaling as forms and papers do.",
    COMPARE: "Compare the step times of two runs, and their answers.",
    FOLLOW: "Hold a job that ran against its answer, and say what it used.",
    "import": "Import a table of measurements as a run.",
    "export": "Write what runs measured as CSV, Parquet or JSON.",
    "data": "Obtain a data set that a built-in workload needs.",
    "init": "Write a commented experiment to start from.",
    "schema": "Print the JSON schema of experiments, for editors.",
    "doctor": "Check whether sweeps can run on this machine, part by part.",
}

# File and function of the commands that stand in the file of another.
HOMES = {
    "try": "sweep:try_out",
    "stop": "status:stop",
    REPORT: "recommend:report",
    TABLE: "recommend:table",
    "schema": "init:schema",
}

SITE, SITE_HELP = "site", "Write a profile of the cluster that this machine belongs to."

_INSTALL = "--install-completion"
_COMPLETING = "_SCALELAB_COMPLETE"  # a variable of the scripts that typer installs

# Newer typers bring click along; none has a public name for this class.
UsageError: type[Any] = typer.BadParameter.__mro__[1]
_NO_MEMORY = (
    "This process may not use more memory. Raise its limit (ulimit -v) or run the same "
    "command on another machine. What was measured is kept."
)


def build_app(asked: str | None = None) -> typer.Typer:
    """Return the application with every command; of the others than asked the name."""
    app = typer.Typer(
        name="scalelab",
        help="How many GPUs should this training job use? Measure, fit, recommend.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    app.callback()(_options)
    for name, summary in COMMANDS.items():
        command = _command(name, asked) if asked in (None, name) else _nothing
        app.command(name, short_help=summary, cls=GroupedCommand)(command)

    is_needed = asked in (None, SITE)
    group = _module(SITE).app if is_needed else typer.Typer(callback=_nothing)
    app.add_typer(group, name=SITE, short_help=SITE_HELP)
    return app


def _module(name: str) -> ModuleType:
    return import_module(f"scalelab.cli.{name}_command")


def _command(name: str, asked: str | None) -> Callable[..., None]:
    home, _, function = HOMES.get(name, f"{name}:run").partition(":")
    command: Callable[..., None] = getattr(_module(home), function)
    if name not in QUESTIONS:
        return command
    from scalelab.cli.recommend_command import with_question
    from scalelab.kinds.resources import RESOURCES

    return with_question(command, RESOURCES if asked == name else RESOURCES.built_in)


def _nothing() -> None:
    """Stand for a command that is not asked for."""


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"scalelab {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = "--json" in arguments
    try:
        command = typer.main.get_command(build_app(arguments[0] if arguments else ""))
        is_bare = list(arguments) in ([], [SITE])
        words = [*arguments, "--help"] if is_bare else list(arguments)
        with for_the_command_line(), command.make_context("scalelab", words) as context:
            command.invoke(context)
    except typer.Exit as asked:
        return asked.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _say("Interrupted.", INTERRUPTED)
    except ScaleLabError as error:
        if as_json:
            print_error(error.kind, error.code, error.message, error.hint)
        return _say(f"Error: {error}", error.exit_code)
    except UsageError as error:
        message = ended(one_line(error.format_message()))
        hint = f"Try: {error.ctx.command_path if error.ctx else 'scalelab'} --help"
        if as_json:
            print_error("usage", "usage", message, hint)
        return _say(f"Error: {message} {hint}", error.exit_code)
    except (MemoryError, ImportError) as error:
        # so the loader says that the address space of the process is used up
        if isinstance(error, ImportError) and "map segment" not in str(error):
            raise
        return _say(f"Error: {_NO_MEMORY}", NOT_ALL_MEASURED)
    except OSError as error:
        if _INSTALL not in arguments:
            raise
        why = f"{error.filename} cannot be written: {error.strerror}"
        hint = "Add what --show-completion prints to the start-up file of your shell."
        return _say(f"Error: {why}. {hint}", StoreError.exit_code)
    return 0


def _complete() -> NoReturn:
    """Answer a shell that completes a line, and exit."""
    typed = map(os.environ.get, ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"))
    _, asked, *_ = [*" ".join(filter(None, typed)).split(), "", ""]
    sys.exit(typer.main.get_command(build_app(asked)).main([], "scalelab"))


def main(*words: str) -> NoReturn:
    """Run ``scalelab``, with words before those of its command line, and exit."""
    if _COMPLETING in os.environ:
        _complete()
    sys.exit(_run_in_pipe([*words, *sys.argv[1:]]))


def _run_in_pipe(arguments: Sequence[str]) -> int:
    if isinstance(sys.stdout, TextIOWrapper):
        # A path may hold what the terminal's encoding cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")

    interrupt = _Interrupt()
    try:
        with interrupt:
            return run(arguments)
    except BrokenPipeError:
        # It may as well come from a connection to a node: that is an error to show.
        abandoned = [
            stream for stream in (sys.stdout, sys.stderr) if _has_no_reader(stream)
        ]
        if not abandoned:
            raise
        for stream in abandoned:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return READER_LEFT
    except Exception:
        if not interrupt.came:
            raise
        return _say("Interrupted.", INTERRUPTED)


class _Interrupt:
    """Handler of Ctrl-C for commands without their own: raises and remembers it.

    Where it comes while an extension module calls back, as pydantic does when it is
    imported, it is wrapped in another error, or dropped: then it comes again.
    """

    def __init__(self) -> None:
        self.came = False
        self._before = signal.getsignal(signal.SIGINT)
        self._hook_before = sys.unraisablehook

    def __enter__(self) -> None:
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._on_signal)
            sys.unraisablehook = self._on_dropped

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)
        sys.unraisablehook = self._hook_before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt

    def _on_dropped(self, dropped: sys.UnraisableHookArgs, /) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            # From another thread: here it would be dropped again.
            again = (threading.get_ident(), signal.SIGINT)
            threading.Timer(AGAIN_AFTER_S, signal.pthread_kill, again).start()
        else:
            self._hook_before(dropped)


def _has_no_reader(stream: TextIO) -> bool:
    poll = select.poll()
    poll.register(stream, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _say(message: str, exit_code: int) -> int:
    typer.echo(one_line(message), err=True)
    return exit_code
