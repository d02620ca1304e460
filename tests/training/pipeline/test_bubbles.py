from itertools import product

import numpy as np
import pytest
from virtual_pipeline import SCHEDULES, VirtualPipeline

from scalelab.errors import SpecError


def even(
    num_stages: int, forward_s: float = 1, backward_s: float = 2
) -> VirtualPipeline:
    return VirtualPipeline(
        forward_s=(forward_s,) * num_stages, backward_s=(backward_s,) * num_stages
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_bubble_of_even_stages_is_that_of_the_formula(schedule: str) -> None:
    for p, m in product(range(1, 9), range(1, 20)):
        if schedule == "1f1b" and m < p:
            continue
        for backward_s in (1, 2):
            share = even(p, backward_s=backward_s).bubble_share(m, schedule)
            assert share == (p - 1) / (m + p - 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_uneven_stages_wait_for_the_slowest(
    schedule: str, rng: np.random.Generator
) -> None:
    for _ in range(50):
        p, m = int(rng.integers(2, 6)), int(rng.integers(6, 12))
        times = [tuple(map(int, rng.integers(1, 9, p))) for _ in range(2)]
        forward_s, backward_s = times
        step_s = VirtualPipeline(
            forward_s=forward_s, backward_s=backward_s
        ).step_time_s(m, schedule)
        slowest_s = max(map(sum, zip(forward_s, backward_s, strict=True)))
        # The slowest stage computes all micro-batches, and one passes through them all.
        assert step_s >= max(m * slowest_s, sum(forward_s) + sum(backward_s))
        # All stages as slow as the slowest pass is in each direction.
        evened = even(p, max(forward_s), max(backward_s)).step_time_s(m, schedule)
        assert step_s <= evened
        if schedule == "gpipe":
            assert step_s == (
                sum(forward_s)
                + (m - 1) * max(forward_s)
                + sum(backward_s)
                + (m - 1) * max(backward_s)
            )


def test_one_slow_stage_leaves_the_others_idle() -> None:
    # Of two stages the second takes three times as long.
    pipeline = VirtualPipeline(forward_s=(1, 3), backward_s=(1, 3))
    assert pipeline.step_time_s(4, "gpipe") == 2 * (1 + 3 + 3 * 3)
    assert pipeline.bubble_share(4, "gpipe") == (2 * 26 - 4 * 8) / (2 * 26)
    assert pipeline.bubble_share(1000, "1f1b") == pytest.approx(1 / 3, abs=1e-3)


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"^schedule=1f1b needs at least 3 micro-batches for 3 stages, not 2\.",
    ):
        even(3).bubble_share(2, "1f1b")
    with pytest.raises(SpecError, match=r"^schedule='zero' is no schedule of"):
        even(3).bubble_share(2, "zero")
    with pytest.raises(SpecError, match=r"^forward_s has 2 times and backward_s 1\."):
        VirtualPipeline(forward_s=(1, 1), backward_s=(1,))
