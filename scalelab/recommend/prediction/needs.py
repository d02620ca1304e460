"""What training needs: samples, a learning rate, and time beside its steps."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pandas as pd

from scalelab.errors import FitError, NotIdentifiableError, SpecError
from scalelab.experiment.job import Job
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import every
from scalelab.inputs.outcome import Support
from scalelab.inputs.target import Target
from scalelab.laws.convergence.law import BatchCurve, ConvergenceLaw
from scalelab.laws.convergence.rows import RATE_SETTINGS, is_equal, is_learnt_so
from scalelab.laws.interval import NUM_DRAWS
from scalelab.laws.rows import CurveKey, cells, numbers
from scalelab.records.columns import OPTION_PREFIX

_FEED = OPTION_PREFIX + "feed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """Start-up and evaluation; 0 where they were not measured apart from steps."""

    start_up_s: float
    evaluation_per_sample_s: float  # of training
    # The longest start-up by how samples are fed: what is copied first is part of it
    start_up_by_feed_s: Mapping[Any, float] = field(default_factory=dict)

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Read the longest start-up, as later trials find their nodes warm.

        What the first epoch takes longer than another comes once, as a start-up does.
        """
        names = ("evaluation_s", "num_samples", "evaluation_interval_samples")
        seconds, samples, apart = (numbers(frame, name) for name in names)
        # who saw one evaluation does not know when the next comes
        tells = (apart > 0) & (samples >= 2 * apart) & (seconds >= 0)

        first_epoch_s = np.nanmax(numbers(frame, "first_epoch_s"), initial=0.0)
        start_up_s, by_feed = numbers(frame, "start_up_s") + first_epoch_s, {}
        for feed in {cell for cell in cells(frame, _FEED) if isinstance(cell, str)}:
            of_feed = start_up_s[is_equal(frame, _FEED, feed)]
            by_feed[feed] = float(np.nanmax(of_feed, initial=0.0))

        return cls(
            start_up_s=float(np.nanmax(start_up_s, initial=0.0)),
            evaluation_per_sample_s=seconds[tells].sum() / max(samples[tells].sum(), 1),
            start_up_by_feed_s=by_feed,
        )

    def start_up_of(self, config: Mapping[Any, Any]) -> float:
        """Return the seconds until the first step of a configuration."""
        return self.start_up_by_feed_s.get(config.get(_FEED), self.start_up_s)

    def seconds(self, samples: np.ndarray, asked: pd.DataFrame) -> np.ndarray:
        """Return the seconds beside the steps of configurations; shape of ``samples``.

        ``samples`` has a column for each configuration.
        """
        start_up_s = [
            self.start_up_of(configuration)
            for configuration in asked.to_dict("records")
        ]
        return np.array(start_up_s) + samples * self.evaluation_per_sample_s

    def by_part(self, samples: float, config: Mapping[Any, Any]) -> dict[str, float]:
        """Return the seconds of each part that was measured, of a configuration."""
        evaluation_s = samples * self.evaluation_per_sample_s
        parts = {"start-up": self.start_up_of(config), "evaluation": evaluation_s}
        return {name: float(seconds) for name, seconds in parts.items() if seconds}


