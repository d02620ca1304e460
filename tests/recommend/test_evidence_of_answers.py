import pandas as pd
import pytest
from made_up_runs import trial_row

from scalelab.experiment.job import Job
from scalelab.laws.rows import step_time_rows
from scalelab.recommend.advice import recommend
from scalelab.recommend.evidence import evidence_without_answer
from scalelab.records.observations import frame


@pytest.fixture
def whole_runs() -> pd.DataFrame:
    """A run that took 25% longer than step time and needed samples say."""
    steady = trial_row(2, 32)
    rate = steady["throughput_samples_per_s"]
    learned = trial_row(
        1, 64, kind="convergence", samples_to_target=50_000, reached_target=True
    )
    whole = trial_row(
        2, 32, kind="end_to_end", repeat=1, time_to_target_s=50_000 / rate * 1.25
    )
    return frame([steady, learned, whole])


@pytest.mark.slow
def test_whole_runs_are_compared_with_the_product_whatever_was_asked(
    whole_runs: pd.DataFrame,
) -> None:
    rows = step_time_rows(whole_runs)
    (run,) = evidence_without_answer(rows).whole_runs
    assert run.predicted_s == pytest.approx(run.measured_s / 1.25, rel=0.05)
    answer = recommend(rows, Job(samples=1_000_000))
    assert answer.evidence.whole_runs == (run,)
    assert "evidence" not in answer.to_json()


def test_without_whole_runs_nothing_is_compared() -> None:
    rows = step_time_rows(frame([trial_row(1, 8)]))
    found = evidence_without_answer(rows)
    assert (found.whole_runs, found.steadiness, found.ways) == ((), None, ())
