"""What the law of memory must obey, on models whose memory is declared."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalelab.errors import SpecError
from scalelab.laws.memory.law import MemoryLaw, Peaks

GIB = 2**30
RANKS = [1, 2, 4, 8, 64, 10**6]


def declared(rng: np.random.Generator) -> np.ndarray:
    """Bytes replicated, sharded and per sample."""
    return np.exp(rng.uniform(np.log([0.5, 2, 0.05]), np.log([4, 30, 1.0]))) * GIB


def measured(
    terms: np.ndarray | tuple[Any, ...],
    rng: np.random.Generator,
    *,
    noise: float = 0.0,
    ranks: tuple[Any, ...] = (1, 2, 4, 8),
    batches: tuple[Any, ...] = (4, 8, 16, 32),
) -> pd.DataFrame:
    rows = [
        {"workload": "lm", "parallelism": "fsdp", "world_size": n}
        | {"local_batch_size": b}
        | {"gpu_memory_peak_bytes": peak(terms, n, b) * np.exp(noise * rng.normal())}
        for n in ranks
        for b in batches
    ]
    return pd.DataFrame(rows)


def peak(
    terms: np.ndarray | tuple[Any, ...],
    ranks: int | np.ndarray,
    batch: int | np.ndarray,
) -> float | np.float64 | np.ndarray:
    return terms[0] + terms[1] / ranks + terms[2] * batch


def asked(ranks: list[int] = RANKS, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame(
        {"workload": "lm", "parallelism": "fsdp", "world_size": ranks, **columns}
    )


def largest(
    law: MemoryLaw, capacity: float | None, ranks: list[int] = RANKS
) -> np.ndarray | None:
    answer = law.largest_local_batch(asked(ranks), capacity)
    return answer["largest_local_batch"].to_numpy()


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_grows_with_ranks_and_capacity_and_always_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    terms = declared(rng)
    law = MemoryLaw.fit(measured(terms, rng))
    plans = [largest(law, capacity * GIB) for capacity in (60, 80, 160)]
    assert (np.diff(plans, axis=0) >= 0).all()
    assert (np.diff(plans, axis=1) >= 0).all()
    for plan, capacity in zip(plans, (60, 80, 160), strict=True):
        goes_on = plan > 32
        full = peak(terms, np.array(RANKS), plan)
        assert (full[goes_on] <= 0.95 * capacity * GIB * (1 + 1e-6)).all()
        next_one = peak(terms, np.array(RANKS), plan + 2)
        assert (next_one[goes_on] > 0.95 * capacity * GIB).all()


def test_a_peak_rises_with_the_batch_and_falls_with_ranks_to_what_is_replicated(
    rng: np.random.Generator,
) -> None:
    terms = declared(rng)
    law = MemoryLaw.fit(measured(terms, rng, noise=0.02))
    by_batch = law.predict(asked([2] * 4, local_batch_size=[1, 8, 64, 10**6]))
    by_ranks = law.predict(asked(local_batch_size=8))["peak_bytes"]
    assert (np.diff(by_batch["peak_bytes"]) > 0).all()
    assert (np.diff(by_ranks) < 0).all()
    assert by_ranks.iloc[-1] == pytest.approx(peak(terms, 10**9, 8), rel=0.1)
    assert by_ranks.iloc[0] == pytest.approx(peak(terms, 1, 8), rel=0.03)


@pytest.mark.slow
def test_terms_come_back_inside_two_of_their_deviations() -> None:
    off = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        terms = declared(rng)
        (curve,) = MemoryLaw.fit(measured(terms, rng, noise=0.02)).curves.values()
        deviation = np.sqrt(np.diag(curve.peaks.covariance))
        off.append(np.abs(curve.peaks.terms - terms) < 2 * deviation)
    assert np.mean(off) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    "batches",
    [
        (8, 16),
        pytest.param((8, 16, 32), marks=pytest.mark.repetition),
        pytest.param((4, 8, 16, 32, 64), marks=pytest.mark.repetition),
    ],
)
def test_plans_far_beyond_the_measured_batches_hardly_ever_fail(
    batches: tuple[Any, ...],
) -> None:
    failed = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = measured((14 * GIB, 0, GIB / 4), rng, noise=0.03, batches=batches)
        rows = rows[rows["world_size"] == 1].assign(parallelism="ddp")
        law = MemoryLaw.fit(rows)
        question = asked([1]).assign(parallelism="ddp")
        plan = law.largest_local_batch(question, 80 * GIB)["largest_local_batch"]
        failed.append(peak((14 * GIB, 0, GIB / 4), 1, plan.item()) > 80 * GIB)
    assert np.mean(failed) < 0.1


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 5.0])
def test_one_odd_peak_is_outvoted(rng: np.random.Generator, factor: float) -> None:
    terms = declared(rng)
    rows = measured(terms, rng, noise=0.01)
    plain = largest(MemoryLaw.fit(rows), 80 * GIB)
    for place in (0, 6, 15):
        odd = rows.copy()
        odd.loc[place, "gpu_memory_peak_bytes"] *= factor
        moved = largest(MemoryLaw.fit(odd), 80 * GIB)
        assert moved == pytest.approx(plain, rel=0.05)


@pytest.mark.parametrize("factor", [1e-3, 0.1, 0.5, 2.0, 8.0, 1e3])
@pytest.mark.parametrize("place", range(5))
def test_of_five_peaks_too_one_may_be_odd(factor: float, place: int) -> None:
    batches = np.array([8.0, 16.0, 32.0, 64.0, 128.0])
    odd = 1 + batches / 8
    odd[place] *= factor
    found = Peaks.fit(batches, np.ones(5), odd)
    assert found.terms == pytest.approx([1, 0, 1 / 8], rel=0.01)


def test_peaks_of_one_batch_tell_nothing_of_smaller_ones() -> None:
    shards = np.array([2.0, 4.0, 8.0])
    found = Peaks.fit(np.full(3, 16.0), shards, 10 + 8 / shards + 16 / 160)
    assert found.at(16, 1) == pytest.approx(18.1)
    assert found.at(1, 2) == pytest.approx(14.1)  # it may be 10 + 4 + 1 / 160
    assert found.at(32, 2) > 10 + 4 + 32 / 160
    assert found.largest_batch(1, 18.2) == 16
    assert found.largest_batch(1, 18.0) == 0


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_peaks_a_fit_is_a_number(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for count in range(2, 12):
        peaks = np.exp(rng.uniform(0, 12, count))
        shards = rng.choice([1.0, 8.0], count)
        found = Peaks.fit(rng.uniform(1, 99, count), shards, peaks)
        assert (found.terms >= 0).all()
        assert 0 < found.at(8, 8) <= found.planned(8, 8) < np.inf


def test_what_ran_and_what_failed_bound_every_plan(rng: np.random.Generator) -> None:
    rows = measured(declared(rng), rng)
    for failing in (33, 48):
        over = rows.iloc[[0]].assign(local_batch_size=failing, outcome="out_of_memory")
        law = MemoryLaw.fit(pd.concat([rows.assign(outcome="completed"), over]))
        assert largest(law, 1e4 * GIB, [1]).item() == failing - 1
        assert largest(law, None, [1]).item() == 32
        assert largest(law, 1e4 * GIB, [2]).item() > failing


def test_the_least_answer_counts_where_curves_cannot_be_told_apart(
    rng: np.random.Generator,
) -> None:
    """A configuration that says no precision must fit in any."""
    wide, narrow = (14 * GIB, 0, GIB), (14 * GIB, 0, GIB / 2)
    rows = pd.concat(
        [
            measured(wide, rng, ranks=(1,), batches=(4, 8, 64)).assign(precision="a"),
            measured(narrow, rng, ranks=(1,), batches=(2, 4, 8)).assign(precision="b"),
        ]
    )
    law = MemoryLaw.fit(rows)
    each = [
        law.largest_local_batch(asked([1], precision=name), 100.2 * GIB)
        for name in ("a", "b")
    ]
    plans = [answer["largest_local_batch"].item() for answer in each]
    assert plans == [81, 162]
    assert largest(law, 100.2 * GIB, [1]).item() == 81
    unsaid = asked([1], precision=pd.array([pd.NA], dtype="string"))
    answer = law.largest_local_batch(unsaid, 100.2 * GIB)
    assert answer["largest_local_batch"].item() == 81
    assert answer["largest_fitting"].item() == 8
    most = law.predict(asked([1], local_batch_size=10))["peak_bytes"].item()
    assert most == pytest.approx(peak(wide, 1, 10))


@pytest.mark.parametrize("column", ["outcome", "precision", "num_parameters"])
def test_a_missing_column_says_as_much_as_an_empty_one(
    rng: np.random.Generator, column: str
) -> None:
    rows = measured(declared(rng), rng)
    empty = MemoryLaw.fit(rows.assign(**{column: None}))
    assert largest(empty, 80 * GIB) == pytest.approx(
        largest(MemoryLaw.fit(rows), 80 * GIB)
    )


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, "unknown"])
def test_a_peak_that_no_device_can_have_is_none(
    rng: np.random.Generator, value: float | str
) -> None:
    rows = measured(declared(rng), rng)
    rows["gpu_memory_peak_bytes"] = rows["gpu_memory_peak_bytes"].astype(object)
    with_it = pd.concat(
        [rows, rows.iloc[[0]].assign(gpu_memory_peak_bytes=value, local_batch_size=2)]
    )
    assert largest(MemoryLaw.fit(with_it), 80 * GIB) == pytest.approx(
        largest(MemoryLaw.fit(rows), 80 * GIB)
    )


@pytest.mark.parametrize("capacity", [0, -1.0, np.nan, np.inf])
def test_a_capacity_that_no_device_has_is_refused(
    rng: np.random.Generator, capacity: float
) -> None:
    law = MemoryLaw.fit(measured(declared(rng), rng))
    with pytest.raises(SpecError, match=rf"capacity_bytes={capacity} must be a posi"):
        largest(law, capacity)
