"""What any law of samples to a target must obey, over declared curves."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from stopped_runs import stopped

from scalelab.laws.convergence.law import ConvergenceLaw

SEEDS = range(6)
ANSWER = ["samples_to_target", "samples_lo", "samples_hi"]
BATCHES = np.geomspace(1, 1e7, 29)


def curve(
    seed: int, *, seeds: int = 3, batches: int = 6
) -> tuple[pd.DataFrame, dict[str, float | np.float64]]:
    """Trials of a random job: S_min, B_crit and spread are declared."""
    rng = np.random.default_rng(seed)
    minimum, critical = np.exp(rng.uniform([8, 4], [13, 8]))
    spread = rng.uniform(0.02, 0.1)
    batch = np.repeat(2.0 ** np.arange(4, 4 + batches), seeds)
    need = minimum * (1 + batch / critical)
    need *= np.exp(spread * rng.standard_normal(len(batch)))
    rows = pd.DataFrame({"global_batch_size": batch, "samples_to_target": need})
    truth = {"min_samples": minimum, "critical_batch_size": critical}
    truth |= {"run_to_run_spread": spread}
    return rows, truth


def asked(batches: list[float | np.float64] | np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"global_batch_size": batches})


@pytest.fixture(scope="module")
def fitted() -> list[tuple[ConvergenceLaw, pd.DataFrame, Any]]:
    """Law, rows and truth of each seed."""
    curves = [curve(seed) for seed in SEEDS]
    return [(ConvergenceLaw.fit(rows), rows, truth) for rows, truth in curves]


def test_every_declared_constant_lies_inside_its_interval_at_its_rate(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]],
) -> None:
    inside = []
    for law, _, truth in fitted:
        table = law.parameters(0.8).set_index("name")
        inside += [
            table.loc[name, "lo"] <= value <= table.loc[name, "hi"]
            for name, value in truth.items()
        ]
    assert np.mean(inside) > 0.7


def test_beyond_the_measured_batches_samples_rise_and_chances_fall(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]],
) -> None:
    for law, rows, _ in fitted:
        outside = BATCHES[BATCHES > 2 * rows["global_batch_size"].max()]
        answer = law.predict(asked(outside))
        assert (np.diff(answer["samples_to_target"]) > 0).all()
        chance = law.predict(asked(BATCHES))["probability_of_reaching"]
        assert ((chance >= 0) & (chance <= 1)).all()
        assert (np.diff(chance) <= 1e-12).all()
        log_width = np.log(answer["samples_hi"] / answer["samples_lo"])
        assert (np.diff(log_width) > -1e-3).all()
        assert log_width.iloc[-1] > log_width.iloc[0]


def test_small_batches_need_the_minimum_and_large_ones_grow_in_proportion(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]],
) -> None:
    for law, _, _ in fitted:
        table = law.parameters(0.98).set_index("name")
        floor = law.predict(asked([1e-3]))["samples_to_target"].item()
        lowest = table.loc["min_samples"]
        assert lowest["lo"] <= floor <= lowest["hi"]
        large = np.log(law.predict(asked([1e8, 1e10]))["samples_to_target"])
        assert np.diff(large).item() == pytest.approx(np.log(100), rel=0.01)


def test_a_budget_buys_a_chance_that_rises_from_none_to_that_of_arriving(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]],
) -> None:
    for law, rows, _ in fitted:
        budgets = np.geomspace(1e-3, 1e3, 13) * rows["samples_to_target"].median()
        batch = rows["global_batch_size"].median()
        question = asked([batch] * 13).assign(budget_samples=budgets)
        chance = law.predict(question)["probability_of_reaching"]
        arriving = law.predict(asked([batch]))["probability_of_reaching"].item()
        assert (np.diff(chance) >= 0).all()
        assert chance.iloc[0] == pytest.approx(0, abs=1e-9)
        assert chance.iloc[-1] == pytest.approx(arriving)


def test_a_later_stop_never_makes_the_target_nearer(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]],
) -> None:
    """The longer runs trained without arriving, the less a further one will arrive."""
    _, rows, _ = fitted[0]
    late = stopped(rows, rows["samples_to_target"].quantile(0.7))
    answers = []
    for factor in (1.0, 1.2, 1.5):
        seen = np.where(late["reached_target"], 1.0, factor)
        longer = late.assign(num_samples=late["num_samples"] * seen)
        at = asked([rows["global_batch_size"].max()])
        answer = ConvergenceLaw.fit(longer).predict(at)
        answers.append(answer["probability_of_reaching"].item())
    assert (np.diff(answers) < 0).all()


def test_neither_order_nor_index_nor_company_matters(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]],
) -> None:
    law, rows, _ = fitted[1]
    late = stopped(rows, rows["samples_to_target"].quantile(0.8))
    at = asked([16, 100, 3000])
    first = ConvergenceLaw.fit(late).predict(at)
    shuffled = late.sample(frac=1, random_state=2)
    pd.testing.assert_frame_equal(ConvergenceLaw.fit(shuffled).predict(at), first)
    alone = law.predict(at.iloc[[1]])[ANSWER].to_numpy()[0]
    assert alone == pytest.approx(law.predict(at)[ANSWER].to_numpy()[1])


def test_stopped_runs_given_twice_count_once(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]],
) -> None:
    _, rows, _ = fitted[2]
    late = stopped(rows, rows["samples_to_target"].quantile(0.7))
    late["trial_id"] = [f"t{n}" for n in range(len(late))]
    once = ConvergenceLaw.fit(late).predict(asked([64, 2048]))
    twice = ConvergenceLaw.fit(pd.concat([late, late])).predict(asked([64, 2048]))
    pd.testing.assert_frame_equal(once, twice)


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_one_odd_run_widens_the_answer_more_than_it_moves_it(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]], factor: float
) -> None:
    for law, rows, _ in fitted[:3]:
        at = asked([rows["global_batch_size"].median() * 1.5])
        odd = rows.copy()
        odd.loc[7, "samples_to_target"] *= factor
        plain, moved = law.predict(at), ConvergenceLaw.fit(odd).predict(at)
        lo, hi = moved["samples_lo"].item(), moved["samples_hi"].item()
        assert lo < plain["samples_to_target"].item() < hi
        share = np.log(moved["samples_to_target"] / plain["samples_to_target"]).item()
        assert abs(share) < 0.2


@pytest.mark.parametrize(
    "column",
    [
        "normalization_batch_size",
        "gradient_noise_scale",
        "outcome",
        "lr_rule",
        "validity",
    ],
)
def test_a_missing_column_says_as_much_as_an_empty_one(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]], column: str
) -> None:
    law, rows, _ = fitted[0]
    empty = ConvergenceLaw.fit(rows.assign(**{column: np.nan}))
    at = asked([64, 2048])
    pd.testing.assert_frame_equal(empty.predict(at), law.predict(at))


@pytest.mark.parametrize("column", ["normalization_batch_size", "gradient_noise_scale"])
@pytest.mark.parametrize("value", [0.0, -3.0, np.inf])
def test_what_no_run_can_have_measured_is_not_believed(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]], column: str, value: float
) -> None:
    law, rows, _ = fitted[0]
    at = asked([64, 2048])
    told = ConvergenceLaw.fit(rows.assign(**{column: value}))
    pd.testing.assert_frame_equal(told.predict(at), law.predict(at))


def test_a_row_with_an_endless_batch_is_left_out_and_counted(
    fitted: list[tuple[ConvergenceLaw, pd.DataFrame, Any]],
) -> None:
    _, rows, _ = fitted[0]
    rows = rows.copy()
    rows.loc[0, "global_batch_size"] = np.inf
    assert ConvergenceLaw.fit(rows).left_out == ((("no sample count",), 1),)
