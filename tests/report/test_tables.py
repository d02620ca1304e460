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
        "world size",
        "step time (s)",
        "throughput samples per s",
        "chosen",
        "hosts",
        "when",
    )
    assert table.rows[0] == ("1", "0.50", "1,000", "yes", "a, b", "2026-11-20 00:00:00")
    assert table.rows[1] == ("2", "", "2,000", "", "", "")
    assert table.numeric == (True, True, True, False, False, True)


def test_long_tables_are_cut_and_say_so() -> None:
    table = TextTable.of(pd.DataFrame({"x": range(10)}), max_rows=3)
    assert len(table.rows) == 3
    assert table.num_omitted == 7
