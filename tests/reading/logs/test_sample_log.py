"""What reads a sample of a program's output: a preset, or an expression."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scalelab.reading.logs.match import LogMatch, match

LANGUAGE_MODEL = [
    f"| epoch {epoch:3d} | {batch:5d}/ 1000 batches | lr 20.00 | ms/batch 12.30 |"
    for epoch in (9, 10)
    for batch in (400, 800, 1000)
]
# In the manner of many scripts, whose evaluation counts as well.
IMAGES = [
    line
    for epoch in (0, 1)
    for line in (
        *(f"Training {epoch} [{n:4d}/32]  Loss: 2.31" for n in (0, 10, 20)),
        *(f"Testing: [{n:4d}/8]  Time: 0.1" for n in (0, 5)),
    )
]
# The number of an epoch is written as its steps are.
SEGMENTATION = [
    line
    for epoch in (1, 2, 3)
    for line in (
        "-" * 10,
        f"epoch {epoch}/20",
        *(f"{n}/10, train_loss: {1 / (9 * epoch + n):.4f}" for n in range(1, 11)),
        f"epoch {epoch} average loss: 0.3000",
    )
]
GAN = [f"[{e}/25][{b}/32] Loss_D: 1.2" for e in (0, 1) for b in (0, 8, 16, 24)]


def reading(folder: Path, lines: list[str]) -> LogMatch:
    log = folder / "sample.log"
    log.write_text("\n".join(["hello", *lines, "-" * 80, ""]))
    return match(log)


def groups(found: LogMatch, lines: list[str]) -> list[dict[str, str]]:
    assert found.preset is None
    assert found.expression is not None
    matches = (re.search(found.expression, line) for line in lines)
    return [found.groupdict() for found in matches if found]


@pytest.mark.parametrize(
    ("lines", "counted", "length"),
    [
        (LANGUAGE_MODEL, "400 800 1000 400 800 1000", "1000"),
        (LANGUAGE_MODEL[:3], "400 800 1000", "1000"),
        (IMAGES, "0 10 20 0 10 20", "32"),
        (GAN, "0 8 16 24 0 8 16 24", "32"),
        ([f"Epoch 1/10 [{n:3d}/ 50]" for n in (10, 20, 30)], "10 20 30", "50"),
        ([f"Epoch: [0]  [{n:4d}/1251]" for n in (20, 40)], "20 40", "1251"),
        ([f"Epoch 3 loss 2.5 {n}/90" for n in (1, 2, 3)], "1 2 3", "90"),
    ],
)
def test_batches_of_epochs_are_found(
    tmp_path: Path, lines: list[str], counted: str, length: str
) -> None:
    found = reading(tmp_path, lines)
    rows = groups(found, lines)
    assert found.counted == "batch_of_epoch"
    assert [row["batch_of_epoch"] for row in rows] == counted.split()
    assert {row["batches_of_epoch"] for row in rows} == {length}


def test_a_loss_after_each_count_is_named(tmp_path: Path) -> None:
    lines = [f"step {n} | Loss: {9 - n}.5 | val_loss 3" for n in (1, 2)]
    assert [row["loss"] for row in groups(reading(tmp_path, lines), lines)] == [
        "8.5",
        "7.5",
    ]
    assert "loss" not in groups(reading(tmp_path, [*lines, "step 3"]), lines)[0]


def test_the_number_of_an_epoch_is_named(tmp_path: Path) -> None:
    rows = groups(reading(tmp_path, LANGUAGE_MODEL), LANGUAGE_MODEL)
    assert [row["epoch"] for row in rows] == "9 9 9 10 10 10".split()


@pytest.mark.parametrize(
    "lines",
    [
        [f"Epoch: 1 [{n}/60000 ({n // 600}%)]" for n in (0, 640, 1280)],
        [f"Train: [{n}/6400 (0%)]" for n in (16, 32, 48)],
    ],
)
def test_samples_are_told_from_batches(tmp_path: Path, lines: list[str]) -> None:
    found = reading(tmp_path, lines)
    assert found.counted == "samples_of_epoch"
    assert len({row["samples_of_epoch"] for row in groups(found, lines)}) == len(lines)


@pytest.mark.parametrize(
    ("lines", "first", "length"),
    [
        (["Finished it 1/90 of epoch 0", "Finished it 2/90 of epoch 0"], "1", "90"),
        (["0.5 s: it's 1/9", "0.9 s: it's 2/9", "1 s: it's 3/9"], "1", "9"),
        (["step 10 | loss 3.0", "step 20 | loss 2.9"], "10", None),
        (["global_step=1 loss 3 n=32", "global_step=2 loss 3 n=64"], "1", None),
        (["[Iter 5] loss=2", "[Iter 10] loss=1"], "5", None),
        (["Step 3/90, epoch 0.1", "Step 6/90, epoch 0.2"], "3", "90"),
    ],
)
def test_what_only_rises_counts_steps_of_the_training(
    tmp_path: Path, lines: list[str], first: str, length: str | None
) -> None:
    found = reading(tmp_path, lines)
    rows = groups(found, lines)
    assert found.counted == "step"
    assert (rows[0]["step"], rows[0].get("steps_in_all")) == (first, length)


@pytest.mark.parametrize(
    "lines",
    [
        ["loss 2.5", "loss 2.4"],
        ["11/22/2026 done", "11/22/2026 done"],
        SEGMENTATION,
        ["size 1/2", "size 1/3", "size 2/4"],
        ["step 7"],
    ],
)
def test_other_lines_count_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert reading(tmp_path, lines).expression is None


BAR = [f"Epoch 0:  9%|#  | {n}/32 [00:0{n}<00:30, 1.02it/s]" for n in (1, 2, 3)]


def test_a_preset_of_something_else_than_is_imported_is_not_taken(
    tmp_path: Path,
) -> None:
    log = tmp_path / "sample.log"
    log.write_text("\n".join(BAR))
    imported = match(log, frozenset({"lightning"})).preset
    unknown = match(log, frozenset({"torch"})).preset
    assert imported is unknown is not None
    assert imported.name == "lightning"
    other = match(log, frozenset({"deepspeed", "transformers"}))
    assert other.preset is None or other.preset.name != "lightning"
