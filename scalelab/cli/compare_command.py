"""``scalelab compare``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalelab.cli.arguments import flag, option
from scalelab.cli.recommend_command import print_json, said_beyond_defaults
from scalelab.errors import SLOWER, SpecError
from scalelab.inputs.numerals import probability

if TYPE_CHECKING:
    from scalelab.session.comparison import Comparison


def _share(text: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if found is None:
        raise typer.BadParameter(f"{text[:60]!r} is no share. Write one such as 5%.")
    return float(found[1]) / 100


def run(
    run_directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [RUN]", help="Directories: before and after; with --axis one."
        ),
    ],
    axis: Annotated[
        str | None,
        option("NAME", "Compare the values of a setting within one run."),
    ] = None,
    fail_if_slower: Annotated[
        float | None,
        option(
            "5%",
            "End with 1 if the 90% interval says that a step takes longer by more.",
            parser=_share,
        ),
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
    **question: Any,
) -> None:
    """Compare the step times of two runs, and their answers.

    Compared are the configurations that both measured; with --axis the values of a
    setting within one run.
    """
    from scalelab.session import compare, load

    words = said_beyond_defaults(question)

    wanted = 2 if axis is None else 1
    if len(run_directories) != wanted:
        raise SpecError(
            f"compare takes two runs, or one with --axis, not {len(run_directories)}.",
            code="not_two_runs",
        )

    if axis is None:
        before, after = run_directories
        found = [compare(before, after, **words)]
    else:
        found = [*load(run_directories[0]).compare(axis, **words)]

    verdicts = [] if fail_if_slower is None else _verdicts(found, fail_if_slower)
    if as_json:
        about = {"command": "compare", "runs": run_directories, "axis": axis, **words}
        given = {name: value for name, value in about.items() if value}
        text = [line for comparison in found for line in comparison.sentences]
        comparisons = [comparison.to_dict() for comparison in found]
        print_json(given, facts=[], text=[*text, *verdicts], comparisons=comparisons)
    else:
        typer.echo("\n\n".join([*map(repr, found), *verdicts]))

    if fail_if_slower is not None:
        if any(comparison.is_slower_by(fail_if_slower) for comparison in found):
            raise typer.Exit(SLOWER)


def _verdicts(found: Sequence[Comparison], share: float) -> list[str]:
    verdicts = []
    for comparison in found:
        verb = "is" if comparison.is_slower_by(share) else "is not shown to be"
        chance = probability(comparison.chance_above(share))
        verdicts.append(
            f"{comparison.after.name} {verb} slower by more than {100 * share:g}%; the "
            f"chance that it is: {chance}."
        )
    return verdicts
