"""Allocations that do not fit between their neighbours, as typing errors do not."""

from collections.abc import Sequence

import pandas as pd
import pytest

from scalelab.experiment.job import Job
from scalelab.laws.rows import prepared
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.knowledge import uneven
from scalelab.recommend.question.objective import Constraints

SIZES = (8, 16, 32)


def table(rates: Sequence[float], repeats: int = 1) -> pd.DataFrame:
    """Rows of 32 samples a device, by samples per second."""
    rows = [
        {
            "kind": "imported",
            "world_size": size,
            "num_nodes": size // 8,
            "local_batch_size": 32,
            "throughput_samples_per_s": rate * (1 + 1e-3 * repeat),
        }
        for size, rate in zip(SIZES, rates, strict=True)
        for repeat in range(repeats)
    ]
    return pd.DataFrame(rows)


def found(rates: Sequence[float], repeats: int = 1) -> list[Fact]:
    rows = prepared(table(rates, repeats))
    return [*uneven(rows, rows.frame.iloc[:0]).values()]


@pytest.mark.parametrize(
    ("rates", "size", "other", "is_of_one"),
    [
        ((25.65, 121, 243), 8, 32, True),
        ((61, 60, 243), 16, 32, True),
        ((61, 121, 500), 32, 16, True),
        ((61, 121, 90), 32, 16, False),
    ],
)
def test_the_row_that_does_not_fit_is_named(
    rates: Sequence[float], size: int, other: int, is_of_one: bool
) -> None:
    (fact,) = found(rates)
    assert fact.values["world_size"] == size
    assert fact.values["is_of_one"] == is_of_one
    assert fact.values["other_world_size"] == other


def test_rows_that_fit_are_not_named() -> None:
    assert found((61, 121, 230)) == []
    assert found((61, 100, 150)) == []


def test_what_was_measured_again_is_believed() -> None:
    assert found((25.65, 121, 243), repeats=2) == []


@pytest.mark.parametrize(
    ("rates", "kind"), [((61, 60, 243), "doubted"), ((61, 85, 243), "uneven")]
)
def test_it_is_the_next_trial(rates: Sequence[float], kind: str) -> None:
    answer = recommend(table(rates), Job(samples=10**6))
    (said,) = (fact for fact in answer.facts if fact.kind in ("doubted", "uneven"))
    assert (said.kind, said.values["allocation"]) == (kind, "2x8")
    assert answer.next_trial is not None
    assert answer.next_trial.world_size == 16
    assert answer.next_trial.batch.local_batch_size == 32


def test_only_the_curve_of_the_odd_row_is_measured_again() -> None:
    odd = table((61, 85, 243)).assign(parallelism="ddp")
    even = table((81, 161, 320)).assign(parallelism="fsdp")
    rows = pd.concat([odd, even], ignore_index=True)
    answer = recommend(rows, Job(samples=10**6))
    assert {row.settings["parallelism"] for row in answer.rows} == {"fsdp"}
    assert "uneven" in {fact.kind for fact in answer.facts}
    trial = answer.next_trial
    assert trial is None or "neighbours" not in trial.why


@pytest.mark.parametrize(("last", "is_named"), [(210, False), (350, True)])
def test_only_what_surely_is_much_faster_is_named(last: float, is_named: bool) -> None:
    rows = table((100, 190, last)).assign(world_size=[1, 2, 4], num_nodes=1)
    limits = Constraints(limits={"time": 20 * 3600.0})
    answer = recommend(rows, Job(samples=10**7), constraints=limits)
    assert answer.chosen.world_size == 2
    kinds = {fact.kind for fact in answer.facts}
    assert ("doubted" in kinds) != is_named
    assert ("faster" in kinds) == is_named
