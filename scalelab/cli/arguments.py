"""The arguments that several commands have, and how help groups them."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

ExperimentFile = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT", help="The experiment's YAML file.")
]
SiteName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name or path of a site profile.")
]
RunToMake = Annotated[
    Path | None,
    typer.Option(
        "--run", metavar="DIR", help="Directory of the run [default: runs/NAME]."
    ),
]
RunDirectory = Annotated[
    Path, typer.Argument(metavar="RUN", help="Directory of the run.")
]


def option(
    metavar: str, help: str, *names: str, group: str | None = None, **further: Any
) -> Any:
    """Return an option with a value; by default it has the name of its parameter."""
    return typer.Option(
        *names, metavar=metavar, help=help, rich_help_panel=group, **further
    )


def flag(name: str, help: str, *, group: str | None = None) -> Any:
    """Return an option without a value, which has no opposite."""
    return typer.Option(name, help=help, rich_help_panel=group)


def number(text: str, example: str = "1.5") -> float:
    """Read a number."""
    with suppress(ValueError):
        return float(text)
    raise typer.BadParameter(
        f"{text[:60]!r} is not a number. Write one such as {example}."
    )


def fraction(text: str | float) -> float:
    """Read a share, such as 0.9 or 90%."""
    text = str(text)  # of a default, too
    share = number(text.removesuffix("%"), "0.9 or 90%")
    return share / 100 if text.endswith("%") else share


def count(text: str) -> int:
    """Read a whole number, such as 500000 or 1e7."""
    with suppress(ValueError):
        if (value := float(text)).is_integer():
            return int(value)
    raise typer.BadParameter(
        f"{text[:60]!r} is not a whole number. Write one such as 500000 or 1e7."
    )


class GroupedCommand(TyperCommand):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options of each group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            usual = f"{parameter.param_type_name.capitalize()}s"
            group = getattr(parameter, "rich_help_panel", None) or usual
            if record := parameter.get_help_record(ctx):
                groups.setdefault(group, []).append(record)

        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)
