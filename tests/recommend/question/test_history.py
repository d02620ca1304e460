from typing import Any

import pandas as pd
import pytest
from made_up_sweeps import sweep
from sentences import refused

from scalelab.errors import FitError
from scalelab.laws.published import law_named
from scalelab.laws.rows import prepared
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.knowledge import History, fit_step_times

ONE_NODE = sweep((1, 2, 4))
ROWS = prepared(ONE_NODE)
FAR = {"world_size": 16, "num_nodes": 4, "local_batch_size": 16}


def history(**runs: pd.DataFrame) -> History:
    found = History.of(list(runs.items()))
    assert found is not None
    return found


def support(law: StepTimeLaw, frame: pd.DataFrame) -> str:
    asked = frame.head(1).assign(**FAR)
    return law.predict(asked)["support"].item()


def test_no_runs_are_no_history() -> None:
    assert History.of([]) is None


@pytest.mark.slow
def test_the_note_counts_the_curves_and_names_the_runs() -> None:
    other, third = (sweep(workload=name) for name in ("other", "third"))
    law, note = fit_step_times(StepTimeLaw, ROWS, history=history(a=other, b=third))
    assert note == Fact("learned_from", {"num_curves": 2, "runs": ["a", "b"]})
    assert support(law, ONE_NODE) == "extrapolated"
    alone, note = fit_step_times(StepTimeLaw, ROWS)
    assert note is None
    assert support(alone, ONE_NODE) == "not measured here"


@pytest.mark.parametrize(
    "columns",
    [
        {"device_name": "H100"},
        {"node_group": "slow"},
        {"parallelism": "fsdp"},
        {"emulated": True},
        {"step_time_s": None},
        {"outcome": "failed"},
    ],
)
def test_a_history_of_nothing_related_is_refused(columns: dict[str, Any]) -> None:
    other = sweep(workload="other").assign(**columns)
    with refused("nothing_to_learn", "from a:"):
        fit_step_times(StepTimeLaw, ROWS, history=history(a=other))


@pytest.mark.slow
def test_devices_without_a_name_are_those_of_their_run_alone() -> None:
    unnamed, other = (
        frame.drop(columns="device_name")
        for frame in (ONE_NODE, sweep(workload="other"))
    )
    assert not history(a=other).informs(prepared(unnamed))
    law, _ = fit_step_times(StepTimeLaw, prepared(unnamed), prepared(other))
    assert support(law, unnamed) == "extrapolated"
    same_work = unnamed.assign(device_name="H100")
    assert history(a=same_work).informs(prepared(unnamed))


def test_rows_of_the_asked_curve_that_were_not_chosen_teach_nothing() -> None:
    law, _ = fit_step_times(StepTimeLaw, ROWS, prepared(sweep(seed=1)))
    assert support(law, ONE_NODE) == "not measured here"


def test_without_a_step_time_there_is_nothing_to_teach() -> None:
    failed = prepared(ONE_NODE.assign(outcome="failed"))
    with pytest.raises(FitError, match="has a usable step time"):
        fit_step_times(StepTimeLaw, failed, history=history(a=sweep()))


def test_a_rival_learns_from_nothing_else() -> None:
    usl = law_named("usl")
    with refused("law_learns_alone", "'usl'"):
        fit_step_times(usl, ROWS, history=history(a=sweep()))
    law, _ = fit_step_times(usl, prepared(sweep()), prepared(sweep()))
    assert isinstance(law, usl)
