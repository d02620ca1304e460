import pandas as pd
import pytest
from sentences import refused

from scalelab.recommend.knowledge import choose_subject


def test_many_values_are_listed_up_to_six() -> None:
    frame = pd.DataFrame({"workload": [f"w{i}" for i in range(9)]})
    with refused("several_values", "9 values of workload", "3 more"):
        choose_subject(frame, {})


def test_rows_without_a_workload_are_none_of_the_named_one() -> None:
    frame = pd.DataFrame(
        {"workload": ["a", None, "a"], "device_name": ["d", "d", None]}
    )
    with refused("several_values", "a (2 rows), none (1 row)"):
        choose_subject(frame, {})
    chosen = choose_subject(frame, {"workload": "a"})
    assert chosen.frame.index.tolist() == [0, 2]
    assert choose_subject(frame.assign(workload=None), {}).workload == ""


def test_selection_goes_by_text_and_keeps_all_outcomes() -> None:
    frame = pd.DataFrame(
        {"sequence_length": [128, 128, 256], "outcome": ["completed", "failed", "x"]}
    )
    chosen = choose_subject(frame, {"sequence_length": 128})
    assert chosen.frame["outcome"].tolist() == ["completed", "failed"]


def test_a_missing_column_cannot_be_selected() -> None:
    with refused("unknown_column", "'precision'"):
        choose_subject(pd.DataFrame({"workload": ["a"]}), {"precision": "bf16"})


def test_a_value_that_no_row_has_is_refused() -> None:
    with refused("value_not_measured", "workload=third"):
        choose_subject(pd.DataFrame({"workload": ["a"]}), {"workload": "third"})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"device_type": "cpu"}, ("CPU slot", "core-h")),
        ({"device_type": "cuda"}, ("GPU", "GPU-h")),
        ({"device_type": None}, ("GPU", "GPU-h")),
        (
            {"device_type": "cpu", "emulated": True},
            ("emulated GPU", "emulated GPU-h"),
        ),
    ],
)
def test_devices_are_called_what_they_are(
    columns: dict[str, object], words: tuple[str, str]
) -> None:
    chosen = choose_subject(pd.DataFrame({"workload": ["a"], **columns}), {})
    assert (chosen.device_word, chosen.device_hour_word) == words
    assert chosen.is_emulated == ("emulated" in columns)
