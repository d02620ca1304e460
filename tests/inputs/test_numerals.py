import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.inputs.numerals import (
    Interval,
    change,
    counted,
    duration,
    duration_ends,
    duration_range,
    number,
    percent,
    probability,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2, "2"),
        (1.03, "1.0"),
        (2.94, "2.9"),
        (9.949, "9.9"),
        (9.96, "10.0"),
        (10.34, "10.3"),
        (99.94, "99.9"),
        (99.96, "100"),
        (4096, "4,096"),
        (1234567.8, "1,234,568"),
        (0.0123, "0.012"),
        (-0.5, "-0.50"),
        (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)
def test_numbers_keep_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5e-5, "25 us"),
        (0.0123, "12.3 ms"),
        (0, "0 s"),
        (1.03, "1.0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (10440, "2.9 h"),
        (36000, "10 h"),
        (172799, "48.0 h"),
        (259200, "3 days"),
    ],
)
def test_durations_choose_their_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_ends_of_an_interval_share_the_unit_of_its_value() -> None:
    interval = Interval(value=7300.0, lo=7100.0, hi=7900.0)
    assert duration_range(interval) == "2.0-2.2 h"
    unbounded = Interval(value=7300.0, lo=7100.0, hi=float("inf"))
    assert duration_range(unbounded) == "2.0 h or more"
    assert duration_ends(unbounded) == "2.0 or more"


@pytest.mark.parametrize(
    ("value", "lo", "hi", "text"),
    [
        (29520.0, 29460.0, 29590.0, "8.18-8.22"),
        (29520.0, 29519.0, 29521.0, "8.1997-8.2003"),
        (90.0, 89.9996, 90.0004, "89.9996-90.0004"),
        (400.0 * 86400, 399.9 * 86400, 400.2 * 86400, "399.9-400.2"),
        (29520.0, 29520.0, 29520.0, "8.2-8.2"),
    ],
)
def test_an_interval_is_never_rounded_away(
    value: float, lo: float, hi: float, text: str
) -> None:
    assert duration_ends(Interval(value=value, lo=lo, hi=hi)) == text


@given(
    st.floats(min_value=1e-6, max_value=1e9), st.floats(min_value=1e-9, max_value=2.0)
)
def test_ends_that_differ_look_different(lo: float, width: float) -> None:
    interval = Interval(value=lo * (1 + width / 2), lo=lo, hi=lo * (1 + width))
    first, second = duration_ends(interval).split("-")
    assert float(first.replace(",", "")) < float(second.replace(",", ""))


def test_shares_changes_and_counts() -> None:
    assert percent(0.874) == "87%"
    assert probability(0.995) == "> 99%"
    assert probability(0.001) == "< 1%"
    assert probability(0.5) == "50%"
    assert change(-0.45) == "-45%"
    assert change(0.09) == "+9%"
    assert change(-0.001) == "+0%"
    assert counted(1, "GPU") == "1 GPU"
    assert counted(4096, "CPU slot") == "4,096 CPU slots"
