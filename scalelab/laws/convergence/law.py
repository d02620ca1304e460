"""The convergence law: samples to a target against the global batch.

The formula stands in :mod:`scalelab.laws.convergence.fit`, its derivation and its known
failures in ``docs/laws_of_learning.md``.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.special import ndtr

from scalelab.errors import FitError, NotIdentifiableError, SpecError
from scalelab.inputs.guessed import Guided
from scalelab.inputs.numerals import every
from scalelab.inputs.outcome import Support
from scalelab.laws.asked import asked_configurations, law_in_words
from scalelab.laws.convergence.fit import BatchData, Draws, posterior
from scalelab.laws.convergence.rows import (
    ALTERING_OPTIONS,
    target_rows,
    told_apart,
)
from scalelab.laws.interval import SEED, central, check_mass, normals
from scalelab.laws.left_out import LeftOut
from scalelab.laws.rows import (
    CurveKey,
    agreeing,
    curve_label,
    group_rows,
    known_or,
    positive,
    positive_if_given,
)

_TRIMMED = 0.1  # of either end of the draws
_ASKED_COLUMNS = (
    "global_batch_size",
    "normalization_batch_size",
    "budget_samples",
)
_ANSWER_COLUMNS = (
    "samples_to_target",
    "samples_lo",
    "samples_hi",
    "probability_of_reaching",
    "support",
)
_SAME = 1e-9  # difference of logs below which two batches are one


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCurve:
    """The convergence law fitted to one target under one learning-rate rule."""

    draws: Draws
    data: BatchData
    measured: np.ndarray
    # The rows that were fitted, see :class:`TargetRows`
    runs: pd.DataFrame

    @classmethod
    def fit(cls, frame: pd.DataFrame) -> Self:
        """Fit the rows of one curve, see :class:`TargetRows`."""
        data = BatchData.of(frame)
        return cls(
            draws=posterior(data),
            data=data,
            measured=np.unique(frame["global_batch_size"].to_numpy(float)),
            runs=frame,
        )

    @property
    def num_reached(self) -> int:
        """Number of trials that reached the target."""
        return int(self.data.count.sum())

    @property
    def num_censored(self) -> int:
        """Number of trials that stopped before the target."""
        return int(self.data.bound_count.sum())

    def log_median(
        self, batch: np.ndarray, normalization: np.ndarray | None = None
    ) -> np.ndarray:
        """Draw log median samples to target, shape (n_draws, n_batches).

        The prediction for a measured batch rests on its own runs and on the formula,
        that for any other batch on the formula alone.
        """
        log_batch, log_norm, place = self._placed(batch, normalization)
        middle = self.draws.log_samples(log_batch, log_norm)
        middle += self.data.log_sample_unit
        middle[:, place >= 0] += self.draws.errors[:, place[place >= 0]]
        return middle

    def log_samples(
        self, batch: np.ndarray, normalization: np.ndarray | None = None
    ) -> np.ndarray:
        """Draw log samples with the error of the formula at batches not measured."""
        _, _, place = self._placed(batch, normalization)
        error = self.draws.form[:, None] * normals(SEED + 4)
        middle = self.log_median(batch, normalization)
        return np.asarray(middle + np.where(place < 0, error, 0.0))

    def _placed(
        self, batch: np.ndarray, normalization: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return logs in the curve's units, and which measured batch it is, or -1."""
        if normalization is None:
            normalization = np.full(len(batch), np.nan)
        log_batch = np.log(batch) - self.data.log_batch_unit
        log_norm = np.log(normalization) - self.data.log_normalization_unit
        log_norm = known_or(log_norm, 0.0)
        same = np.abs(self.data.log_batch - log_batch[:, None]) <= _SAME
        same &= np.abs(self.data.log_normalization - log_norm[:, None]) <= _SAME
        return log_batch, log_norm, np.where(same.any(axis=1), same.argmax(axis=1), -1)

    def log_one_run(self, logs: np.ndarray) -> np.ndarray:
        """Add the spread between repeated runs to log samples; shape of ``logs``."""
        return np.asarray(logs + self.draws.spread[:, None] * normals(SEED + 2))

    def reaching(self, batch: np.ndarray) -> np.ndarray:
        """Draw the probability that a run reaches the target, however long it is.

        The formula may call runs that missed late where they had no chance. So at a
        measured batch, and up to the next larger one, the chance is at most the share
        of its own runs that reached the target, the formula's chance being worth one
        more run. A run that missed counts as far as it was not merely short.
        """
        log_batch = np.log(batch) - self.data.log_batch_unit
        chance = np.exp(self.draws.log_reaching(log_batch))

        late = np.exp(self.draws.log_late(self.data)) * self.data.bound_count
        for at, is_measured in enumerate(self.measured):
            above = self.measured[at + 1] if at + 1 < len(self.measured) else np.inf
            covered = (batch >= is_measured) & (batch < above)
            alike = np.abs(
                self.data.log_batch - np.log(is_measured) + self.data.log_batch_unit
            )
            pairs = np.flatnonzero(alike <= _SAME)
            is_here = np.isin(self.data.bound_at, pairs)
            missed = (self.data.bound_count - late)[:, is_here].sum(axis=1)
            reached = self.data.count[pairs].sum()
            share = (chance + reached) / (1 + reached + missed[:, None])
            chance = np.where(covered, np.minimum(chance, share), chance)

        return np.asarray(chance)

    def support(self, batch: np.ndarray) -> np.ndarray:
        """Return a :class:`Support` value per batch, as text."""
        if not self.num_reached:
            return np.full(len(batch), Support.NOT_MEASURED.value)
        inside = (batch >= self.measured[0]) & (batch <= self.measured[-1])
        several = len(self.measured) > 1
        beyond = Support.EXTRAPOLATED if several else Support.NOT_MEASURED
        kind = np.where(inside, Support.INTERPOLATED.value, beyond.value)
        return np.where(np.isin(batch, self.measured), Support.MEASURED.value, kind)

    def remedy(self, batch: float) -> str:
        """Say why a batch has no answer, and which trial would give it one."""
        smallest = f"global batch {self.measured.min():.0f}"
        if self.num_reached:
            return (
                f"Only the {smallest} was measured. Run a convergence trial at global "
                f"batch {batch:.0f}."
            )
        runs = every(self.num_censored, "run")
        return f"{runs} stopped before the target. Train longer, first at {smallest}."


