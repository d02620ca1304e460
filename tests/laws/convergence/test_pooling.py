"""Settings have a convergence curve each where the rows say so, and else are pooled."""

import numpy as np
import pandas as pd
import pytest

from scalelab.laws.convergence.law import ConvergenceLaw

FEED = "options.feed"


def runs(
    rng: np.random.Generator, factor: float, *, seeds: int = 3, missed: bool = False
) -> pd.DataFrame:
    """Runs with two feeds, of which one needs so many times the samples."""
    rows = []
    for feed, times in (("a", 1.0), ("b", factor)):
        for batch in (64, 128, 256, 512):
            for seed in range(seeds):
                samples = 20_000 * (1 + batch / 256) * times
                samples *= np.exp(0.05 * rng.standard_normal())
                is_late = missed and feed == "b" and batch == 512
                rows.append(
                    {
                        "options.feed": feed,
                        "global_batch_size": batch,
                        "seed": seed,
                        "samples_to_target": None if is_late else round(samples),
                        "num_samples": 2 * round(samples),
                        "reached_target": not is_late,
                    }
                )
    return pd.DataFrame(rows).assign(
        kind="convergence", target_metric="acc", metric_mode="max", target_value=0.9
    )


def feeds(law: ConvergenceLaw) -> set[object]:
    return {dict(key).get(FEED) for key in law.curves}


@pytest.mark.parametrize("seed", range(4))
def test_a_setting_that_makes_a_difference_is_split(seed: int) -> None:
    law = ConvergenceLaw.fit(runs(np.random.default_rng(seed), 1.3))
    assert feeds(law) == {"a", "b"}
    assert law.pooled == ()
    asked = pd.DataFrame({"global_batch_size": 128, FEED: ["a", "b"]})
    first, second = law.predict(asked)["samples_to_target"]
    assert second / first == pytest.approx(1.3, rel=0.1)


def test_one_that_makes_none_is_mostly_pooled() -> None:
    laws = [
        ConvergenceLaw.fit(runs(np.random.default_rng(seed), 1.0)) for seed in range(12)
    ]
    pooled = [law for law in laws if law.pooled == (FEED,)]
    assert len(pooled) >= 8
    assert all(feeds(law) == {None} for law in pooled)
    asked = pd.DataFrame({"global_batch_size": [128], FEED: ["c"]})
    assert pooled[0].predict(asked)["samples_to_target"].notna().all()


def test_runs_that_missed_are_a_difference() -> None:
    rng = np.random.default_rng(1)
    assert feeds(ConvergenceLaw.fit(runs(rng, 1.0, missed=True))) == {"a", "b"}


def test_what_no_batch_compares_is_split() -> None:
    rows = runs(np.random.default_rng(0), 1.0)
    large = rows["global_batch_size"] > 128
    apart = rows[large == (rows[FEED] == "b")]
    assert feeds(ConvergenceLaw.fit(apart)) == {"a", "b"}


def test_layouts_share_a_curve_whatever_they_scatter() -> None:
    rows = runs(np.random.default_rng(0), 1.3)
    rows = rows.rename(columns={FEED: "options.tensor_parallel_size"})
    assert len(ConvergenceLaw.fit(rows).curves) == 1
