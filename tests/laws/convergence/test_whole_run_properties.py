"""What the product of both laws must obey, whatever was measured."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalelab.laws.convergence.time_to_target import (
    Factorisation,
    TimeToTargetLaw,
    measured_factorisation,
)
from scalelab.laws.rivals.laws import law_named

LAW = law_named("amdahl")
PLACES = [(n, b * n) for n in (1, 2, 4, 8, 16) for b in (16, 64)]
ENDS = [(2, 64), (4, 128), (8, 256), (16, 512)]
TIMES = ["time_to_target_s", "time_to_target_lo_s", "time_to_target_hi_s"]


def step_time(n: int, b: float) -> float:
    return (0.01 + 0.002 * b) * (1 + 0.02 * (n - 1))


def need(batch: int) -> float:
    return 100_000 * (1 + batch / 512)


def sweep(
    seed: int,
    *,
    factor: float = 1.0,
    ends: list[tuple[int, int]] = ENDS,
    repeats: int = 3,
) -> pd.DataFrame:
    """Throughput, convergence and end-to-end trials of one declared job."""
    rng = np.random.default_rng(seed)

    def luck(spread: float) -> np.float64:
        return np.exp(spread * rng.standard_normal())

    rows = [
        {"kind": "throughput", "world_size": n, "global_batch_size": total}
        | {"step_time_s": step_time(n, total / n) * luck(0.01)}
        for n, total in PLACES
        for _ in range(2)
    ]
    rows += [
        {"kind": "convergence", "world_size": 1, "global_batch_size": total}
        | {"samples_to_target": need(total) * luck(0.03)}
        for total in (64, 128, 256, 512, 1024)
        for _ in range(3)
    ]
    for n, total in ends:
        for _ in range(repeats):
            samples = need(total) * luck(0.03)
            time = factor * samples / total * step_time(n, total / n)
            rows.append(
                {"kind": "end_to_end", "world_size": n, "global_batch_size": total}
                | {"samples_to_target": samples, "time_to_target_s": time}
            )
    table = pd.DataFrame(rows).assign(num_nodes=1)
    return table.assign(trial_id=[f"t{n}" for n in range(len(table))])


def asked(*pairs: tuple[int, int]) -> pd.DataFrame:
    return pd.DataFrame(pairs, columns=["world_size", "global_batch_size"])


AT = asked((4, 128), (16, 512), (32, 1024))


def only_of_end_to_end(rows: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Change one end-to-end trial."""
    changed = rows.copy()
    first = changed.index[changed["kind"] == "end_to_end"][0]
    for name, value in columns.items():
        if name not in changed.columns:
            changed[name] = None
        changed.at[first, name] = value
    return changed


def test_more_devices_at_a_batch_take_less_time_and_no_fewer_device_hours() -> None:
    law = TimeToTargetLaw.fit(sweep(0), LAW)
    sizes = [1, 2, 4, 8, 16, 32]
    answer = law.predict(asked(*((n, 1024) for n in sizes)))
    time = answer["time_to_target_s"].to_numpy()
    assert (np.diff(time) < 0).all()
    assert (np.diff(time * sizes) > -0.02 * time[0]).all()
    lo, hi = answer["time_to_target_lo_s"], answer["time_to_target_hi_s"]
    assert ((lo > 0) & (lo < time) & (time < hi)).all()
    assert answer["probability_of_reaching"].between(0, 1).all()


@pytest.mark.slow
def test_the_declared_error_of_the_product_lies_inside_its_interval() -> None:
    inside = []
    for seed in range(15):
        found = TimeToTargetLaw.fit(sweep(seed, factor=1.2), LAW).factorisation
        off = np.log(1.2) - found.log_bias
        inside.append(abs(off) < 1.64 * found.log_bias_deviation)
    assert np.mean(inside) > 0.75


@pytest.mark.parametrize("factor", [1e-3, 3600.0])
def test_a_change_of_the_unit_of_time_changes_nothing_else(factor: float) -> None:
    rows = sweep(1)
    scaled = rows.assign(
        step_time_s=rows["step_time_s"] * factor,
        time_to_target_s=rows["time_to_target_s"] * factor,
    )
    plain, other = (TimeToTargetLaw.fit(r, LAW).predict(AT) for r in (rows, scaled))
    for name in TIMES:
        expected = factor * plain[name].to_numpy()
        assert other[name].to_numpy() == pytest.approx(expected)
    assert other["support"].equals(plain["support"])


