"""What the product of both laws must obey, whatever was measured."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalelab.laws.convergence.time_to_target import (
    Factorisation,
    measured_factorisation,
)
from scalelab.laws.published import law_named

LAW = law_named("amdahl")
PLACES = [(n, b * n) for n in (1, 2, 4, 8, 16) for b in (16, 64)]
ENDS = [(2, 64), (4, 128), (8, 256), (16, 512)]


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


def measured(rows: pd.DataFrame) -> Factorisation:
    found = measured_factorisation(rows, LAW)
    assert found is not None
    return found


def only_of_end_to_end(rows: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Change one end-to-end trial."""
    changed = rows.copy()
    first = changed.index[changed["kind"] == "end_to_end"][0]
    for name, value in columns.items():
        if name not in changed.columns:
            changed[name] = None
        changed.at[first, name] = value
    return changed


@pytest.mark.repetition
@pytest.mark.slow
def test_the_declared_error_of_the_product_lies_inside_its_interval() -> None:
    inside = []
    for seed in range(15):
        found = measured(sweep(seed, factor=1.2))
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
    plain, other = measured(rows), measured(scaled)
    assert other.draws() == pytest.approx(plain.draws(), abs=1e-6)
    expected = factor * plain.trials["predicted_s"].to_numpy()
    assert other.trials["predicted_s"].to_numpy() == pytest.approx(expected)


@pytest.mark.slow
def test_neither_the_order_of_rows_nor_a_second_copy_matters() -> None:
    rows = sweep(2, factor=1.1)
    first = measured(rows)
    turned = rows.sample(frac=1, random_state=5).reset_index(drop=True)
    twice = pd.concat([rows, rows], ignore_index=True)
    for other in (measured(given) for given in (turned, twice)):
        assert len(other.trials) == len(ENDS) * 3
        assert other.draws() == pytest.approx(first.draws())
        pd.testing.assert_frame_equal(other.trials, first.trials)


@pytest.mark.parametrize("factor", [0.1, 2.0, 10.0])
def test_one_odd_end_to_end_trial_is_outvoted(factor: float) -> None:
    rows = sweep(3)
    plain = measured(rows)
    time = rows["time_to_target_s"].dropna().iloc[0]
    moved = measured(only_of_end_to_end(rows, time_to_target_s=time * factor))
    assert abs(moved.log_bias - plain.log_bias) < 0.03
    assert moved.log_spread < 2 * plain.log_spread


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
    assert len(measured(rows).trials) == 11


def test_where_no_trial_is_fit_to_judge_nothing_was_measured() -> None:
    rows = sweep(4)
    is_whole = rows["kind"] == "end_to_end"
    marked = rows.assign(validity=np.where(is_whole, "shared_node", ""))
    assert measured_factorisation(rows, LAW) is not None
    assert measured_factorisation(marked, LAW) is None


def test_the_worst_trial_is_told_in_percent_of_the_product() -> None:
    fast = pd.DataFrame({"log_error": [np.log(0.2), 0.0]})
    figures = Factorisation.of(fast, np.zeros(2)).figures()
    assert figures["worst_error"] == pytest.approx(0.8)


@pytest.mark.parametrize("column", ["num_nodes", "trial_id"])
def test_a_missing_column_says_as_much_as_an_empty_one(column: str) -> None:
    rows = sweep(5)
    without = measured(rows.drop(columns=column))
    empty = measured(rows.assign(**{column: np.nan}))
    assert without.draws() == pytest.approx(empty.draws())
