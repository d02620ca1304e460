import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalelab.errors import FitError
from scalelab.inputs.outcome import Support

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from held_back import Contest, HoldBack, held_back_errors, ranking

FEW = ("amdahl", "power", "pollux")


def sweep(
    rng: np.random.Generator, sizes: tuple[Any, ...] = (1, 2, 4, 8, 16), **columns: str
) -> pd.DataFrame:
    rows = [
        {
            "world_size": n,
            "num_nodes": -(-n // 4),
            "local_batch_size": b,
            "step_time_s": (0.01 + 0.002 * b)
            * (1 + 0.02 * (n - 1))
            * np.exp(0.01 * rng.standard_normal()),
        }
        for n in sizes
        for b in (8, 16, 32)
        for _ in range(3)
    ]
    return pd.DataFrame(rows).assign(**columns)


def test_the_law_that_made_the_data_predicts_what_was_held_back(
    rng: np.random.Generator,
) -> None:
    errors = held_back_errors(sweep(rng), laws=FEW)
    assert set(errors["world_size"]) == {16}
    assert len(errors) == 3 * len(FEW)
    table = ranking(errors)
    assert table.index[0] == "amdahl"
    assert table.loc["amdahl", "worst_error"] < 0.05
    assert table.loc["power", "mean_error"] > 0.02


@pytest.mark.slow
def test_a_held_back_point_does_not_help_its_own_prediction(
    rng: np.random.Generator,
) -> None:
    frame = sweep(rng)
    spoilt = frame.assign(
        step_time_s=frame["step_time_s"].where(frame["world_size"] < 16, 99.0)
    )
    plain = held_back_errors(frame, laws=FEW)["predicted_s"]
    assert plain.equals(held_back_errors(spoilt, laws=FEW)["predicted_s"])


def test_every_configuration_is_held_back_once_where_they_are_scattered(
    rng: np.random.Generator,
) -> None:
    frame = sweep(rng)
    errors = held_back_errors(frame, HoldBack.SCATTERED, laws=("amdahl",))
    assert len(errors) == 15
    assert not errors.duplicated(["world_size", "local_batch_size"]).any()
    assert errors["inside"].mean() > 0.5


def test_the_largest_batch_can_be_held_back(rng: np.random.Generator) -> None:
    errors = held_back_errors(sweep(rng), HoldBack.LARGEST_BATCH, laws=("amdahl",))
    assert set(errors["local_batch_size"]) == {32}


@pytest.mark.slow
def test_curves_are_judged_apart_and_the_order_of_rows_does_not_matter(
    rng: np.random.Generator,
) -> None:
    frame = pd.concat(
        [sweep(rng, precision="fp32"), sweep(rng, precision="bf16")], ignore_index=True
    )
    errors = held_back_errors(frame, laws=FEW)
    assert set(errors["curve"]) == {"precision=fp32", "precision=bf16"}
    turned = held_back_errors(frame.iloc[::-1], laws=FEW)
    names = ["law", "curve", "local_batch_size"]
    pd.testing.assert_frame_equal(
        errors.sort_values(names, ignore_index=True),
        turned.sort_values(names, ignore_index=True),
    )


def test_what_is_left_may_say_nothing_of_what_was_held_back(
    rng: np.random.Generator,
) -> None:
    errors = held_back_errors(sweep(rng, sizes=(1, 4)), laws=("scalelab", "power"))
    assert (errors["support"] == Support.NOT_MEASURED).all()
    assert errors["error"].notna().all()


def test_configurations_are_whole_numbers(rng: np.random.Generator) -> None:
    errors = held_back_errors(sweep(rng), laws=("power",))
    places = errors[["world_size", "num_nodes", "local_batch_size"]]
    assert (places.dtypes == "Int64").all()


@pytest.mark.parametrize(
    ("hold_back", "message"),
    [
        (
            HoldBack.LARGEST_SCALE,
            r"^No curve can spare its largest world_size: two configurations must be "
            r"left\. Measured: world_size 1, 2\. Measure others\.$",
        ),
        (HoldBack.LARGEST_BATCH, r"largest local_batch_size: .* local_batch_size 8\."),
        (HoldBack.SCATTERED, r"^No curve can spare a point: it takes three "),
    ],
)
def test_nothing_to_spare_is_said(hold_back: HoldBack, message: str) -> None:
    frame = pd.DataFrame(
        {"world_size": [1, 2], "local_batch_size": 8, "step_time_s": [0.1, 0.2]}
    )
    with pytest.raises(FitError, match=message):
        held_back_errors(frame, hold_back)
    odd = frame.iloc[[0]].assign(validity=[["shared_node"]])
    with pytest.raises(FitError, match=r"\. Rows left out: 1 shared_node\.$"):
        held_back_errors(pd.concat([frame.assign(validity=None), odd]), hold_back)
    with pytest.raises(FitError, match="No row has a usable step time to be held back"):
        held_back_errors(frame.assign(step_time_s=None), hold_back)


def test_a_contest_ranks_laws_in_percent_and_shows_the_worst_points_first(
    rng: np.random.Generator,
) -> None:
    contest = Contest.hold(sweep(rng), HoldBack.LARGEST_SCALE, laws=FEW)
    best = contest.ranking.iloc[0]
    assert f">{best['mean_error']:.1%}</td>" in contest._repr_html_()
    worst = contest.worst(4)
    assert contest.errors is not None
    every = contest.errors["error"].abs()
    assert worst["error"].abs().tolist() == sorted(every, reverse=True)[:4]
    names = ["law", "world_size", "local_batch_size"]
    assert list(worst.columns) == [*names, "measured_s", "predicted_s", "error"]


def test_no_contest_says_why(rng: np.random.Generator) -> None:
    contest = Contest.hold(sweep(rng, sizes=(1,)), HoldBack.LARGEST_SCALE, laws=FEW)
    assert contest.why_none.startswith("No curve can spare its largest world_size")
    assert contest._repr_html_() == f"<p>No contest. {contest.why_none}</p>"
    assert contest.ranking.empty
    assert contest.worst().empty
