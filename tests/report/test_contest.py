import numpy as np
import pandas as pd
import pytest

from scalelab.laws.rivals.held_back import HoldBack, held_back_errors
from scalelab.report.contest import Contest

FEW = ("scalelab", "amdahl", "power")


@pytest.fixture
def observations(rng: np.random.Generator) -> pd.DataFrame:
    rows = [
        {
            "world_size": size,
            "local_batch_size": batch,
            "step_time_s": (0.01 + 0.002 * batch)
            * (1 + 0.02 * (size - 1))
            * np.exp(0.01 * rng.standard_normal()),
        }
        for size in (1, 2, 4, 8)
        for batch in (8, 32)
    ]
    return pd.DataFrame(rows)


@pytest.mark.slow
def test_laws_are_ranked_in_percent(observations: pd.DataFrame) -> None:
    contest = Contest.hold(observations, HoldBack.LARGEST_SCALE, laws=FEW)
    assert set(contest.ranking.index) == set(FEW)
    page = contest._repr_html_()
    best = contest.ranking.iloc[0]
    assert ">mean error</th>" in page
    assert f">{best['mean_error']:.1%}</td>" in page


@pytest.mark.slow
def test_the_worst_points_come_first(observations: pd.DataFrame) -> None:
    contest = Contest.hold(observations, HoldBack.LARGEST_SCALE, laws=FEW)
    worst = contest.worst(4)
    every = held_back_errors(observations, laws=FEW)["error"].abs()
    assert worst["error"].abs().tolist() == sorted(every, reverse=True)[:4]
    names = ["law", "world_size", "local_batch_size"]
    assert list(worst.columns) == [*names, "measured_s", "predicted_s", "error"]


def test_no_contest_says_why_there_is_none(observations: pd.DataFrame) -> None:
    one = observations[observations["world_size"] == 1]
    contest = Contest.hold(one, HoldBack.LARGEST_SCALE, laws=FEW)
    assert contest.why_none.startswith("No curve can spare its largest world_size")
    assert contest._repr_html_() == f"<p>No contest. {contest.why_none}</p>"
    assert contest.ranking.empty
    assert contest.worst().empty
