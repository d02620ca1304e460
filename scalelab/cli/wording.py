"""Numbers as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> duration(42), duration(75), duration(7260), duration(200000)
    ('42 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
    rest = max(0, round(seconds))
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def trials(count: int) -> str:
    """Return a number of trials in words.

    >>> trials(1), trials(1200)
    ('1 trial', '1,200 trials')
    """
    return f"{count:,} trial{'' if count == 1 else 's'}"


def nodes(count: int, group: str | None = None) -> str:
    """Return a number of nodes, those of a group, in words.

    >>> nodes(1), nodes(16), nodes(2, "a100")
    ('1 node', '16 nodes', '2 a100 nodes')
    """
    kind = f"{group} " if group else ""
    return f"{count:,} {kind}node{'' if count == 1 else 's'}"


def ended(sentence: str) -> str:
    """Return a sentence with a full stop, for another to follow.

    >>> ended("'int' object is not iterable"), ended("It measures: val_acc.")
    ("'int' object is not iterable.", 'It measures: val_acc.')
    """
    return sentence if not sentence or sentence[-1] in ".!?" else f"{sentence}."


def one_line(text: str) -> str:
    r"""Return text as one line that cannot steer a terminal.

    >>> one_line("no\x1b[31m\nway")
    'no?[31m way'
    """
    words = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Return rows as lines with aligned columns; numbers to the right.

    >>> columns([("n", "kind"), ("12", "throughput")])
    [' n  kind', '12  throughput']
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    is_number = [
        all(cell.replace(",", "").isdigit() for cell in column[1:])
        for column in zip(*rows, strict=True)
    ]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in rows
    ]
