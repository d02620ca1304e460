import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import refused

from scalelab.errors import SpecError
from scalelab.inputs.money import parse_money
from scalelab.inputs.numerals import device_time, duration
from scalelab.inputs.quantities import (
    parse_bytes,
    parse_duration,
    parse_gpu_hours,
)
from scalelab.kinds.resources import MONEY, RESOURCES, Units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("4h", 14400),
        ("90min", 5400),
        ("90 m", 5400),
        ("30 s", 30),
        ("1h30min", 5400),
        ("1d 2h", 93600),
        ("0.5h", 1800),
        ("04:00:00", 14400),
        ("1-00:00:01", 86401),
        ("6days", 518400),
        ("1 day 2 hours", 93600),
        ("1,234.5 h", 4_444_200),
        ("25 us", 25e-6),
        ("12.3 ms", 0.0123),
        ("1e3h", 3_600_000),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GB", 16 * 10**9), ("1.5 GiB", 3 * 2**29), ("512mb", 512 * 10**6), ("1b", 1)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("10gpu-h", 10),
        ("500", 500),
        ("1,500", 1500),
        ("30gpu-min", 0.5),
        ("2 GPU-d", 48),
        ("12 core-h", 12),
        ("200 TPU-h", 200),
        ("36 emulated GPU-s", 0.01),
    ],
)
def test_gpu_hours(text: str, hours: float) -> None:
    assert parse_gpu_hours(text) == pytest.approx(hours)


@pytest.mark.parametrize(
    "text",
    [
        *("", "4", "h", "-4h", "0h", "4 parsec", "4h!", "nan h", "00:00:00"),
        *("1,5h", "12,34h", "1e999h", "1,234,h"),
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with refused("not_a_quantity", "'4h'"):
        parse_duration(text)


def test_what_is_no_size_or_gpu_time_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'16' is not a size\. .*'16GB'"):
        parse_bytes("16")
    with pytest.raises(SpecError, match=r"'10h' is not a GPU time\. .*'10gpu-h'"):
        parse_gpu_hours("10h")


amounts = st.floats(min_value=1e-9, max_value=1e12)
hour_words = st.sampled_from(["GPU-h", "core-h", "TPU-h", "emulated GPU-h"])


@given(amounts)
def test_a_duration_that_was_printed_is_read_back(seconds: float) -> None:
    assert parse_duration(duration(seconds)) == pytest.approx(seconds, rel=0.05)


@given(amounts, hour_words)
def test_a_device_time_that_was_printed_is_read_back(hours: float, word: str) -> None:
    said = device_time(hours, word)
    assert parse_gpu_hours(said) == pytest.approx(hours, rel=0.05)


@given(amounts)
def test_money_that_was_printed_is_read_back(usd: float) -> None:
    assert parse_money(MONEY.in_words(usd, Units("h"))) == pytest.approx(usd, rel=0.05)


@given(amounts, hour_words)
def test_what_is_read_of_a_limit_is_printed_the_same(amount: float, word: str) -> None:
    units = Units(word, "eur")
    for resource in RESOURCES.built_in:
        said = resource.in_words(amount, units)
        again = resource.in_words(resource.parse(said), units)
        assert resource.parse(again) == pytest.approx(resource.parse(said), rel=1e-9)
