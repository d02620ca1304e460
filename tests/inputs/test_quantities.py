import pytest

from scalelab.errors import SpecError
from scalelab.inputs.quantities import (
    parse_bytes,
    parse_duration,
    parse_gpu_hours,
)


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
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GB", 16 * 10**9), ("1.5 GiB", 3 * 2**29), ("512mb", 512 * 10**6), ("1b", 1)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "hours"), [("10gpu-h", 10), ("30gpu-min", 0.5), ("2 GPU-d", 48)]
)
def test_gpu_hours(text: str, hours: float) -> None:
    assert parse_gpu_hours(text) == pytest.approx(hours)


@pytest.mark.parametrize(
    "text", ["", "4", "h", "-4h", "0h", "4 parsec", "4h!", "nan h", "1e3h", "00:00:00"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(
        SpecError,
        match=r"is not a duration\. Write a positive number and a unit, such as '4h'",
    ):
        parse_duration(text)


def test_what_is_no_size_or_gpu_time_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'16' is not a size\. .*'16GB'"):
        parse_bytes("16")
    with pytest.raises(SpecError, match=r"'10h' is not a GPU time\. .*'10gpu-h'"):
        parse_gpu_hours("10h")
