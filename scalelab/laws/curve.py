"""One fitted curve: physics, leftover and form error joined into predictions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from scalelab.laws import physics, posterior
from scalelab.laws.interval import NUM_DRAWS, SEED, central, shortest_positive
from scalelab.laws.physics import NAMES, NUM_TIMES, UNITS, Configurations, Form, Terms
from scalelab.laws.points import Points
from scalelab.laws.posterior import Posterior
from scalelab.laws.prior import StepTimePrior
from scalelab.laws.residual import Residual
from scalelab.laws.support import Coverage, Gap

# log error of the form per doubling beyond the measured range: world size, local batch
_DRIFT = np.array([0.12, 0.1])
_WIDE = 4.0  # hi / lo beyond which a time parameter counts as open
_WIDE_SHARE = 0.25  # hi - lo, likewise, of a parameter in [0, 1]
_NEGLIGIBLE = 0.02  # of the step time: a term below it everywhere is known to be small


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedForm:
    """One form of the law with what it leaves over, and its share of the draws."""

    posterior: Posterior
    residual: Residual
    weight: float

    def log_draws(
        self, at: Configurations, normals: np.ndarray, *, joint: bool
    ) -> np.ndarray:
        """Draw log step times in the curve's unit, (n_draws, n_configurations)."""
        parameters, form = self.posterior.parameters, self.posterior.form
        points = self.residual.points
        fitted = np.log(physics.step_time_s(parameters, points.at, form))
        mean, variance = self.residual.condition(points.log_time - fitted, at)
        draws = np.log(physics.step_time_s(parameters, at, form)) + mean
        if joint:
            root = _root(self.residual.covariance(at))
            return np.asarray(draws + normals @ root.T)
        return np.asarray(draws + normals[:, :1] * np.sqrt(variance))


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The law fitted to one curve.

    Parameters
    ----------
    points, coverage
        What it was fitted to.
    forms
        The forms of the law, the better fitting first.
    gradient_bytes
        Bytes per gradient exchange where every row agrees, else NaN.
    """

    points: Points
    forms: tuple[FittedForm, ...]
    coverage: Coverage
    gradient_bytes: float

    @classmethod
    def fit(cls, frame: pd.DataFrame, prior: StepTimePrior) -> Curve:
        """Fit the rows of one curve, see :func:`step_time_rows`."""
        points = Points.of(frame)
        fits = [posterior.fit(points, prior, form) for form in Form]
        sizes = frame["gradient_bytes"].dropna().unique()
        return cls(
            points=points,
            forms=_weighed(points, fits),
            coverage=Coverage(at=Configurations.of(frame), informed=prior.informed),
            gradient_bytes=float(sizes[0]) if len(sizes) == 1 else float("nan"),
        )

    @property
    def best(self) -> Posterior:
        """The form that fits better."""
        return self.forms[0].posterior

    def support(self, frame: pd.DataFrame) -> np.ndarray:
        """Return what each prediction rests on, see :class:`Support`."""
        return self.coverage.support(Configurations.of(frame))

    def log_draws(self, frame: pd.DataFrame, *, joint: bool) -> np.ndarray:
        """Draw log expected step times (s), shape (n_draws, n_configurations).

        ``joint``: configurations err together where their errors are related, as needed
        to compare them; otherwise each column alone is right, which is much cheaper.
        """
        at = Configurations.of(frame, self.points.batch_unit)
        normals = _normals(len(at.world_size) + 2 if joint else 3)
        drift = self.coverage.distance(Configurations.of(frame)) * _DRIFT
        draws = normals[:, :2] @ drift.T + np.log(self.points.time_unit_s)
        for form, share in self._shares():
            draws[share] += form.log_draws(at, normals[:, 2:], joint=joint)[share]
        return np.asarray(draws)

    def _shares(self) -> list[tuple[FittedForm, slice]]:
        """Return which of the draws belong to which form, by weight."""
        ends = np.cumsum([0.0, *(form.weight for form in self.forms)]) * NUM_DRAWS
        bounds = np.round(ends).astype(int).tolist()
        slices = [slice(*ends) for ends in itertools.pairwise(bounds)]
        pairs = zip(self.forms, slices, strict=True)
        return [(form, share) for form, share in pairs if share.stop > share.start]

    def _draws(self) -> np.ndarray:
        """Return the parameters of all forms by weight, shape (n_draws, 9)."""
        parts = [form.posterior.parameters[share] for form, share in self._shares()]
        return np.concatenate(parts)

    def terms(self, frame: pd.DataFrame) -> Terms:
        """Split the step time into its parts, seconds, by draw and configuration."""
        at = Configurations.of(frame, self.points.batch_unit)
        parts = []
        for form, share in self._shares():
            scaled = form.posterior.parameters[share].copy()
            scaled[:, :NUM_TIMES] *= self.points.time_unit_s
            parts.append(physics.terms(scaled, at, form.posterior.form))
        return physics.joined(parts)

    @property
    def spread(self) -> float:
        """Standard deviation of log step time between repeats."""
        return self.points.spread

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What the measured configurations cannot determine."""
        return self.coverage.gaps()

    def blocking(self, frame: pd.DataFrame) -> tuple[Gap, ...]:
        """Return the gaps that leave some configuration without an answer."""
        return self.coverage.blocking(Configurations.of(frame))

    def parameters(self, interval: float) -> pd.DataFrame:
        """Return name, value, lo, hi, unit, identified and remedy of each parameter."""
        resolved = self._resolved()
        remedies = {name: gap.remedy for gap in self.gaps for name in gap.parameters}
        rows = []
        for name, values in self._in_seconds().items():
            source = name.replace("bandwidth", "transfer")
            lo, hi = _ends(name, values, interval)
            is_open = source in remedies or not resolved[source]
            rows.append(
                {
                    "name": name,
                    "value": float(np.median(values)),
                    "lo": lo,
                    "hi": hi,
                    "unit": UNITS.get(name, "bytes/s"),
                    "identified": not is_open,
                    "remedy": (remedies.get(source) or _widen(source)) * is_open,
                }
            )
        return pd.DataFrame(rows)

    def identified_medians(self) -> np.ndarray:
        """Return the time parameters relative to the micro-step, NaN where open."""
        table = self.parameters(0.8).set_index("name")["identified"]
        known = [bool(table.get(name, False)) for name in NAMES[:NUM_TIMES]]
        medians = np.median(self._draws()[:, :NUM_TIMES], axis=0)
        return np.where(known, medians, np.nan)

    def _in_seconds(self) -> dict[str, np.ndarray]:
        """Return draws of the fitted parameters by name, in the user's units."""
        draws = dict(zip(NAMES, self._draws().T, strict=True))
        unit = self.points.time_unit_s
        draws["compute_per_sample"] = draws["compute_per_sample"] / (
            self.points.batch_unit ** draws["compute_exponent"]
        )
        fitted = {
            name: values * (unit if UNITS[name] == "s" else 1.0)
            for name, values in draws.items()
            if name in self.best.active
        }
        for tier in ("intra_node", "inter_node"):
            transfer = fitted.get(f"{tier}_transfer")
            if transfer is not None and np.isfinite(self.gradient_bytes):
                floor = np.maximum(transfer, 1e-12)
                fitted[f"{tier}_bandwidth"] = self.gradient_bytes / floor
        return fitted

    def _resolved(self) -> dict[str, bool]:
        """Tell for each parameter whether the points pin it down or bound it small."""
        per_step = self.points.at.features(self.best.form)
        largest = (per_step / np.exp(self.points.log_time)[:, None]).max(axis=0)
        resolved = {"compute_exponent": True}
        for name, values in zip(NAMES, self._draws().T, strict=True):
            lo, hi = _ends(name, values, 0.8)
            if name in NAMES[:NUM_TIMES]:
                share = hi * largest[NAMES.index(name)]
                resolved[name] = bool(hi < _WIDE * lo or share < _NEGLIGIBLE)
            elif name != "compute_exponent":
                resolved[name] = hi - lo < _WIDE_SHARE
        return resolved


