"""One fitted curve: physics, leftover and form error joined into predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import ndtri

from scalelab.laws import physics, posterior
from scalelab.laws.interval import NUM_DRAWS, SEED, central, shortest_positive
from scalelab.laws.physics import NAMES, UNITS, Configurations, Terms
from scalelab.laws.points import Points
from scalelab.laws.posterior import Posterior
from scalelab.laws.prior import StepTimePrior
from scalelab.laws.residual import Residual
from scalelab.laws.support import Coverage, Gap

# log error of the form per doubling beyond the measured range: world size, local batch
_DRIFT = np.array([0.12, 0.1])
_WIDE = 4.0  # hi / lo beyond which a time parameter counts as open
_WIDE_OVERLAP = 0.5
_NEGLIGIBLE = 0.02  # of the step time: a term below it everywhere is known to be small


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The law fitted to one curve.

    Parameters
    ----------
    points, posterior, residual, coverage
        What it was fitted to, and the parts of the fit.
    gradient_bytes
        Bytes per gradient exchange where every row agrees, else NaN.
    """

    points: Points
    posterior: Posterior
    residual: Residual
    coverage: Coverage
    gradient_bytes: float

    @classmethod
    def fit(cls, frame: pd.DataFrame, prior: StepTimePrior) -> Curve:
        """Fit the rows of one curve, see :func:`step_time_rows`."""
        points = Points.of(frame)
        fitted = posterior.fit(points, prior)
        sizes = frame["gradient_bytes"].dropna().unique()
        return cls(
            points=points,
            posterior=fitted,
            residual=Residual.of(points, fitted.form_error),
            coverage=Coverage(at=Configurations.of(frame), informed=prior.informed),
            gradient_bytes=float(sizes[0]) if len(sizes) == 1 else float("nan"),
        )

    def support(self, frame: pd.DataFrame) -> np.ndarray:
        """Return what each prediction rests on, see :class:`Support`."""
        return self.coverage.support(Configurations.of(frame))

    def log_draws(self, frame: pd.DataFrame, *, joint: bool) -> np.ndarray:
        """Draw log step times in seconds, shape (n_draws, n_configurations).

        ``joint``: configurations err together where their errors are related, as needed
        to compare them; otherwise each column alone is right, which is much cheaper.
        """
        at = Configurations.of(frame, self.points.batch_unit)
        parameters = self.posterior.parameters
        fitted = np.log(physics.step_time_s(parameters, self.points.at))
        mean, variance = self.residual.condition(self.points.log_time - fitted, at)
        draws = np.log(physics.step_time_s(parameters, at)) + mean
        normals = _normals(len(at.world_size) + 2 if joint else 3)
        drift = self.coverage.distance(Configurations.of(frame)) * _DRIFT
        draws += normals[:, :2] @ drift.T
        if joint:
            root = _root(self.residual.covariance(at))
            draws += normals[:, 2:] @ root.T
        else:
            draws += normals[:, 2:3] * np.sqrt(variance)
        return np.asarray(draws + np.log(self.points.time_unit_s))

    def terms(self, frame: pd.DataFrame) -> Terms:
        """Split the step time into its parts, seconds, by draw and configuration."""
        at = Configurations.of(frame, self.points.batch_unit)
        parts = physics.terms(self.posterior.parameters, at)
        unit = self.points.time_unit_s
        return Terms(
            fixed=parts.fixed * unit,
            per_sample=parts.per_sample * unit,
            exposed_sync=parts.exposed_sync * unit,
        )

    @property
    def spread(self) -> float:
        """Standard deviation of log step time between repeats."""
        return self.points.spread

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What the measured configurations cannot determine."""
        return self.coverage.gaps()

    def parameters(self, interval: float) -> pd.DataFrame:
        """Return name, value, lo, hi, unit, identified and remedy of each parameter."""
        draws = self._in_seconds()
        resolved = self._resolved()
        remedies = {name: gap.remedy for gap in self.gaps for name in gap.parameters}
        rows = []
        for name, values in draws.items():
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
        known = [bool(table.get(name, False)) for name in NAMES[:6]]
        medians = np.median(self.posterior.parameters[:, :6], axis=0)
        return np.where(known, medians, np.nan)

    def _in_seconds(self) -> dict[str, np.ndarray]:
        """Return draws of the fitted parameters by name, in the user's units."""
        draws = dict(zip(NAMES, self.posterior.parameters.T, strict=True))
        unit = self.points.time_unit_s
        exponent = draws["compute_exponent"]
        draws["compute_per_sample"] = draws["compute_per_sample"] / (
            self.points.batch_unit**exponent
        )
        fitted = {
            name: values * (unit if UNITS[name] == "s" else 1.0)
            for name, values in draws.items()
            if name in self.posterior.active
        }
        for tier in ("intra_node", "inter_node"):
            transfer = fitted.get(f"{tier}_transfer")
            if transfer is not None and np.isfinite(self.gradient_bytes):
                floor = np.maximum(transfer, 1e-12)
                fitted[f"{tier}_bandwidth"] = self.gradient_bytes / floor
        return fitted

    def _largest_share(self) -> dict[str, float]:
        """Return the largest share of a step that one unit of a parameter makes."""
        at = self.points.at
        shortest = np.exp(self.points.log_time)
        across = at.num_nodes > 1
        factors = {
            "compute_fixed": at.accumulation,
            "compute_per_sample": at.accumulation * at.samples,
            "intra_node_latency": at.ring_messages * ~across,
            "intra_node_transfer": at.ring_volume * ~across,
            "inter_node_latency": at.ring_messages * across,
            "inter_node_transfer": at.ring_volume * across,
        }
        return {name: float((f / shortest).max()) for name, f in factors.items()}

    def _resolved(self) -> dict[str, bool]:
        """Tell for each parameter whether the points pin it down or bound it small."""
        share = self._largest_share()
        resolved = {"compute_exponent": True}
        for name, values in zip(NAMES, self.posterior.parameters.T, strict=True):
            lo, hi = _ends(name, values, 0.8)
            if name == "overlap":
                resolved[name] = hi - lo < _WIDE_OVERLAP
            elif name in share:
                resolved[name] = hi < _WIDE * lo or hi * share[name] < _NEGLIGIBLE
        return resolved


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
