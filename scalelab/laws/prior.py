"""What is believed about a curve before its own rows are seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

import numpy as np
import pandas as pd

from scalelab.laws.belief import Belief, Evidence, free_scale, informed
from scalelab.laws.ensemble import Ensemble
from scalelab.laws.physics import Configurations
from scalelab.laws.points import Points
from scalelab.laws.rows import CurveKey, split_curves, step_time_rows
from scalelab.laws.shapes import PARAMETERS, Shape
from scalelab.laws.support import Coverage

_SHIPPED = "data/step_time_prior.json"
_MACHINE = ("device_type", "device_name")
# of the variance of a parameter between curves, what belongs to the machine
SHARE_OF_MACHINE = {
    "batch_exponent": 0.2,
    "batch_sharpness": 0.2,
    "exchange": 0.2,
    "growth": 0.9,
    "node_jump": 0.97,
    "growth_per_node": 0.95,
    "growth_nodes": 0.95,
    "second_node": 0.98,
    "overlap": 0.4,
    "imbalance": 0.5,
    "contention": 0.6,
}
# ... and to the workload wherever it runs
_OF_WORKLOAD = {
    "fixed_share": 0.2,
    "batch_exponent": 0.4,
    "batch_sharpness": 0.2,
    "exchange": 0.4,
    "overlap": 0.2,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Relative:
    """A fitted curve that teaches about others.

    Parameters
    ----------
    key
        What is fixed along it.
    evidence
        What it says, by shape.
    tells_of
        Parameters, as :class:`scalelab.laws.support.Gap` names them, that its own
        configurations determine.
    """

    key: CurveKey
    evidence: Mapping[Shape, Evidence]
    tells_of: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimePrior:
    """Beliefs about any curve, and the related curves that sharpen them.

    Parameters
    ----------
    beliefs
        About any curve, by shape.
    relatives
        Curves of the same machines or workloads. A curve's own rows override them: a
        relative narrows a belief, no more than curves differ.
    """

    beliefs: Mapping[Shape, Belief]
    relatives: tuple[Relative, ...] = field(default=())

    @classmethod
    def shipped(cls) -> StepTimePrior:
        """Know what published measurements have in common.

        ``benchmarks/learn_prior.py`` wrote the coefficients.
        """
        return _shipped()

    @classmethod
    def learn(cls, observations: pd.DataFrame) -> StepTimePrior:
        """Learn from other curves, on top of what is shipped.

        Parameters
        ----------
        observations
            Rows of the observations frame, of other workloads on the same machine, of
            the same workload elsewhere, or both.
        """
        return cls.shipped().taught_by(observations)

    def taught_by(self, observations: pd.DataFrame) -> StepTimePrior:
        """Return the prior with these curves as relatives, see :meth:`learn`."""
        rows = step_time_rows(observations).frame
        relatives = tuple(
            _relative(key, frame, self.beliefs)
            for key, frame in split_curves(rows).items()
            if len(frame)
        )
        return replace(self, relatives=relatives)

    def about(self, key: CurveKey) -> Mapping[Shape, Belief]:
        """Return the beliefs about one curve, by shape."""
        elsewhere = self._related(key, ("workload",), but=_MACHINE)
        beside = self._related(key, _MACHINE)
        beliefs = {}
        for shape, belief in self.beliefs.items():
            for relatives, shares in (
                (elsewhere, _OF_WORKLOAD),
                (beside, SHARE_OF_MACHINE),
            ):
                told = [relative.evidence[shape] for relative in relatives]
                shared = np.array([shares.get(name, 0.0) for name in PARAMETERS])
                belief = informed(belief, told, shared)
            beliefs[shape] = belief
        return beliefs

    def told_about(self, key: CurveKey) -> frozenset[str]:
        """Return parameters that other curves of the same machine determine."""
        told = (relative.tells_of for relative in self._related(key, _MACHINE))
        return frozenset().union(*told)

    def _related(
        self, key: CurveKey, same: tuple[str, ...], but: tuple[str, ...] = ()
    ) -> list[Relative]:
        asked = dict(key)
        return [
            relative
            for relative in self.relatives
            if all(dict(relative.key).get(name) == asked.get(name) for name in same)
            and (
                not but
                or any(dict(relative.key).get(name) != asked.get(name) for name in but)
            )
        ]


def _relative(
    key: CurveKey, frame: pd.DataFrame, beliefs: Mapping[Shape, Belief]
) -> Relative:
    ensemble = Ensemble.fit(Points.of(frame), beliefs)
    coverage = Coverage(at=Configurations.of(frame), informed=frozenset())
    return Relative(
        key=key,
        evidence={
            shape: fit.evidence(ensemble.process)
            for shape, fit in ensemble.fits.items()
        },
        tells_of=coverage.determined(),
    )


@cache
def _shipped() -> StepTimePrior:
    text = files("scalelab.laws").joinpath(_SHIPPED).read_text(encoding="utf-8")
    return StepTimePrior(beliefs=beliefs_from(json.loads(text)["beliefs"]))


def beliefs_from(table: Mapping[str, Mapping[str, object]]) -> dict[Shape, Belief]:
    """Read beliefs as ``benchmarks/learn_prior.py`` writes them."""
    beliefs = {}
    for name, values in table.items():
        arrays = {key: np.array(value, dtype=float) for key, value in values.items()}
        spread = arrays["spread"]
        beliefs[Shape(name)] = Belief(
            mean=arrays["mean"],
            covariance=free_scale(arrays["correlation"] * np.outer(spread, spread)),
            amplitude_mean=arrays["amplitude_mean"],
            amplitude_spread=arrays["amplitude_spread"],
        )
    return beliefs
