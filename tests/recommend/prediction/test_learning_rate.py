"""The learning rate of the recommended batch."""

import pandas as pd
import pytest

from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.recommend.prediction.rates import learning_rate, rates_found


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


def searched(costs: dict[int, dict[float, list[int | None]]]) -> pd.DataFrame:
    """Return the runs of a search: samples to the target by batch and rate."""
    runs = [
        {
            "kind": "convergence",
            "outcome": "completed" if samples else "target_not_reached",
            "global_batch_size": batch,
            "lr_rule": "tuned",
            "base_learning_rate": rate,
            "learning_rate": rate,
            "samples_to_target": samples,
            "reached_target": samples is not None,
            "num_samples": samples or 50_000,
            "seed": seed,
            "target_metric": "val_acc",
            "metric_mode": "max",
            "target_value": 0.95,
            "final_metric": 0.95 if samples else 0.9,
        }
        for batch, rates in costs.items()
        for rate, every in rates.items()
        for seed, samples in enumerate(every)
    ]
    timed = {"kind": "throughput", "lr_rule": "tuned", "learning_rate": 0.1}
    return pd.DataFrame([*runs, {**timed, "global_batch_size": 256}])


COSTS: dict[int, dict[float, list[int | None]]] = {
    32: {0.05: [9000], 0.1: [5000, 5200, 5100], 0.2: [8000]},
    128: {
        0.1: [9000],
        0.2: [6000, 6300, 6200],
        0.28: [6400, 6100, 6300],
        0.4: [12000, None],
    },
}


def test_of_a_search_only_the_best_rate_of_a_batch_counts() -> None:
    frame = searched(COSTS)
    (curve,) = ConvergenceLaw.fit(frame).curves.values()
    assert sorted(curve.runs["samples"]) == [5000, 5100, 5200, 6000, 6200, 6300]
    plan = learning_rate(frame, 128, {"lr_rule": "tuned"})
    assert plan is not None
    assert (plan.rule, plan.value) == ("tuned", 0.2)
    assert learning_rate(frame, 256, {"lr_rule": "tuned"}) is None


def test_what_rules_would_have_said_stands_beside_what_was_found() -> None:
    (fact,) = rates_found(searched(COSTS), 128)
    assert fact.values["found"] == [
        dict(global_batch_size=32, rate=0.1, lo=0.1, hi=0.1, num_rates=3),
        dict(global_batch_size=128, rate=0.2, lo=0.2, hi=0.28, num_rates=4),
    ]
    assert fact.values["at_batch"] == 128
    assert fact.values["rules"] == [
        {"rule": "linear", "rate": 0.4, "verdict": "fails"},
        {"rule": "sqrt", "rate": pytest.approx(0.2), "verdict": "holds"},
    ]


def test_a_rate_that_nobody_tried_is_said_to_be_open() -> None:
    costs = {**COSTS, 512: {0.3: [9000], 0.6: [7000], 1.2: [None]}}
    (fact,) = rates_found(searched(costs), 512)
    assert [each["verdict"] for each in fact.values["rules"]] == ["open", "open"]
    (fact,) = rates_found(searched(costs), 32)  # the first: rules are at the largest
    assert fact.values["at_batch"] == 512


def test_one_batch_tells_nothing_of_rules() -> None:
    (fact,) = rates_found(searched({32: COSTS[32]}), 32)
    assert fact.values["rules"] == []
    assert [*rates_found(rows(), 64)] == []
