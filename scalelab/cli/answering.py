"""The answer on a terminal, in a pipe, and as JSON for programs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from scalelab.inputs.lines import between_words

if TYPE_CHECKING:
    import pandas as pd

    from scalelab.errors import FitError, SpecError
    from scalelab.session import Recommendation

ANSWER, ERROR = "scalelab.answer/1", "scalelab.error/1"


def print_json(
    question: Mapping[str, Any],
    facts: Sequence[Mapping[str, Any]],
    text: Sequence[str],
    **figures: Any,
) -> None:
    """Print what a command answers: the same envelope around each command's figures.

    Keys are added, never renamed or dropped, while ``schema`` stays what it is. The
    question names the command and what it was asked; each fact has a ``kind`` and
    values, and the text says the same in sentences.
    """
    envelope = {"schema": ANSWER, "question": question, "facts": facts, "text": text}
    _print(envelope | figures)


def print_error(kind: str, message: str, hint: str = "") -> None:
    """Print as JSON why a command has no answer."""
    _print({"schema": ERROR, "kind": kind, "message": message, "hint": hint})


def _print(values: Mapping[str, Any]) -> None:
    import json  # not for --help

    typer.echo(json.dumps(values, indent=2, allow_nan=False, default=str))


def width() -> int | None:
    """Return the columns of the terminal; None in a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str, *, err: bool = False) -> None:
    """Print a message; on a terminal its lines break between words."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        columns = shutil.get_terminal_size().columns
        text = between_words(text, columns)
    typer.echo(text, err=err)


def print_answer(
    found: Recommendation | FitError | SpecError,
    *,
    explain: bool = False,
    explaining: str = "",
) -> None:
    """Print the recommendation, or why there is none; ``explaining`` is a command."""
    from scalelab.session import answer_text

    if isinstance(found, Exception):
        say(f"No recommendation: {found}", err=True)
    else:
        typer.echo(answer_text(found, width(), explain=explain))
        if not explain and sys.stdout.isatty():
            # in one line, to be pasted
            typer.echo(f"All that stands behind it: {explaining}")


def print_steadiness(observations: pd.DataFrame) -> None:
    """Print whether the machine slowed down, where control trials say something."""
    from scalelab.session import steadiness_sentences

    for line in steadiness_sentences(observations):
        say(line)
