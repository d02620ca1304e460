"""Entry points, and the one place where errors become messages and exit codes.

Exit codes: 0 done, 1 some trials failed, 2 the user's input is wrong, 3 the cluster
refused or vanished, 4 nothing meets the constraints, 130 interrupted.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

import typer

from scalelab.errors import ScaleLabError

COMMANDS = {
    "sweep": "Run, continue or extend a sweep, then recommend.",
    "plan": "Show what a sweep would run, and what it would cost.",
    "status": "Show what a run has done, and what is missing.",
    "recommend": "Answer: which allocation, batch size and learning-rate rule.",
    "report": "Write the run's report: one self-contained HTML file.",
    "import": "Read a table of somebody's measurements as a run.",
    "data": "Obtain a data set that a built-in workload needs.",
    "init": "Write a commented experiment to start from.",
    "schema": "Print the JSON schema of experiments, for editors.",
    "doctor": "Say what this machine can run, and what it cannot.",
}


def build_app() -> typer.Typer:
    """Return the application with every command."""
    app = typer.Typer(
        name="scalelab",
        help="How many GPUs should this training job use? Measure, fit, recommend.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, summary in COMMANDS.items():
        module = import_module(f"scalelab.cli.{name}_command")
        app.command(name, help=summary)(module.run)
    return app


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run ``scalelab`` and exit."""
    try:
        build_app()(args=arguments)
    except ScaleLabError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    sys.exit(0)


def recommend_resources() -> NoReturn:
    """Run ``recommend-resources``, the same as ``scalelab recommend``, and exit."""
    main(["recommend", *sys.argv[1:]])


if __name__ == "__main__":
    main()
