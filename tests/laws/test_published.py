from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalelab.errors import SpecError
from scalelab.inputs.outcome import Support
from scalelab.laws.published import LAWS, law_named
from scalelab.laws.step_time.law import StepTimeLaw

OTHERS = [name for name in LAWS if name != "scalelab"]


def table(time: Callable[..., Any]) -> pd.DataFrame:
    rows = [
        {"world_size": n, "local_batch_size": b, "step_time_s": time(n, b)}
        for n in (1, 2, 4, 8, 16)
        for b in (8, 32)
    ]
    return pd.DataFrame(rows)


ASKED = pd.DataFrame({"world_size": [4, 64], "local_batch_size": 32})


@pytest.mark.parametrize("name", OTHERS)
def test_published_laws_answer_with_the_same_interface(
    name: str, rows: pd.DataFrame
) -> None:
    law = law_named(name).fit(rows)
    answer = law.predict(ASKED.assign(num_nodes=[1, 16]))
    assert list(answer["support"]) == [Support.MEASURED, Support.EXTRAPOLATED]
    assert (answer["step_time_lo_s"] < answer["step_time_s"]).all()
    assert (answer["step_time_s"] < answer["step_time_hi_s"]).all()
    assert np.isfinite(law.draws(ASKED)).all()
    assert law.identifiable["identified"].all()
    assert (law.parameters()["unit"] == "relative").all()
    assert law.terms(ASKED) is None


def test_the_default_comes_first_and_five_published_ones_follow() -> None:
    assert next(iter(LAWS.values())) is StepTimeLaw
    assert OTHERS == ["amdahl", "usl", "power", "pollux", "xgboost"]


def test_an_unknown_law_lists_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"law='gustafson' is unknown\. .*amdahl, usl"):
        law_named("gustafson")


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("amdahl", lambda n, b: (0.01 + 0.002 * b) * (1 + 0.03 * (n - 1))),
        (
            "usl",
            lambda n, b: (0.01 + 0.002 * b) * (1 + 0.03 * (n - 1) + 5e-4 * n * (n - 1)),
        ),
        ("power", lambda n, b: (0.01 + 0.002 * b) * n**0.2),
    ],
)
def test_each_recovers_the_curve_it_describes(
    name: str, time: Callable[..., Any]
) -> None:
    answer = law_named(name).fit(table(time)).predict(ASKED)
    expected = [time(4, 32), time(64, 32)]
    assert answer["step_time_s"].to_numpy() == pytest.approx(expected, rel=0.03)


def test_pollux_knows_the_node_boundary() -> None:
    def time(n: int, b: int) -> float:
        compute = 0.01 + 0.002 * b
        sync = 0.0 if n == 1 else (0.02 if n <= 4 else 0.1) + 0.001 * max(n - 2, 0)
        return (compute**2 + sync**2) ** 0.5

    frame = table(time)
    frame["num_nodes"] = -(-frame["world_size"] // 4)
    law = law_named("pollux").fit(frame)
    asked = ASKED.assign(num_nodes=[1, 16])
    expected = [time(4, 32), time(64, 32)]
    answer = law.predict(asked)["step_time_s"].to_numpy()
    assert answer == pytest.approx(expected, rel=0.1)


def test_boosted_trees_are_constant_beyond_the_data_and_near_it_within(
    rows: pd.DataFrame, truth: Callable[..., Any]
) -> None:
    law = law_named("xgboost").fit(rows)
    answer = law.predict(ASKED.assign(world_size=[64, 1024], num_nodes=[16, 256]))
    near, far = answer["step_time_s"]
    assert far == pytest.approx(near, rel=0.02)
    columns = ["world_size", "num_nodes", "local_batch_size"]
    measured = rows[columns].drop_duplicates()
    expected = [truth(n, b) for n, _, b in measured.itertuples(index=False)]
    within = law.predict(measured)["step_time_s"].to_numpy()
    assert within == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", OTHERS)
def test_an_interval_beyond_the_rows_holds_what_is_left_out(name: str) -> None:
    def time(n: int, b: int) -> float:
        return (0.01 + 0.002 * b) * n**0.4

    law = law_named(name).fit(table(time))
    asked = pd.DataFrame({"world_size": [16, 12, 32, 64], "local_batch_size": 32})
    answer = law.predict(asked)
    truth = [time(n, 32) for n in asked["world_size"]]
    assert (answer["step_time_lo_s"] < truth).all()
    assert (truth < answer["step_time_hi_s"]).all()
    drawn = np.log(law.draws(asked)).std(axis=0)
    assert drawn[3] > drawn[2] > drawn[0]


def test_a_regressor_is_fitted_to_part_of_a_long_table(
    rng: np.random.Generator,
) -> None:
    frame = pd.DataFrame(
        {
            "world_size": rng.integers(1, 64, 400),
            "local_batch_size": rng.integers(1, 64, 400),
            "step_time_s": 0.01,
        }
    )
    answer = law_named("xgboost").fit(frame).predict(ASKED)
    assert answer["step_time_s"].to_numpy() == pytest.approx(0.01, rel=0.01)
