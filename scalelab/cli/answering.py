"""The answer on a terminal or in a pipe."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import pandas as pd

    from scalelab.errors import FitError, SpecError
    from scalelab.session import Recommendation

PIPE_WIDTH = 100
MAX_WIDTH = 100


def width() -> int:
    """Return the columns to fill: the terminal's, at most 100; in a pipe, 100."""
    if not sys.stdout.isatty():
        return PIPE_WIDTH
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def print_answer(
    found: Recommendation | FitError | SpecError, *, explain: bool = False
) -> None:
    """Print the recommendation, or why there is none."""
    from scalelab.session import answer_text

    if isinstance(found, Exception):
        typer.echo(f"No recommendation: {found}", err=True)
    else:
        typer.echo(answer_text(found, width(), explain=explain))


def print_steadiness(observations: pd.DataFrame) -> None:
    """Print whether the machine slowed down, where control trials say something."""
    from scalelab.session import steadiness_sentences

    for line in steadiness_sentences(observations):
        typer.echo(line)
