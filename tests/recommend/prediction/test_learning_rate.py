"""The learning rate of the recommended batch."""

import pandas as pd
import pytest

from scalelab.recommend.prediction.rates import learning_rate


def rows(rule: str | None = "linear", rate: float | None = 0.1) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "global_batch_size": [64, 256],
            "learning_rate": [rate, None if rate is None else 4 * rate],
            "lr_rule": rule,
        }
    )


@pytest.mark.parametrize(
    ("rule", "batch", "expected"),
    [
        ("linear", 64, 0.1),
        ("linear", 128, 0.2),
        ("linear", 1024, 1.6),
        ("sqrt", 1024, 0.8),
        (None, 1024, 0.4),
    ],
)
def test_the_nearest_measured_rate_is_scaled_by_its_rule(
    rule: str | None, batch: int, expected: float
) -> None:
    plan = learning_rate(rows(rule), batch)
    assert plan is not None
    assert plan.rule == (rule or "none")
    assert plan.value == pytest.approx(expected)


def test_a_rate_of_another_rule_is_not_passed_off_as_the_wanted_ones() -> None:
    assert learning_rate(rows("linear"), 64, {"lr_rule": "sqrt"}) is None


def test_a_rule_nobody_here_knows_holds_where_it_was_measured_only() -> None:
    plan = learning_rate(rows("lars"), 256)
    assert plan is not None
    assert (plan.rule, plan.value) == ("lars", 0.4)
    assert learning_rate(rows("lars"), 512) is None


def test_without_a_measured_rate_there_is_none() -> None:
    assert learning_rate(rows(rate=None), 64) is None
    assert learning_rate(rows().drop(columns="lr_rule"), 64) is None
    assert learning_rate(rows().assign(global_batch_size=None), 64) is None


def test_a_rate_is_that_of_its_base_and_its_warm_up() -> None:
    bases = [rows("linear", rate).assign(base_learning_rate=rate) for rate in (0.1, 1)]
    table = pd.concat([each.assign(warmup=w) for each in bases for w in (None, "9 s")])
    settings = {"lr_rule": "linear", "base_learning_rate": 1.0, "warmup": "9 s"}
    plan = learning_rate(table, 128, settings)
    assert plan is not None
    assert plan.value == pytest.approx(2.0)
    assert learning_rate(table, 128, {**settings, "warmup": "8 s"}) is None
