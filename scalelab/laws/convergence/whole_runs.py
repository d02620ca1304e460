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

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from scalelab.errors import FitError, SpecError
from scalelab.inputs.target import Target
from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.convergence.rows import ended_well, is_equal
from scalelab.laws.formulas import MEDIAN_OF, Fitted, each_of
from scalelab.laws.interval import SEED, central, check_mass, normals
from scalelab.laws.rows import (
    cells,
    configurations,
    numbers,
    positive,
    split_curves,
    strategies,
)
from scalelab.laws.step_time.physics import Configurations

_NOISE, _PER_DOUBLING = 0.05, 0.06  # of the log step of one run; per doubling beyond
_LEVEL_PRIOR, _LEVEL_SPREAD = 0.04, 0.1  # of one's own samples against a reference


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRunLaw:
    """Whole runs of one job to one target along a series of scales."""

    passes: tuple[Fitted, ...]
    pass_unit_s: float
    largest: float
    convergence: ConvergenceLaw
    log_level: float
    log_level_deviation: float

    @classmethod
    def fit(
        cls, runs: pd.DataFrame, reference: pd.DataFrame | None = None
    ) -> WholeRunLaw:
        """Fit a series."""
        known = _measured(runs)
        if known.empty:
            raise FitError(
                f"None of the {len(runs)} runs has both time_to_target_s and "
                "samples_to_target, and its world_size and global_batch_size. Run at "
                "least one end-to-end trial to its target."
            )
        convergence = ConvergenceLaw.fit(known if reference is None else reference)
        if len(convergence.curves) > 1:
            raise SpecError(
                f"The reference holds {len(convergence.curves)} convergence curves. "
                "Give the rows of one rule and target."
            )
        batch, samples = numbers(known, "global_batch_size"), known["samples_to_target"]
        step_s = (known["time_to_target_s"] * batch / samples).to_numpy(float)
        # in samples: of all the ways to explain two or three runs, the formulas then
        # take the one in proportion to the batch
        at = Configurations.of(known)
        pass_s = step_s / at.accumulation
        pass_unit_s = float(np.median(pass_s))
        level = (0.0, 0.0) if reference is None else _level(convergence, known)
        return cls(
            passes=tuple(learn(pass_s / pass_unit_s, at) for learn in MEDIAN_OF),
            pass_unit_s=pass_unit_s,
            largest=float(at.world_size.max()),
            convergence=convergence,
            log_level=level[0],
            log_level_deviation=level[1],
        )

    def predict(
        self, configurations: pd.DataFrame, interval: float = 0.8
    ) -> pd.DataFrame:
        """Predict the time of one further run of the series."""
        check_mass(interval)
        batch = positive(configurations, "global_batch_size")
        step = np.median(self._each_step_s(configurations), axis=0)
        (curve,) = self.convergence.curves.values()
        need = np.exp(np.median(curve.log_median(batch), axis=0) + self.log_level)
        lo, hi = central(self.sample(configurations), interval)
        return configurations.assign(
            step_time_s=step,
            samples_to_target=need,
            time_to_target_s=need / batch * step,
            time_to_target_lo_s=lo,
            time_to_target_hi_s=hi,
        )

    def sample(self, configurations: pd.DataFrame) -> np.ndarray:
        """Draw the time to target of one further run, seconds, (n_draws, n)."""
        batch = positive(configurations, "global_batch_size")
        at = self._at(configurations)
        each = np.log(self._each_step_s(configurations))
        beyond = np.maximum(np.log2(at.world_size / self.largest), 0.0)
        low, high = np.quantile(each, [0.25, 0.75], axis=0)
        scatter = (high - low) / (2 * ndtri(0.75))  # of the middle formulas
        noise = np.sqrt(_NOISE**2 + (_PER_DOUBLING * beyond) ** 2 + scatter**2)
        steps = np.median(each, axis=0) + noise * normals(SEED + 10)
        return np.asarray(np.exp(steps) * self.samples(batch) / batch)

    def samples(self, batch: np.ndarray) -> np.ndarray:
        """Draw the samples that one further run needs, (n_draws, n_batches)."""
        (key,) = self.convergence.curves
        level = self.log_level + self.log_level_deviation * normals(SEED + 9)
        return np.asarray(self.convergence.sample(key, batch) * np.exp(level))

    def _each_step_s(self, asked: pd.DataFrame) -> np.ndarray:
        # seconds, shape (n_formulas, n_configurations)
        at = self._at(asked)
        return np.asarray(each_of(self.passes, at) * at.accumulation * self.pass_unit_s)

    @staticmethod
    def _at(asked: pd.DataFrame) -> Configurations:
        positive(asked, "world_size")
        return Configurations.of(configurations(asked))


def measured_whole_runs(
    observations: pd.DataFrame, target: Target
) -> WholeRunLaw | None:
    """Return the law of whole runs where training does not factorise; else None."""
    wanted = {
        "kind": "end_to_end",
        "target_metric": target.metric,
        "metric_mode": str(target.mode),
        "target_value": target.value,
    }
    chosen = ended_well(observations)
    for name, value in wanted.items():
        chosen &= is_equal(observations, name, value)
    runs = observations[chosen]
    rules = {str(rule) for rule in cells(runs, "lr_rule")}
    if any(way.factorises for way in strategies(runs)) or len(rules) != 1:
        return None
    # several curves would each be a law of its own
    is_one = len(split_curves(runs)) == 1 and not _measured(runs).empty
    return WholeRunLaw.fit(runs) if is_one else None


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    table = configurations(runs)
    table["samples_to_target"] = numbers(runs, "samples_to_target")
    table["time_to_target_s"] = numbers(runs, "time_to_target_s")
    table = table[((table > 0) & (table < np.inf)).all(axis=1)].drop_duplicates()
    return table.sort_values([*table.columns], ignore_index=True)


def _level(law: ConvergenceLaw, runs: pd.DataFrame) -> tuple[float, float]:
    """Return how this series' samples lie to the reference's, and how well known."""
    (curve,) = law.curves.values()
    logs = curve.log_median(numbers(runs, "global_batch_size"))
    error = np.log(numbers(runs, "samples_to_target")) - np.median(logs, axis=0)
    precision = len(error) / _LEVEL_SPREAD**2 + 1 / _LEVEL_PRIOR**2
    middle = float(np.median(error)) * len(error) / _LEVEL_SPREAD**2 / precision
    return middle, float(precision**-0.5)
