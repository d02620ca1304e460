"""The convergence law: samples to a target against the global batch.

The formula stands in :mod:`scalelab.laws.convergence.fit`, its derivation and its known
failures in ``docs/laws.md``.

>>> import pandas as pd
>>> rows = pd.DataFrame(
...     {"global_batch_size": [64, 128, 256, 512],
...      "samples_to_target": [21_000, 24_500, 30_000, 41_000]}
... )
>>> law = ConvergenceLaw.fit(rows)
>>> answer = law.predict(pd.DataFrame({"global_batch_size": [512, 1024]}))
>>> answer["support"].tolist()
['measured', 'extrapolated']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtr

from scalelab.errors import FitError, NotIdentifiableError, SpecError
from scalelab.inputs.support import Support
from scalelab.laws.convergence.curve import BatchCurve, parameter_rows
from scalelab.laws.convergence.rows import (
    ALTERING_OPTIONS,
    split_targets,
    target_rows,
    told_apart,
)
from scalelab.laws.input_checks import positive, positive_if_given
from scalelab.laws.interval import SEED, central, check_mass
from scalelab.laws.rows import CurveKey, agreeing, curve_label

_TRIMMED = 0.1  # of either end of the draws
_ANSWER_COLUMNS = (
    "samples_to_target",
    "samples_lo",
    "samples_hi",
    "probability_of_reaching",
    "support",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvergenceLaw:
    """The convergence law: samples to target against global batch.

    Parameters
    ----------
    curves
        Fitted curves by workload, learning-rate rule, target and whatever else is held
        fixed; where ranks step from different weights also by the number of ranks.
    left_out
        Number of rows with a target that were not fitted, by reason.
    """

    curves: Mapping[CurveKey, BatchCurve]
    left_out: Mapping[str, int]

    @classmethod
    def fit(cls, observations: pd.DataFrame) -> ConvergenceLaw:
        """Fit every curve of the rows that tried to reach a target.

        Parameters
        ----------
        observations
            Rows with ``global_batch_size`` and either ``samples_to_target`` (reached)
            or ``num_samples`` (seen when the trial gave up); where batch norm is used
            ``normalization_batch_size``; where measured ``gradient_noise_scale``.

        Raises
        ------
        FitError
            No row tried to reach a target.
        """
        rows = target_rows(observations)
        if rows.frame.empty:
            why = ", ".join(f"{n} {reason}" for reason, n in rows.left_out.items())
            found = f"can be fitted ({why})" if why else "tried to reach a target"
            raise FitError(
                f"No row {found}. Run trials of kind convergence"
                f"{', with an order that is not sharded' if why else ''}."
            )
        curves = {
            key: BatchCurve.fit(frame)
            for key, frame in split_targets(rows.frame).items()
        }
        return cls(curves=curves, left_out=rows.left_out)

    def predict(
        self, configurations: pd.DataFrame, interval: float = 0.8
    ) -> pd.DataFrame:
        """Predict the samples one further run needs.

        Parameters
        ----------
        configurations
            ``global_batch_size``; with several curves the columns that tell them apart;
            optionally ``normalization_batch_size`` and ``budget_samples``.
        interval
            Probability mass of the interval, in (0, 1).

        Returns
        -------
        DataFrame
            The configurations' columns, ``samples_to_target``, ``samples_lo``,
            ``samples_hi`` of a run that reaches the target, ``probability_of_reaching``
            (within ``budget_samples``; at all if no budget is given) and ``support``;
            NaN where *not measured here*.

        Raises
        ------
        NotIdentifiableError
            The runs support no configuration.
        SpecError
            A configuration has no positive batch, or may belong to several curves.
        """
        check_mass(interval)
        parts = self._by_curve(configurations)
        if not parts:
            return configurations.assign(**{name: [] for name in _ANSWER_COLUMNS})
        answer = pd.concat([_predict(*part, interval) for part in parts]).sort_index()
        if (answer["support"] == Support.NOT_MEASURED).all():
            curve, part = parts[0]
            raise NotIdentifiableError(
                "the number of samples to the target",
                curve.remedy(float(positive(part, "global_batch_size")[0])),
            )
        columns = {name: answer[name].to_numpy() for name in _ANSWER_COLUMNS}
        return configurations.assign(**columns)

    def _by_curve(self, frame: pd.DataFrame) -> list[tuple[BatchCurve, pd.DataFrame]]:
        """Group configurations, indexed by position, by the curve they belong to."""
        frame = told_apart(frame.reset_index(drop=True))
        return [
            (self.curves[self.curve_of(key)], part)
            for key, part in split_targets(frame).items()
            if len(part)
        ]

    def sample(
        self,
        key: CurveKey,
        batch: np.ndarray,
        normalization: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draw the samples one further run needs that reaches the target.

        Parameters
        ----------
        key
            The key of the curve.
        batch, normalization : ndarray, shape (n_batches,)
            Global batches, and the samples that one batch-norm statistic is taken over.

        Returns
        -------
        ndarray, shape (n_draws, n_batches)
        """
        curve = self.curves[self.curve_of(key)]
        logs = curve.log_one_run(curve.log_samples(batch, normalization))
        return np.asarray(np.exp(logs))

    def reaches(self, key: CurveKey, batch: np.ndarray) -> np.ndarray:
        """Draw whether one further run reaches the target, shape like the samples."""
        chance = self.curves[self.curve_of(key)].reaching(batch)
        rng = np.random.default_rng(SEED + 5)
        return np.asarray(rng.random((len(chance), 1)) < chance)

    def curve_of(self, key: CurveKey) -> CurveKey:
        """Return the only curve that agrees with a key, in as many columns as possible.

        Raises
        ------
        SpecError
            No curve agrees, or several do; the message lists them.
        """
        if key in self.curves:
            return key
        asked = dict(key)
        matches = agreeing(self.curves, asked)
        named = {curve: len(asked.keys() & dict(curve).keys()) for curve in matches}
        matches = [each for each in matches if named[each] == max(named.values())]
        if ALTERING_OPTIONS not in asked:
            plain = [each for each in matches if ALTERING_OPTIONS not in dict(each)]
            matches = plain or matches
        if len(matches) == 1:
            return matches[0]
        labels = "; ".join(curve_label(curve, self.curves) for curve in self.curves)
        raise SpecError(
            f"{asked or 'The configuration'} matches {len(matches)} of "
            f"{len(self.curves)} convergence curves: {labels}. Name one."
        )

    def parameters(self, interval: float = 0.8) -> pd.DataFrame:
        """Return curve, name, value, lo, hi, unit, identified and remedy."""
        rows = [
            (curve_label(key, self.curves), *row)
            for key, curve in self.curves.items()
            for row in parameter_rows(curve, interval)
        ]
        columns = ["curve", "name", "value", "lo", "hi", "unit", "identified", "remedy"]
        return pd.DataFrame(rows, columns=columns)

    @property
    def identifiable(self) -> pd.DataFrame:
        """Which parameters the rows determine: curve, parameter, identified, remedy."""
        table = self.parameters().rename(columns={"name": "parameter"})
        return table[["curve", "parameter", "identified", "remedy"]]


