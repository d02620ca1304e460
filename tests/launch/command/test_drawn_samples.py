"""What a step drew, and what of it entered the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_specs import command_spec

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial
from scalelab.launch.command.probe.samples import entered_share, samples_columns
from scalelab.launch.command.probe.streams import Draws, ProbedProcess

LOCAL, SOURCE = 8, (0, True)


def trial(accumulation: int = 1) -> Trial:
    """Return a trial on two ranks with a local batch of 8."""
    batch = 2 * accumulation * LOCAL
    asked = {"ranks": 2, "accumulation": accumulation, "global_batch_size": batch}
    return command_spec(Path("/tmp/never"), code=Path("/tmp"), **asked).trial


def steps(*sizes: Sequence[int]) -> list[Draws]:
    """Return what a rank draws for its steps: the sizes of their batches."""
    return [Draws(SOURCE, len(step), sum(step), 0.0) for step in sizes]


def columns(ranks: Sequence[Sequence[Draws]], **changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"scale": 1.0, "skipped": 0.0, "num_loaders": 1}
    asked = trial(changes.pop("accumulation", 1))
    return samples_columns(asked, ranks, **told | {"entered": 1.0} | changes)


FULL = steps(*[[8]] * 20)
NONE = steps(*[[]] * 20)


@pytest.mark.parametrize(
    ("ranks", "changes", "samples", "reason"),
    [
        ([FULL, FULL], {}, 16, None),
        ([FULL], {"scale": 2.0}, 16, None),  # of the other node nothing was read
        ([steps(*[[8, 8]] * 20), NONE], {}, 16, None),  # the first deals out
        ([steps(*[[8], [4]] * 10)] * 2, {}, 12, "batch_sizes"),
        ([steps(*[[8], [], [], []] * 5)] * 2, {}, 4, "passes"),
        ([steps(*[[]] * 9, [8], *[[]] * 10)] * 2, {}, 0.8, "passes"),
        ([steps(*[[8] * 4, [8]] * 10)] * 2, {"accumulation": 4}, 40, "passes"),
        ([steps(*[[6]] * 20)] * 2, {}, 12, "unexplained"),
        ([steps(*[[6]] * 20)] * 2, {"num_loaders": 2}, 12, "loaders"),
        ([steps(*[[6, 6]] * 20)] * 2, {"skipped": 0.5}, 24, None),
        ([FULL, FULL], {"entered": 0.25}, 4, "model"),
        # by tokens, of many sizes
        ([steps(*[[3 + at] for at in range(20)])] * 2, {}, 24, "batch_sizes"),
    ],
)
def test_samples_are_those_of_all_ranks(
    ranks: list[list[Draws]],
    changes: dict[str, Any],
    samples: float,
    reason: str | None,
) -> None:
    found = columns(ranks, **changes)
    assert found["samples_per_step"] == pytest.approx(samples, rel=0.05)
    assert found.get("samples_differ") == reason
    assert found["samples_witness"] == ("model" if reason == "model" else "loader")


@pytest.mark.parametrize(
    "sizes", [[[32]] * 20, [[2]] * 20, [[8, 8, 8]] * 20, [[2], [2], [2], [1]] * 5]
)
def test_what_nothing_explains_is_refused(sizes: list[list[int]]) -> None:
    with pytest.raises(SpecError, match="where 8 were asked"):
        columns([steps(*sizes)] * 2)


def test_unknown_samples_confirm_nothing() -> None:
    unknown = [Draws(SOURCE, 1, None, 0.0)] * 20
    assert columns([unknown, FULL]) == {}
    assert columns([NONE, NONE]) == {}
    assert columns([]) == {}


# Sizes of the largest tensor of the batch, the calls, and the share that enters
CALLS: list[tuple[int, list[list[list[int]]], float]] = [
    (8 * 16, [[[8, 16, 128]]], 1.0),
    (8 * 16, [[[2, 16, 32]]], 0.25),
    (8 * 16, [[[2, 16, 32], [2, 1, 2]]], 0.25),
    # a slice as wide as the batch is long, and tokens without the last one
    (8 * 8, [[[2, 8, 16]]], 0.25),
    (8 * 16, [[[2, 15, 30]]], 0.25),
    # sequence first, and a part of that
    (8 * 16, [[[16, 8, 128]]], 1.0),
    (8 * 16, [[[16, 2, 32]]], 0.25),
    # fewer pixels of all samples, parts of a batch, two views, packed tokens
    (8 * 16, [[[8, 4, 32]]], 1.0),
    (8 * 16, [[[2, 16, 32]]] * 4, 1.0),
    (8 * 16, [[[4, 16, 64]]] * 4, 1.0),
    (8 * 16, [[[1, 128, 128]]], 1.0),
    # a list of pictures, and a batch that is no tensor
    (8 * 16, [[[8], [3, 4, 16], [3, 4, 16]]], 1.0),
    (0, [[[2, 30, 60]]], 1.0),
    (8 * 16, [], 1.0),
]


@pytest.mark.parametrize(("elements", "calls", "share"), CALLS)
def test_a_part_of_a_batch_that_enters_the_model_is_seen(
    elements: int, calls: list[list[list[int]]], share: float
) -> None:
    process = ProbedProcess(Path("/tmp/never/0/1.probe"))
    for step in range(1, 9):
        note = {"at_step": step, "optimizer": 0, "drawn": [[0, 8, elements]]}
        process.entries.append(note | {"entered": [[0, sizes] for sizes in calls]})
    assert entered_share(process, 0, {SOURCE}) == share
    assert entered_share(process, 1, {SOURCE}) == 1.0
    assert entered_share(process, 0, {(1, True)}) == 1.0


def test_a_part_that_changes_is_not_believed() -> None:
    process = ProbedProcess(Path("/tmp/never/0/1.probe"))
    for rows in (2, 2, 2, 2, 3):
        entered = [[0, [[rows, 16, 16 * rows]]]]
        note = {"optimizer": 0, "drawn": [[0, 8, 128]], "entered": entered}
        process.entries.append(note)
    assert entered_share(process, 0, {SOURCE}) == 1.0
