"""Expressions for lines that count up to a length."""

import re

import pytest

from scalelab.running.proposal.counting_lines import counting_expression

LANGUAGE_MODEL = [
    f"| epoch {epoch:3d} | {batch:5d}/ 1000 batches | lr 20.00 | ms/batch 12.30 |"
    for epoch in (9, 10)
    for batch in (400, 800, 1000)
]
IMAGES = [
    line
    for epoch in (0, 1)
    for line in (
        *(f"Train: {epoch} [{n:4d}/32 ({3 * n}%)]  Loss: 2.31" for n in (0, 10, 20)),
        *(f"Test: [{n:4d}/8]  Time: 0.1" for n in (0, 5)),
    )
]


def groups(lines: list[str]) -> list[dict[str, str]]:
    expression = counting_expression(lines)
    assert expression is not None
    found = (re.search(expression, line) for line in lines)
    return [match.groupdict() for match in found if match]


@pytest.mark.parametrize(
    ("lines", "epochs", "counts", "length"),
    [
        (LANGUAGE_MODEL, "9 9 9 10 10 10", "400 800 1000 400 800 1000", "1000"),
        (IMAGES, "0 0 0 1 1 1", "0 10 20 0 10 20", "32"),
    ],
)
def test_batches_of_epochs_are_found(
    lines: list[str], epochs: str, counts: str, length: str
) -> None:
    found = groups([*lines, "-" * 80, "| end of epoch   1 | time:  5.0s |"])
    assert [row["epoch"] for row in found] == epochs.split()
    assert [row["batch_of_epoch"] for row in found] == counts.split()
    assert {row["batches_of_epoch"] for row in found} == {length}


def test_what_only_rises_counts_steps_of_the_training() -> None:
    found = groups(["0.5 s: it's 1/9", "0.9 s: it's 2/9", "1 s: it's 3/9"])
    assert [row["step"] for row in found] == ["1", "2", "3"]
    assert {row["steps_in_all"] for row in found} == {"9"}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["loss 2.5", "loss 2.4"],
        ["11/22/2026 done", "11/22/2026 done"],
        ["read 5/4", "read 6/4", "read 7/4"],
        ["size 1/2", "size 1/3", "size 2/4"],
    ],
)
def test_other_lines_count_nothing(lines: list[str]) -> None:
    assert counting_expression(lines) is None
