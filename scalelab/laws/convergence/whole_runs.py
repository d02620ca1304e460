"""The law of whole runs: time to target where nothing but whole runs was measured.

Asynchronous training does not factorise, and published series change devices, batch and
software together: there are a few whole runs, too few for the terms of a step. Their
time is the samples they needed times the time of a sample::

    time = samples to target(global batch) / global batch * step(devices, batch)

The step is the median of five published formulas, none of which is chosen. Where they
disagree, and far from the measured runs, the interval is wide.

References
----------
McCandlish et al. 2018, *An empirical model of large-batch training*, section 2.3.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
from scipy.special import ndtri

from scalelab.errors import FitError
from scalelab.inputs.target import Target
from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.convergence.rows import ended_well, is_equal
from scalelab.laws.interval import SEED, normals
from scalelab.laws.published import MEDIAN_OF, Fitted, each_of
from scalelab.laws.rows import (
    cells,
    configurations,
    numbers,
    split_curves,
    strategies,
)
from scalelab.laws.step_time.physics import Configurations

_NOISE, _PER_DOUBLING = 0.05, 0.06  # of the log step of one run; per doubling beyond


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRunLaw:
    """Whole runs of one job to one target along a series of scales."""

    passes: tuple[Fitted, ...]
    pass_unit_s: float
    largest: float
    convergence: ConvergenceLaw

    @classmethod
    def fit(cls, runs: pd.DataFrame) -> Self:
        """Fit a series of runs, each trained to the target.

        A row without a time says how many samples its batch needs, and nothing else.
        """
        known = _measured(runs)
        if known.empty:
            raise FitError(
                f"None of the {len(runs)} runs has both time_to_target_s and "
                "samples_to_target, and its world_size and global_batch_size. Run at "
                "least one end-to-end trial to its target."
            )

        trained = known[["global_batch_size", "samples_to_target"]]
        alone = runs.loc[~(numbers(runs, "time_to_target_s") > 0), trained.columns]
        convergence = ConvergenceLaw.fit(pd.concat([trained, alone]))
        batch, samples = numbers(known, "global_batch_size"), known["samples_to_target"]
        step_s = (known["time_to_target_s"] * batch / samples).to_numpy(float)
        # in samples: of all the ways to explain two or three runs, the formulas then
        # take the one in proportion to the batch
        at = Configurations.of(known)
        pass_s = step_s / at.accumulation
        pass_unit_s = float(np.median(pass_s))

        return cls(
            passes=tuple(learn(pass_s / pass_unit_s, at) for learn in MEDIAN_OF),
            pass_unit_s=pass_unit_s,
            largest=float(at.world_size.max()),
            convergence=convergence,
        )

    def draws(self, batch: np.ndarray) -> np.ndarray:
        """Draw the samples that one further run needs, (n_draws, n_batches)."""
        (key,) = self.convergence.curves
        return self.convergence.draws(key, batch)

    def step_times(self, asked: pd.DataFrame) -> np.ndarray:
        """Draw the step time of one further run, seconds, (n_draws, n)."""
        at = Configurations.of(configurations(asked))
        log_times = np.log(
            each_of(self.passes, at) * at.accumulation * self.pass_unit_s
        )
        beyond = np.maximum(np.log2(at.world_size / self.largest), 0.0)
        low, high = np.quantile(log_times, [0.25, 0.75], axis=0)
        scatter = (high - low) / (2 * ndtri(0.75))  # of the middle formulas
        noise = np.sqrt(_NOISE**2 + (_PER_DOUBLING * beyond) ** 2 + scatter**2)
        return np.asarray(
            np.exp(np.median(log_times, axis=0) + noise * normals(SEED + 10))
        )

    def support(self, batch: np.ndarray) -> np.ndarray:
        """Return the support of the samples of each batch, as text."""
        (curve,) = self.convergence.curves.values()
        return curve.support(batch)


def measured_whole_runs(
    observations: pd.DataFrame, target: Target
) -> WholeRunLaw | None:
    """Return the law of whole runs where nothing else tells times; else None.

    Training does not factorise, or a table tells times to the target alone.
    """
    wanted = {
        "target_metric": target.metric,
        "metric_mode": str(target.mode),
        "target_value": target.value,
    }
    chosen = ended_well(observations)
    for name, value in wanted.items():
        chosen &= is_equal(observations, name, value)

    is_timed = numbers(observations, "time_to_target_s") > 0
    is_published = is_equal(observations, "kind", "imported")
    if (chosen & is_published).any():
        tells_steps = numbers(observations, "step_time_s") > 0
        if (is_published & tells_steps & ~is_timed).any():
            return None
    else:
        chosen &= is_equal(observations, "kind", "end_to_end")
        if any(way.factorises for way in strategies(observations[chosen])):
            return None

    runs, timed = observations[chosen], observations[chosen & is_timed]
    # several curves would each be a law of its own
    is_one = len(split_curves(timed)) == 1 and len({*cells(runs, "lr_rule")}) == 1
    return WholeRunLaw.fit(runs) if is_one and len(_measured(runs)) else None


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    measured = ("samples_to_target", "time_to_target_s")
    table = configurations(runs).assign(**{n: numbers(runs, n) for n in measured})
    table = table[((table > 0) & (table < np.inf)).all(axis=1)].drop_duplicates()
    return table.sort_values([*table.columns], ignore_index=True)