def _normalization(frame: pd.DataFrame) -> str:
    seen = numbers(frame, "normalization_batch_size")
    known = np.isfinite(seen)
    for name in ("local_batch_size", "global_batch_size"):
        if known.any() and (seen == numbers(frame, name))[known].all():
            return name
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleNeed:
    """The number of samples that a job needs: stated, or from the convergence law."""

    # The job; with a target its stated length is an upper limit
    job: Job | None
    # The metric to reach; None: the job is its stated length
    target: Target | None
    # The convergence law (None if it cannot be fitted), its curves for the target, and
    # those of them on which a run reached it
    law: ConvergenceLaw | None
    tried: Mapping[CurveKey, BatchCurve]
    keys: tuple[CurveKey, ...]
    # The batch that a batch-norm statistic is computed over in all rows; else empty
    normalization: str
    # The share of the samples of a step asked for that ranks train on, by global batch
    shares: pd.Series

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        job: Job | None,
        target: Target | None,
        select: Mapping[str, Scalar] = MappingProxyType({}),
    ) -> Self:
        """Decide between the job's stated length and the convergence law.

        ``target`` replaces the target of the job. Curves of other settings than those
        selected are left out, where a curve has these.
        """
        if target is None and job is not None:
            target = job.target
        law = None
        with suppress(FitError):
            law = ConvergenceLaw.fit(frame)

        tried = {} if law is None else _tried(law, target)
        tried = _selected(tried, select)
        keys = tuple(key for key, curve in tried.items() if curve.num_reached)
        missed = sum(curve.num_censored for curve in tried.values())

        has_amount = job is not None and job.num_samples(1) is not None
        if target is not None and not keys and not has_amount:
            raise NotIdentifiableError(
                f"the number of samples to {target}", _how_to_measure(law, missed)
            )

        return cls(
            job=job,
            target=target,
            law=law,
            tried=tried,
            keys=keys,
            normalization=_normalization(frame),
            shares=_shares(frame),
        )

    def samples_per_step(self, batch: int) -> float:
        """Return the samples that ranks train on in a step, where a batch is asked."""
        share = self.shares.get(batch, self.shares.median())
        return batch * (1.0 if np.isnan(share) else float(share))

    @property
    def uses_law(self) -> bool:
        """Whether the number of samples comes from the convergence law."""
        return self.target is not None and bool(self.keys)

    @property
    def pooled(self) -> list[str]:
        """The settings that need as many samples whatever their value, as rows show."""
        names = self.law.pooled if self.law and self.uses_law else ()
        return [name.removeprefix(OPTION_PREFIX) for name in names]

    def measured_batches(self) -> tuple[int, ...]:
        """Return the global batches whose convergence was measured."""
        curves = {} if self.law is None else self.law.curves
        used = [curves[key] for key in self.keys or curves]
        return tuple(sorted({int(b) for curve in used for b in curve.measured}))

    def by_curve(
        self, asked: pd.DataFrame, *, are_whole_runs: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pair configurations with the curves that support them, one rule each.

        Of whole runs, which tell samples by themselves, one without a curve has the
        first.

        Returns
        -------
        position, curve : ndarray of int, shape (n_pairs,)
            The row of ``asked``, increasing, and the place in :attr:`keys`.
        """
        if not self.uses_law or self.law is None:
            return np.arange(len(asked)), np.zeros(len(asked), dtype=int)
        batches = asked["global_batch_size"].to_numpy(float)
        is_own = self._are_own(asked)
        known = np.array(
            [
                (self.tried[key].support(batches) != Support.NOT_MEASURED)
                & is_own[place]
                for place, key in enumerate(self.tried)
                if key in self.keys
            ]
        )

        known[0] |= are_whole_runs & ~known.any(axis=0)
        position, curve = np.nonzero(np.transpose(known))
        return position, curve

    def _are_own(self, asked: pd.DataFrame) -> np.ndarray:
        """Tell which curves are of configurations' own settings, (n_curves, n).

        Where no curve has the value of a setting, those of other values stand in.
        """
        is_learnt = np.array([is_learnt_so(key, asked) for key in self.tried])
        names = {name for key in self.tried for name, _ in key} - {*RATE_SETTINGS}
        for name in sorted(names & {*map(str, asked.columns)}):
            same = [is_equal(asked, name, dict(key).get(name)) for key in self.tried]
            preferred = is_learnt & np.array(same)
            is_learnt = np.where(preferred.any(axis=0), preferred, is_learnt)
        return is_learnt

    def rate_settings(self, place: int) -> dict[str, Scalar]:
        """Return how the learning rate was set on a curve, as far as that is known."""
        settings = dict(self.keys[place]) if self.keys else {}
        return {name: settings[name] for name in RATE_SETTINGS if name in settings}

    @property
    def compared_rates(self) -> list[str]:
        """The ways to set the learning rate in which the curves differ."""
        every = [self.rate_settings(place) for place in range(len(self.keys))]
        return [n for n in RATE_SETTINGS if len({row.get(n) for row in every}) > 1]

    def support(self, asked: pd.DataFrame, curve: np.ndarray) -> np.ndarray:
        """Return the :class:`Support` of the samples of each pair, as text."""
        found = np.full(len(asked), Support.MEASURED.value, dtype=object)
        batches = asked["global_batch_size"].to_numpy(float)
        for place, key in enumerate(self.keys if self.uses_law else ()):
            found[curve == place] = self.tried[key].support(batches[curve == place])
        return found

    def draws(
        self, asked: pd.DataFrame, curve: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the samples that a run needs, and whether it reaches the target.

        Parameters
        ----------
        curve : ndarray of int, shape (n_configurations,)
            The curve of each configuration, see :meth:`by_curve`.

        Returns
        -------
        samples : ndarray, shape (n_draws, n_configurations)
            The upper limit of the job is not applied, see :meth:`within_cap`.
        reached : ndarray of bool, shape (n_draws, n_configurations)
        """
        shape = (NUM_DRAWS, len(asked))
        if not self.uses_law or self.law is None:
            amounts = [self._amount(int(b)) for b in asked["global_batch_size"]]
            samples = np.tile(np.array(amounts, dtype=float), (NUM_DRAWS, 1))
            return samples, np.ones(shape, dtype=bool)

        batches = asked["global_batch_size"].to_numpy(float)
        norm = np.full(len(asked), np.nan)
        if self.normalization:
            norm = asked[self.normalization].to_numpy(float)

        samples, reached = np.empty(shape), np.empty(shape, dtype=bool)
        for place in np.unique(curve):
            key, is_of_curve = self.keys[place], curve == place
            samples[:, is_of_curve] = self.law.draws(
                key, batches[is_of_curve], norm[is_of_curve]
            )
            reached[:, is_of_curve] = self.law.reaches(key, batches[is_of_curve])

        return samples, reached

    @property
    def runs(self) -> pd.DataFrame:
        """The rows that tried to reach the target, see :class:`TargetRows`."""
        return pd.concat([curve.runs for curve in self.tried.values()])

    def caps(self, batch: Sequence[int]) -> np.ndarray:
        """Return the most samples that a run at each global batch may take.

        That is the job's stated length. Where nothing states it, it is the largest
        number of samples after which a run had missed the target, unless another run
        reached it as late as that: what comes later, nobody saw.
        """
        runs, job = self.runs, self.job
        arrived, given = (
            runs["samples"][runs["censored"] == is_late].max()
            for is_late in (False, True)
        )
        seen = given if given > arrived else np.inf
        steps = map(self.samples_per_step, batch)
        amounts = [None if job is None else job.num_samples(size) for size in steps]
        return np.array([seen if a is None else float(a) for a in amounts])

    def within_cap(self, samples: np.ndarray, batch: Sequence[int]) -> np.ndarray:
        """Tell which draws are within :meth:`caps`; same shape."""
        if not self.uses_law:
            return np.ones(samples.shape, dtype=bool)
        return np.asarray(samples <= self.caps(batch))

    def _amount(self, batch: int) -> float:
        job, samples = self.job, self.samples_per_step(batch)
        amount = None if job is None else job.num_samples(samples)
        if amount is None:
            unknown = (
                "how many samples an epoch has"
                if job and job.lacks_epoch
                else "how long it is"
            )
            raise SpecError(
                f"There is no job to recommend for: nothing says {unknown}. Add "
                "'job: {epochs: 90, samples_per_epoch: 50000}' to the experiment, or "
                "say it with the question: 'scalelab recommend RUN --epochs 90 "
                "--samples-per-epoch 50000' (or --samples, or --steps), in Python "
                "job={'samples': 4500000}.",
                code="no_job",
            )
        return float(amount)


def _shares(frame: pd.DataFrame) -> pd.Series:
    batches = numbers(frame, "global_batch_size")
    shares = pd.Series(numbers(frame, "samples_per_step") / batches, index=batches)
    return shares.dropna().groupby(level=0).median()


def _tried(law: ConvergenceLaw, target: Target | None) -> dict[CurveKey, BatchCurve]:
    if target is None:
        return {}
    wanted = {
        "target_metric": target.metric,
        "metric_mode": str(target.mode),
        "target_value": target.value,
    }
    return {
        key: curve
        for key, curve in law.curves.items()
        if all(dict(key).get(name, value) == value for name, value in wanted.items())
    }


def _selected(
    curves: dict[CurveKey, BatchCurve], select: Mapping[str, Scalar]
) -> dict[CurveKey, BatchCurve]:
    """Return the curves of the selected settings, where a curve has these."""
    for name, value in select.items():
        same = [
            key
            for key in curves
            if str(dict(key).get(name, dict(key).get(OPTION_PREFIX + name, value)))
            == str(value)
        ]
        curves = {key: curves[key] for key in same or curves}
    return curves


def _how_to_measure(law: ConvergenceLaw | None, num_missed: int) -> str:
    otherwise = "or say how long the job is (epochs, steps, samples)."
    if num_missed:
        return (
            f"{every(num_missed, 'run')} with this target stopped before it. Let them "
            f"train longer, ask for a target they came to, {otherwise}"
        )

    measured = sorted(
        {
            f"{values.get('target_metric')} "
            f"{'>=' if values.get('metric_mode') == 'max' else '<='} "
            f"{values.get('target_value')}"
            for values in map(dict, law.curves if law else ())
        }
    )

    seen = f"Measured targets: {', '.join(measured)}. " if measured else ""
    return (
        f"{seen}Run convergence trials with this target over the global batches in "
        f"question, {otherwise}"
    )
