"""A row carries the sampling error of its own mean."""

import numpy as np
import pandas as pd
import pytest

from scalelab.laws.step_time.law import StepTimeLaw

SIZES = np.array([1, 2, 4, 8])


def rows(off: float | None, sizes: np.ndarray = SIZES) -> pd.DataFrame:
    """Return one row per size, whose 95% interval is off by so much to each side."""
    time = 0.01 * (1 + 0.1 * np.log2(sizes))
    frame = pd.DataFrame({"world_size": sizes, "local_batch_size": 32})
    frame = frame.assign(step_time_s=time)
    if off is None:
        return frame
    ends = {"step_time_lo_s": time / (1 + off), "step_time_hi_s": time * (1 + off)}
    return frame.assign(**ends)


def widths(frame: pd.DataFrame) -> np.ndarray:
    found = StepTimeLaw.fit(frame).predict(frame[["world_size", "local_batch_size"]])
    return np.asarray(np.log(found["step_time_hi_s"] / found["step_time_lo_s"]))


def test_a_row_of_25_percent_is_no_answer_of_5_percent() -> None:
    alone = SIZES[:1]
    (known,), (unknown,) = widths(rows(0.25, alone)), widths(rows(None, alone))
    own = 2 * 1.28 / 1.96 * np.log(1.25)  # 80% of its own normal error
    assert 0.9 * own < known < 1.3 * (own + unknown)
    assert (widths(rows(0.25)) > 1.5 * widths(rows(None))).all()


def test_neighbours_tell_more_of_a_row_than_it_tells_itself() -> None:
    assert widths(rows(0.25))[1] < widths(rows(0.25, SIZES[:1]))[0]


def test_rows_of_1_percent_say_what_rows_without_an_interval_say() -> None:
    assert widths(rows(0.01)) == pytest.approx(widths(rows(None)), rel=0.05)


def test_repeats_that_agree_by_luck_are_not_sure() -> None:
    twice = pd.concat([rows(0.25, SIZES[:1])] * 2, ignore_index=True)
    twice.loc[1, "step_time_s"] *= 1.001
    assert widths(twice)[0] > 0.5 * widths(rows(0.25, SIZES[:1]))[0]


@pytest.mark.parametrize(
    "ends", [(0.0, 0.02), (0.02, 0.01), (None, 0.02), (0.01, np.inf)]
)
def test_an_interval_that_is_none_says_nothing(ends: tuple[float, float]) -> None:
    odd = rows(None).assign(step_time_lo_s=ends[0], step_time_hi_s=ends[1])
    assert widths(odd) == pytest.approx(widths(rows(None)))
