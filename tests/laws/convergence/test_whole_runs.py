"""Whole runs of one job along a series of scales, whose truth is declared."""

import numpy as np
import pandas as pd
import pytest

from scalelab.errors import FitError
from scalelab.laws.convergence.whole_runs import WholeRunLaw

ANSWER = ["time_to_target_s", "time_to_target_lo_s", "time_to_target_hi_s"]


def need(batch: int) -> float:
    return 100_000 * (1 + batch / 2048)


def step_s(devices: int, batch: int) -> float:
    return 0.02 + 0.001 * batch / devices + 0.01 * (devices - 1) / devices


def series(
    seed: int = 0, sizes: tuple[int, ...] = (8, 16, 32, 64), repeats: int = 2
) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for size in sizes:
        batch = 16 * size
        for _ in range(repeats):
            samples = need(batch) * np.exp(0.03 * rng.standard_normal())
            luck = np.exp(0.02 * rng.standard_normal())
            time = samples / batch * step_s(size, batch) * luck
            rows.append((size, -(-size // 8), batch, samples, time))
    names = ["world_size", "num_nodes", "global_batch_size"]
    names += ["samples_to_target", "time_to_target_s"]
    return pd.DataFrame(rows, columns=names)


def asked(*sizes: int) -> pd.DataFrame:
    nodes = [-(-size // 8) for size in sizes]
    batches = [16 * size for size in sizes]
    names = ["world_size", "num_nodes", "global_batch_size"]
    return pd.DataFrame(dict(zip(names, (sizes, nodes, batches), strict=True)))


def predicted(law: WholeRunLaw, configurations: pd.DataFrame) -> pd.DataFrame:
    """Return the median and the 80% interval of the time of a further run."""
    batch = configurations["global_batch_size"].to_numpy(float)
    times = law.step_times(configurations) * law.draws(batch) / batch
    rows = zip(*np.quantile(times, [0.5, 0.1, 0.9], axis=0), strict=True)
    return pd.DataFrame(rows, columns=ANSWER)


def true_s(size: int) -> float:
    return need(16 * size) / (16 * size) * step_s(size, 16 * size)


@pytest.mark.slow
def test_the_next_scale_is_predicted_and_covered() -> None:
    inside = []
    for seed in range(8):
        answer = predicted(WholeRunLaw.fit(series(seed)), asked(32, 128))
        truth = [true_s(32), true_s(128)]
        assert answer["time_to_target_s"].to_numpy() == pytest.approx(truth, rel=0.15)
        lo, hi = answer["time_to_target_lo_s"], answer["time_to_target_hi_s"]
        inside += list((lo < truth) & (truth < hi))
    assert np.mean(inside) > 0.75


def test_the_interval_widens_beyond_the_largest_run() -> None:
    answer = predicted(WholeRunLaw.fit(series()), asked(64, 128, 512))
    lo, hi = answer["time_to_target_lo_s"], answer["time_to_target_hi_s"]
    assert (np.diff(np.log(hi / lo)) > 0).all()


def test_rows_without_a_time_tell_the_samples_of_their_batch() -> None:
    batches = np.repeat([64, 256, 1024, 4096], 3)
    others = pd.DataFrame(
        {
            "global_batch_size": batches,
            "samples_to_target": [need(batch) for batch in batches],
        }
    )
    few = series(sizes=(8, 16))
    alone, both = (
        np.median(WholeRunLaw.fit(runs).draws(np.array([4096.0])))
        for runs in (few, pd.concat([few, others]))
    )
    assert both == pytest.approx(need(4096), rel=0.03)
    assert abs(np.log(both / need(4096))) < abs(np.log(alone / need(4096)))


@pytest.mark.parametrize("factor", [1e-3, 3600.0])
def test_a_change_of_the_unit_of_time_changes_nothing_else(factor: float) -> None:
    runs = series()
    scaled = runs.assign(time_to_target_s=factor * runs["time_to_target_s"])
    plain, other = (predicted(WholeRunLaw.fit(r), asked(128)) for r in (runs, scaled))
    for name in ANSWER:
        assert other[name].item() == pytest.approx(factor * plain[name].item())


def test_a_run_given_twice_counts_once_and_order_does_not_matter() -> None:
    runs = series()
    plain = predicted(WholeRunLaw.fit(runs), asked(128))
    twice = pd.concat([runs, runs]).sample(frac=1, random_state=1)
    other = predicted(WholeRunLaw.fit(twice.reset_index(drop=True)), asked(128))
    for name in ANSWER:
        assert other[name].item() == pytest.approx(plain[name].item(), rel=1e-6)


def test_runs_that_did_not_arrive_are_no_series() -> None:
    runs = series().assign(time_to_target_s=np.nan)
    with pytest.raises(FitError, match="None of the 8 runs has both time_to_target_s"):
        WholeRunLaw.fit(runs)
