"""The first lines of an answer on a terminal: they argue, and end in a command."""

import textwrap
from collections.abc import Sequence

from scalelab.recommend.answer.argument_words import STATES, Ground
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import sentences, texts

_ROOM = 9  # lines
_NEXT = "Next: "


def first_lines(result: Recommendation, width: int) -> list[str]:
    """Return the choice, its figures, why not another, its grounds, and what is next.

    They are at most nine lines, but for words that are too long. Where not all grounds
    fit, those that are contradicted come first, then those that are open.
    """
    sentences_of = sentences(result)
    head = [
        " ".join(texts(sentences_of, "campaign")),
        " ".join(texts(sentences_of, "unmet", "nearest")),
        ", ".join(texts(sentences_of, "use", "settings")),
        ".  ".join(texts(sentences_of, "takes", "chance")),
        *texts(sentences_of, "batches", "queue", "why_not"),
    ]

    first = [line for text in head for line in textwrap.wrap(text, width)]
    last = _next(result, width)
    room = max(1, _ROOM - len(first) - len(last))
    return [*first, *_on_lines(result.grounds, room, width), *last]


def _on_lines(grounds: Sequence[Ground], room: int, width: int) -> list[str]:
    """Return the grounds of each state, on one line; on several where there is room.

    What is contradicted has two lines, if it needs them.
    """
    by_state = {
        s: [ground.text for ground in grounds if ground.state == s] for s in STATES
    }
    lines_of_state = [
        (f"{s.capitalize()}: ", texts_of_state)
        for s, texts_of_state in by_state.items()
        if texts_of_state
    ]
    lines: list[str] = []

    left = room - len(lines_of_state[:room])
    for title, phrases in lines_of_state[:room]:
        whole = textwrap.wrap(f"{title}{'; '.join(phrases)}.", width)
        is_first = title.startswith(STATES[0].capitalize())
        is_whole = len(whole) - 1 <= max(left, int(is_first))
        left -= is_whole * (len(whole) - 1)
        lines += whole if is_whole else [_on_line(title, phrases, width)]

    return lines


def _on_line(title: str, phrases: Sequence[str], width: int) -> str:
    line = ""
    for count in range(len(phrases), 0, -1):
        left = len(phrases) - count
        more = [f"{left} more"] if left else []
        line = f"{title}{'; '.join([*phrases[:count], *more])}."
        if len(line) <= width:
            return line
    return textwrap.shorten(line, width, placeholder=" ...")


def _next(result: Recommendation, width: int) -> list[str]:
    """Return the command, in lines that a shell reads as one, and what it is for."""
    command, why = result.next_command
    if not command:
        return textwrap.wrap(f"{_NEXT}{why}.", width) if why else []

    indent = " " * len(_NEXT)
    *begun, ended = textwrap.wrap(
        command,
        width - 2,
        initial_indent=_NEXT,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )

    lines = [*(f"{line} \\" for line in begun), f"{ended} ({why})."]
    if len(lines[-1]) > width:
        about = textwrap.wrap(
            f"({why}).", width, initial_indent=indent, subsequent_indent=indent
        )
        lines[-1:] = [ended, *about]

    return lines
