"""Text for a terminal: full stops, single lines, aligned columns."""

import re
import textwrap
from collections.abc import Sequence

_MARKS = re.compile(r"[&<|\\`*\[\]]")  # those of Markdown, and of HTML in it


def ended(sentence: str) -> str:
    """Return a sentence that ends with a full stop, so that another can follow.

    >>> ended("'int' object is not iterable"), ended("It measures: val_acc.")
    ("'int' object is not iterable.", 'It measures: val_acc.')
    """
    return sentence if not sentence or sentence[-1] in ".!?" else f"{sentence}."


def one_line(text: str) -> str:
    r"""Return text as one line without control characters.

    >>> one_line("no\x1b[31m\nway")
    'no?[31m way'
    """
    words = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def in_markdown(text: str) -> str:
    r"""Return text as one line that Markdown shows as it stands, also in a table.

    >>> in_markdown("a|b\n<img src=x>")
    'a&#124;b &#60;img src=x>'
    """
    return _MARKS.sub(lambda mark: f"&#{ord(mark[0])};", one_line(text))


def between_words(text: str, columns: int) -> str:
    """Return a text in lines of some columns, longer where one word is."""
    return textwrap.fill(text, columns, break_long_words=False, break_on_hyphens=False)


def aligned(rows: Sequence[Sequence[str]], *, left: Sequence[bool]) -> list[str]:
    """Return rows of cells as lines.

    Examples
    --------
    >>> aligned([("n", "kind"), ("12", "throughput")], left=[False, True])
    [' n  kind', '12  throughput']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in rows
    ]