def _middle(draws: np.ndarray) -> np.ndarray:
    """Return the mean of the central 80% of draws, which varies less than a median."""
    cut = int(_TRIMMED * len(draws))
    return np.asarray(np.sort(draws, axis=0)[cut : len(draws) - cut].mean(axis=0))


def _predict(curve: BatchCurve, frame: pd.DataFrame, interval: float) -> pd.DataFrame:
    batch = positive(frame, "global_batch_size")
    budget = np.log(positive_if_given(frame, "budget_samples"))
    budget = np.where(np.isfinite(budget), budget, np.inf)
    norm = positive_if_given(frame, "normalization_batch_size")
    logs = curve.log_samples(batch, norm)
    lo, hi = central(curve.log_one_run(logs), interval)
    support = curve.support(batch)
    known = support != Support.NOT_MEASURED
    within = ndtr((budget - logs) / curve.spread) * curve.reaching(batch)
    values = {
        "samples_to_target": np.exp(_middle(curve.log_median(batch, norm))),
        "samples_lo": np.exp(lo),
        "samples_hi": np.exp(hi),
        "probability_of_reaching": within.mean(axis=0),
    }
    answer = {name: np.where(known, column, np.nan) for name, column in values.items()}
    return pd.DataFrame({**answer, "support": support}, index=frame.index)
