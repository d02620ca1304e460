import numpy as np
import pandas as pd
import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.memory.law import MemoryLaw
from scalelab.laws.rows import checked_configurations, positive, positive_if_given
from scalelab.laws.step_time.law import StepTimeLaw

RUNS = pd.DataFrame(
    {
        "world_size": [1, 2, 4, 8] * 2,
        "local_batch_size": [16] * 4 + [32] * 4,
        "global_batch_size": [16, 32, 64, 128, 32, 64, 128, 256],
        "step_time_s": [0.1, 0.11, 0.11, 0.12, 0.2, 0.21, 0.21, 0.22],
        "samples_to_target": [9e3, 9.4e3, 1e4, 1.1e4, 9.5e3, 9.9e3, 1.1e4, 1.4e4],
        "gpu_memory_peak_bytes": [3e9] * 4 + [5e9] * 4,
    }
)
LAWS = {
    "convergence": ConvergenceLaw.fit(RUNS),
    "memory": MemoryLaw.fit(RUNS),
    "step_time": StepTimeLaw.fit(RUNS),
}
NEEDS = {
    "convergence": ["global_batch_size"],
    "memory": ["local_batch_size"],
    "step_time": ["world_size", "local_batch_size"],
}
GOOD = pd.DataFrame(
    {"world_size": [4.0], "global_batch_size": [64.0], "local_batch_size": [16.0]}
)
EACH = [(law, column) for law, columns in NEEDS.items() for column in columns]


@pytest.mark.parametrize("value", [0, -4, np.nan, np.inf, None, "four"])
@pytest.mark.parametrize(("law", "column"), EACH)
def test_no_law_answers_about_what_no_run_can_be(
    law: str, column: str, value: float | str | None
) -> None:
    asked = GOOD[NEEDS[law]]
    spoilt = asked.astype(object).assign(**{column: [value]})
    with refused("bad_value", "row 2 of 2"):
        LAWS[law].predict(pd.concat([asked, spoilt]))


@pytest.mark.parametrize(("law", "column"), EACH)
def test_a_column_that_a_law_needs_is_named(law: str, column: str) -> None:
    with pytest.raises(SpecError, match=column):
        LAWS[law].predict(GOOD[NEEDS[law]].drop(columns=column).assign(other=1))


@pytest.mark.parametrize("law", LAWS)
def test_no_question_has_no_answer(law: str) -> None:
    answer = LAWS[law].predict(GOOD.iloc[:0])
    assert answer.empty
    assert len(answer.columns) > len(GOOD.columns)


@pytest.mark.parametrize("law", LAWS)
def test_a_question_beyond_all_machines_is_answered_with_a_number(law: str) -> None:
    huge = GOOD.assign(world_size=1e12, global_batch_size=1e15, local_batch_size=1e3)
    answer = LAWS[law].predict(huge[NEEDS[law]])
    numbers = answer.select_dtypes("number").to_numpy()
    assert np.isfinite(numbers).all()
    assert (numbers >= 0).all()


@pytest.mark.parametrize("law", ["convergence", "step_time"])
@pytest.mark.parametrize("interval", [0, 1, -0.5, 80, np.nan])
def test_an_interval_is_a_share(law: str, interval: float) -> None:
    with pytest.raises(SpecError, match=f"interval={interval} must lie between 0"):
        LAWS[law].predict(GOOD[NEEDS[law]], interval=interval)


def test_more_nodes_than_devices_are_refused() -> None:
    asked = pd.DataFrame(
        {"world_size": [8, 4], "num_nodes": [8, 5], "local_batch_size": 1}
    )
    assert checked_configurations(asked.iloc[:1])["num_nodes"].item() == 8
    with refused("bad_value", "num_nodes=5.0", "row 2 of 2", "world_size"):
        checked_configurations(asked)


@pytest.mark.parametrize(
    "column", ["world_size", "num_nodes", "gradient_accumulation_steps"]
)
def test_half_a_device_node_or_pass_is_refused(column: str) -> None:
    asked = GOOD.assign(**{column: 0.5})
    with pytest.raises(SpecError, match=f"{column}=0.5 .* must be 1 or more"):
        checked_configurations(asked)


def test_numbers_are_read_whatever_they_are_written_as() -> None:
    frame = pd.DataFrame({"a": ["3", 4.5, np.int64(2)], "b": [None, 2, np.nan]})
    assert positive(frame, "a").tolist() == [3, 4.5, 2]
    given = positive_if_given(frame, "b")
    assert np.isnan(given[[0, 2]]).all()
    assert given[1] == 2
    assert np.isnan(positive_if_given(frame, "c")).all()


@pytest.mark.parametrize("column", ["budget_samples", "normalization_batch_size"])
@pytest.mark.parametrize("value", [0.0, -5.0, np.inf])
def test_a_gap_is_allowed_where_nonsense_is_not(column: str, value: float) -> None:
    law = LAWS["convergence"]
    asked = GOOD[["global_batch_size"]]
    told = law.predict(asked.assign(**{column: np.nan}))
    pd.testing.assert_series_equal(
        told["samples_to_target"], law.predict(asked)["samples_to_target"]
    )
    with pytest.raises(SpecError, match=f"{column}={value} .* or missing"):
        law.predict(asked.assign(**{column: value}))