def parameter_rows(curve: BatchCurve, interval: float) -> list[tuple[object, ...]]:
    """Return name, value, lo, hi, unit, identified and remedy per parameter."""
    draws, data = curve.draws, curve.data
    minimum = np.exp(data.log_sample_unit + draws.log_minimum)
    critical = np.exp(data.log_batch_unit + draws.log_critical)
    failing = np.exp(data.log_batch_unit + draws.log_fail)
    several = len(curve.measured) > 1 and curve.num_reached > 1
    many, repeated = len(curve.measured) > 3, bool((data.count > 1).any())
    another = "Measure another global batch."
    repeat = "Repeat a trial with another seed."
    larger = "Measure batches so large that some runs stop before the target."

    parameters = [
        ("min_samples", minimum, "samples", several, another),
        ("critical_batch_size", critical, "samples", several, another),
        ("form_error", draws.form, "log", many, "Measure four global batches."),
        ("run_to_run_spread", draws.spread, "log", repeated, repeat),
        ("failing_batch_size", failing, "samples", curve.num_censored > 0, larger),
    ]
    if len(np.unique(data.log_normalization)) > 1:
        parameters.append(("normalization_effect", draws.effect, "1", True, ""))

    rows: list[tuple[object, ...]] = []
    for name, values, unit, is_known, remedy in parameters:
        numbers = map(float, (np.median(values), *central(values, interval)))
        rows.append((name, *numbers, unit, is_known, "" if is_known else remedy))

    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvergenceLaw(Guided):
    """The convergence law: samples to target against global batch.

    Parameters
    ----------
    curves
        Fitted curves by workload, learning-rate rule, target and whatever else is held
        fixed; where ranks step from different weights also by the number of ranks.
    left_out
        How many rows with a target were not fitted, and why.
    pooled
        Settings that do not tell curves apart, as the rows show.
    """

    curves: Mapping[CurveKey, BatchCurve]
    left_out: tuple[LeftOut, ...]
    pooled: tuple[str, ...] = ()

    @classmethod
    def fit(cls, observations: pd.DataFrame) -> Self:
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
            why = ", ".join(map(str, rows.left_out))
            found = f"can be fitted ({why})" if why else "tried to reach a target"
            raise FitError(
                f"No row {found}. Run trials of kind convergence"
                f"{', with an order that is not sharded' if why else ''}."
            )

        curves = {key: BatchCurve.fit(frame) for key, frame in rows.curves().items()}
        return cls(curves=curves, left_out=rows.left_out, pooled=tuple(rows.pooled))

    def predict(
        self,
        configurations: pd.DataFrame | None = None,
        interval: float = 0.8,
        **keywords: Any,
    ) -> pd.DataFrame:
        """Predict the samples one further run needs.

        Parameters
        ----------
        configurations
            ``global_batch_size``; with several curves the columns that tell them apart;
            optionally ``normalization_batch_size`` and ``budget_samples``.
        interval
            Probability mass of the interval, in (0, 1).
        **keywords
            The same without a frame: ``global_batch_size=[256, 512]``.

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
        names = dict.fromkeys(name for key in self.curves for name, _ in key)
        columns = [*_ASKED_COLUMNS, *names]
        configurations = asked_configurations(
            configurations, keywords, columns, example="global_batch_size"
        )

        parts = [
            (self.curves[self.curve_of(key)], part)
            for key, part in self.split(configurations.reset_index(drop=True)).items()
            if len(part)
        ]
        if not parts:
            return configurations.assign(**{name: [] for name in _ANSWER_COLUMNS})

        answer = pd.concat([_predict(*part, interval) for part in parts]).sort_index()
        if (answer["support"] == Support.NOT_MEASURED).all():
            curve, part = parts[0]
            raise NotIdentifiableError(
                "the number of samples to the target",
                curve.remedy(float(positive(part, "global_batch_size")[0])),
            )

        return configurations.assign(
            **{name: answer[name].to_numpy() for name in _ANSWER_COLUMNS}
        )

    def draws(
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
        logs = curve.log_samples(batch, normalization)
        return np.asarray(np.exp(curve.log_one_run(logs)))

    def split(self, configurations: pd.DataFrame) -> dict[CurveKey, pd.DataFrame]:
        """Split configurations by what tells curves apart."""
        frame = told_apart(configurations)
        names = dict.fromkeys(name for key in self.curves for name, _ in key)
        return group_rows(frame, [name for name in names if name in frame.columns])

    def __repr__(self) -> str:
        labels = [curve_label(key, self.curves) for key in self.curves]
        use = "law.predict(global_batch_size=512)"
        return law_in_words("convergence law", labels, use)

    def reaches(self, key: CurveKey, batch: np.ndarray) -> np.ndarray:
        """Draw whether one further run reaches the target, shape like the samples."""
        chance = self.curves[self.curve_of(key)].reaching(batch)
        luck = np.random.default_rng(SEED + 5).random((len(chance), 1))
        return np.asarray(luck < chance)

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

        matches = [match for match in matches if named[match] == max(named.values())]
        if ALTERING_OPTIONS not in asked:
            plain = [match for match in matches if ALTERING_OPTIONS not in dict(match)]
            matches = plain or matches
        if len(matches) == 1:
            return matches[0]

        labels = "; ".join(curve_label(curve, self.curves) for curve in self.curves)
        raise SpecError(
            f"{asked or 'The configuration'} matches {len(matches)} of "
            f"{len(self.curves)} convergence curves: {labels}. Name one.",
            code="not_one_curve",
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


def _predict(curve: BatchCurve, frame: pd.DataFrame, interval: float) -> pd.DataFrame:
    batch = positive(frame, "global_batch_size")
    budget = known_or(np.log(positive_if_given(frame, "budget_samples")), np.inf)
    norm = positive_if_given(frame, "normalization_batch_size")
    logs = curve.log_samples(batch, norm)
    lo, hi = central(curve.log_one_run(logs), interval)
    # the mean of the central 80% of draws varies less than a median
    medians = np.sort(curve.log_median(batch, norm), axis=0)
    cut = int(_TRIMMED * len(medians))
    middle = medians[cut : len(medians) - cut].mean(axis=0)
    support = curve.support(batch)
    known = support != Support.NOT_MEASURED
    spread = curve.draws.spread[:, None]
    within = ndtr((budget - logs) / spread) * curve.reaching(batch)
    values = {
        "samples_to_target": np.exp(middle),
        "samples_lo": np.exp(lo),
        "samples_hi": np.exp(hi),
        "probability_of_reaching": within.mean(axis=0),
    }

    answer = {name: np.where(known, column, np.nan) for name, column in values.items()}
    return pd.DataFrame({**answer, "support": support}, index=frame.index)
