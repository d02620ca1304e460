import numpy as np
import pandas as pd

from scalelab.report.tables import TextTable


def test_a_frame_becomes_text() -> None:
    frame = pd.DataFrame(
        {
            "world_size": pd.array([1, 2], dtype="Int64"),
            "step_time_s": [0.5, float("nan")],
            "throughput_samples_per_s": [1000.0, 2000.0],
            "is_chosen": [True, False],
            "hosts": [["a", "b"], None],
            "nothing": [None, None],
            "when": [pd.Timestamp("2026-11-20"), pd.NaT],
        }
    )
    table = TextTable.of(frame)
    assert table.columns == (
        "devices",
        "time of a step",
        "samples per s",
        "recommended",
        "hosts",
        "when",
    )
    assert table.rows[0] == (
        "1",
        "500 ms",
        "1,000",
        "yes",
        "a, b",
        "2026-11-20 00:00:00",
    )
    assert table.rows[1] == ("2", "", "2,000", "", "", "")
    assert table.numeric == (True, True, True, False, False, True)


def test_long_tables_are_cut_and_say_so() -> None:
    table = TextTable.of(pd.DataFrame({"x": range(10)}), max_rows=3)
    assert len(table.rows) == 3
    assert table.num_omitted == 7


def test_the_ends_of_an_interval_share_a_column_in_the_unit_of_its_value() -> None:
    frame = pd.DataFrame(
        {
            "world_size": [4, 8],
            "time_s": [7200.0, 90.0],
            "time_lo_s": [7000.0, 80.0],
            "time_hi_s": [7500.0, float("inf")],
            "gpu_hours": [8.0, 0.001],
            "gpu_hours_lo": [7.5, 0.0009],
            "gpu_hours_hi": [8.5, 0.0011],
            "is_chosen": np.array([True, False]),
        }
    )
    table = TextTable.of(frame, "core-h")
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "devices": "4",
        "time": "2 h",
        "time, from and to": "117 min to 2.1 h",
        "device time": "8 core-h",
        "device time, from and to": "7.5 core-h to 8.5 core-h",
        "recommended": "yes",
    }
    assert table.rows[1] == (
        *("8", "90 s", "", "3.6 core-s", "3.2 core-s to 4.0 core-s", ""),
    )


def test_shares_are_percentages_with_their_ends() -> None:
    frame = pd.DataFrame({"scaling_efficiency": [1.27], "lo": [1.2], "hi": [1.3]})
    assert TextTable.of(frame).rows == (("127%", "120% to 130%"),)