def _weighed(points: Points, fits: list[Posterior]) -> tuple[FittedForm, ...]:
    """Weigh forms by likelihood, tempered: neighbouring points share their errors."""
    ranked = sorted(fits, key=lambda fit: -fit.log_likelihood)
    evidence = np.array([fit.log_likelihood for fit in ranked])
    weights = np.exp((evidence - evidence.max()) / np.sqrt(len(points)))
    weights /= weights.sum()
    return tuple(
        FittedForm(
            posterior=fit,
            residual=Residual.of(points, fit.form_error),
            weight=float(weight),
        )
        for fit, weight in zip(ranked, weights, strict=True)
    )


def _ends(name: str, draws: np.ndarray, interval: float) -> tuple[float, float]:
    if name.endswith("bandwidth"):
        lo, hi = shortest_positive(1 / draws, interval)
        return 1 / hi, 1 / lo if lo > 0 else float("inf")
    if name == "compute_exponent":
        lo, hi = (float(end) for end in central(draws, interval))
        return lo, hi
    return shortest_positive(draws, interval)


def _widen(parameter: str) -> str:
    if parameter == "overlap":
        return "Measure a smaller local batch at the largest allocation."
    if parameter.startswith("compute"):
        return "Measure a smaller and a larger local batch on one device."
    return "Measure more world sizes, with more repeats."


def _normals(columns: int) -> np.ndarray:
    """Return standard normal draws whose every column has exact quantiles."""
    rng = np.random.default_rng(SEED + 1)
    levels = ndtri((np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS)
    return np.column_stack([rng.permutation(levels) for _ in range(columns)])


def _root(covariance: np.ndarray) -> np.ndarray:
    """Return a square root of a covariance that may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