@pytest.mark.slow
def test_neither_the_order_of_rows_nor_a_second_copy_matters() -> None:
    rows = sweep(2, factor=1.1)
    first = TimeToTargetLaw.fit(rows, LAW)
    turned = rows.sample(frac=1, random_state=5).reset_index(drop=True)
    twice = pd.concat([rows, rows], ignore_index=True)
    for other in (TimeToTargetLaw.fit(given, LAW) for given in (turned, twice)):
        assert len(other.factorisation.trials) == len(ENDS) * 3
        pd.testing.assert_frame_equal(other.predict(AT), first.predict(AT))


def test_an_answer_hardly_depends_on_what_else_is_asked() -> None:
    """Draws are few: a configuration's place among them shows by a percent."""
    law = TimeToTargetLaw.fit(sweep(2), LAW)
    together = law.predict(AT)[TIMES].to_numpy()
    for place in range(len(AT)):
        alone = law.predict(AT.iloc[[place]])[TIMES].to_numpy()[0]
        assert alone == pytest.approx(together[place], rel=0.03)


@pytest.mark.parametrize("factor", [0.1, 2.0, 10.0])
def test_one_odd_end_to_end_trial_is_outvoted(factor: float) -> None:
    rows = sweep(3)
    plain = TimeToTargetLaw.fit(rows, LAW).predict(AT)
    time = rows["time_to_target_s"].dropna().iloc[0]
    odd = only_of_end_to_end(rows, time_to_target_s=time * factor)
    moved = TimeToTargetLaw.fit(odd, LAW).predict(AT)
    shift = np.log(moved["time_to_target_s"] / plain["time_to_target_s"])
    assert shift.abs().max() < 0.03
    widths = [
        np.log(answer["time_to_target_hi_s"] / answer["time_to_target_lo_s"])
        for answer in (plain, moved)
    ]
    assert (widths[1] < 1.6 * widths[0]).all()


def test_a_disagreement_of_most_trials_is_no_oddity() -> None:
    errors = pd.DataFrame({"log_error": [0.0, 0.0, 0.9, 1.0, 1.1, 1.0]})
    found = Factorisation.of(errors, np.full(6, 0.01**2))
    assert found.log_spread > 0.2


@pytest.mark.parametrize(
    "columns",
    [
        {"validity": ["shared_node"]},
        {"outcome": "failed"},
        {"time_to_target_s": np.inf},
        {"time_to_target_s": -1.0},
        {"world_size": 0},
    ],
)
def test_a_trial_that_is_unfit_judges_nothing(columns: dict[str, Any]) -> None:
    rows = only_of_end_to_end(sweep(4), **columns)
    assert len(TimeToTargetLaw.fit(rows, LAW).factorisation.trials) == 11


def test_where_no_trial_is_fit_to_judge_nothing_was_measured() -> None:
    rows = sweep(4)
    is_whole = rows["kind"] == "end_to_end"
    marked = rows.assign(validity=np.where(is_whole, "shared_node", ""))
    assert measured_factorisation(rows, LAW) is not None
    assert measured_factorisation(marked, LAW) is None


def test_the_worst_trial_is_told_in_percent_of_the_product() -> None:
    fast = pd.DataFrame({"log_error": [np.log(0.2), 0.0]})
    told = Factorisation.of(fast, np.zeros(2)).describe()
    assert "80% off at most" in told


@pytest.mark.parametrize("column", ["num_nodes", "trial_id"])
def test_a_missing_column_says_as_much_as_an_empty_one(column: str) -> None:
    rows = sweep(5)
    without = TimeToTargetLaw.fit(rows.drop(columns=column), LAW)
    empty = TimeToTargetLaw.fit(rows.assign(**{column: np.nan}), LAW)
    pd.testing.assert_frame_equal(without.predict(AT), empty.predict(AT))
