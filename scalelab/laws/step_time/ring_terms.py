"""The physical parts of a step on one curve, from ring all-reduce formulas.

Predictions do not come from here but from :mod:`~scalelab.laws.step_time.ensemble`,
whose parameters have no physical units. The parts of a step, in seconds, and bandwidths
come from the two ring formulas of :mod:`scalelab.laws.step_time.physics`, weighed by
how well each fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from scalelab.laws.interval import NUM_DRAWS, central, shortest_positive
from scalelab.laws.step_time import physics, posterior
from scalelab.laws.step_time.physics import (
    NAMES,
    NUM_TIMES,
    UNITS,
    Configurations,
    ExchangeForm,
    Terms,
)
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.posterior import RingPosterior
from scalelab.laws.support import Gap

_WIDE = 4.0  # hi / lo beyond which a time parameter is not identified
_WIDE_SHARE = 0.25  # hi - lo beyond which a parameter in [0, 1] is not identified
_NEGLIGIBLE = 0.02  # of the step time; a term that is smaller everywhere is identified


@dataclass(frozen=True, kw_only=True, slots=True)
class RingTerms:
    """Draws of the parameters of both ring formulas.

    Parameters
    ----------
    points
        The points to which they were fitted.
    posteriors
        The posterior of each ring, the better fitting one first.
    weights
        Weights of the rings; they add up to 1.
    """

    points: Points
    posteriors: tuple[RingPosterior, ...]
    weights: tuple[float, ...]

    @classmethod
    def fit(cls, points: Points) -> RingTerms:
        """Draw the parameters of both rings and weigh the rings by likelihood.

        The weights are tempered, because neighbouring points share their errors.
        """
        fits = [posterior.fit(points, form) for form in ExchangeForm]
        ranked = sorted(fits, key=lambda fit: -fit.log_likelihood)
        evidence = np.array([fit.log_likelihood for fit in ranked])
        weights = np.exp((evidence - evidence.max()) / np.sqrt(len(points)))
        weights /= weights.sum()
        return cls(
            points=points, posteriors=tuple(ranked), weights=tuple(weights.tolist())
        )

    @property
    def best(self) -> RingPosterior:
        """The ring that fits better."""
        return self.posteriors[0]

    def split(self, at: Configurations) -> Terms:
        """Split step times into parts, seconds, by draw and configuration."""
        parts = []
        for ring, share in self._shares():
            scaled = ring.parameters[share].copy()
            scaled[:, :NUM_TIMES] *= self.points.time_unit_s
            parts.append(physics.terms(scaled, at, ring.form))
        return physics.joined(parts)

    def table(
        self, interval: float, gaps: Sequence[Gap], gradient_bytes: float
    ) -> pd.DataFrame:
        """Return name, value, lo, hi, unit, identified and remedy of each parameter."""
        resolved = self._resolved()
        remedies = {name: gap.remedy for gap in gaps for name in gap.parameters}
        rows = []
        for name, values in self._in_seconds(gradient_bytes).items():
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

    def _shares(self) -> list[tuple[RingPosterior, slice]]:
        """Return each ring with the slice of draws that its weight gives it."""
        ends = np.cumsum([0.0, *self.weights]) * NUM_DRAWS
        bounds = np.round(ends).astype(int).tolist()
        slices = [slice(*ends) for ends in itertools.pairwise(bounds)]
        pairs = zip(self.posteriors, slices, strict=True)
        return [(ring, share) for ring, share in pairs if share.stop > share.start]

    def _draws(self) -> np.ndarray:
        """Return the parameters of both rings by weight, shape (n_draws, 9)."""
        return np.concatenate([ring.parameters[part] for ring, part in self._shares()])

    def _in_seconds(self, gradient_bytes: float) -> dict[str, np.ndarray]:
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
            if transfer is not None and np.isfinite(gradient_bytes):
                floor = np.maximum(transfer, 1e-12)
                fitted[f"{tier}_bandwidth"] = gradient_bytes / floor
        return fitted

    def _resolved(self) -> dict[str, bool]:
        """Tell whether the points determine each parameter, or that it is small."""
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
