import numpy as np
import pytest

from scalelab.plan.planned import LargestFit


def found(
    true_largest: int, *, at_most: int, granularity: int
) -> tuple[int | None, list[int]]:
    search = LargestFit(at_most=at_most, granularity=granularity)
    tried = []
    while (size := search.ask()) is not None:
        tried.append(size)
        search.tell(size, fits=size <= true_largest)
    return search.largest, tried


def test_the_answer_is_the_largest_multiple_that_fits(rng: np.random.Generator) -> None:
    for _ in range(300):
        granularity = int(rng.integers(1, 40))
        at_most = int(rng.integers(granularity, 20_000))
        true_largest = int(rng.integers(granularity, 30_000))

        answer, tried = found(true_largest, at_most=at_most, granularity=granularity)

        limit = min(true_largest, at_most)
        assert answer == limit // granularity * granularity
        assert len(tried) == len(set(tried)) <= 2 * np.log2(at_most) + 2


@pytest.mark.parametrize("true_largest", range(1, 16))
def test_below_the_granularity_the_answer_is_exact(true_largest: int) -> None:
    answer, _ = found(true_largest, at_most=1024, granularity=16)

    assert answer == true_largest


def test_nothing_fits() -> None:
    answer, tried = found(0, at_most=1024, granularity=8)

    assert answer is None
    assert tried == [8, 4, 2, 1]


def test_a_limit_below_the_granularity_is_tried() -> None:
    assert found(100, at_most=3, granularity=8) == (3, [3])


def test_contradictions_are_settled_by_the_smallest_failure() -> None:
    search = LargestFit(at_most=64, granularity=8)
    for size, fits in ((8, True), (16, True), (32, True), (64, False), (24, False)):
        search.tell(size, fits=fits)

    assert search.largest == 16
    assert search.ask() is None
