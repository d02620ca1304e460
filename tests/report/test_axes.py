import numpy as np
import pytest

from scalelab.report.style import count_axis, duration_axis, quantity_axis


def test_few_counts_are_linear_from_zero() -> None:
    axis = count_axis([1, 2, 1], "GPUs")
    assert axis["type"] == "linear"
    assert axis["tickvals"] == [1, 2]
    assert axis["range"][0] == 0
    assert axis["range"][1] > 2


def test_one_count_is_an_axis_too() -> None:
    assert count_axis([8], "GPUs")["ticktext"] == ["8"]


def test_many_counts_are_logarithmic_and_keep_the_ends() -> None:
    axis = count_axis(range(1, 65), "GPUs")
    assert axis["type"] == "log"
    ticks = axis["tickvals"]
    assert ticks[0] == 1
    assert ticks[-1] == 64
    assert len(ticks) <= 10
    assert min(np.diff(np.log(ticks))) >= np.log(64) / 9 - 1e-9
    assert axis["range"][0] < 0
    assert axis["range"][1] > np.log10(64)


def test_powers_of_two_all_get_a_tick() -> None:
    counts = [1, 2, 4, 8, 16, 32, 64, 128]
    assert count_axis(counts, "GPUs")["tickvals"] == counts


def test_quantities_that_differ_little_start_at_zero() -> None:
    axis = quantity_axis([2.8, 4.4, np.nan], "GPU-h")
    assert axis["type"] == "linear"
    assert axis["tickvals"] == pytest.approx([0, 1, 2, 3, 4])
    assert [text.strip() for text in axis["ticktext"]] == ["0", "1", "2", "3", "4"]


def test_quantities_that_differ_much_have_round_ticks_in_range() -> None:
    axis = quantity_axis([30, 9000, -1, 0], "samples per second")
    assert axis["type"] == "log"
    assert axis["ticktext"][:3] == ["20", "50", "100"]
    logs = np.log10(axis["tickvals"])
    assert axis["range"][0] <= logs.min()
    assert logs.max() <= axis["range"][1]


def test_durations_have_ticks_people_use() -> None:
    axis = duration_axis([500.0, 9800.0], "time")
    assert axis["ticktext"] == ["10 min", "20 min", "30 min", "1 h", "2 h"]


def test_durations_that_differ_little_keep_one_unit() -> None:
    axis = duration_axis([5000.0, 10400.0], "time")
    assert axis["ticktext"] == ["0", "0.5 h", "1 h", "1.5 h", "2 h", "2.5 h", "3 h"]


def test_wide_ranges_do_not_crowd_the_axis() -> None:
    assert len(quantity_axis([1e-6, 1e9], "x")["tickvals"]) <= 10
    assert len(duration_axis([1e-6, 1e9], "x")["tickvals"]) <= 10
    assert duration_axis([3.0, 9e5], "x")["ticktext"][-1].endswith("days")
