"""What is believed about a curve before its own rows are seen."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

import numpy as np
import pandas as pd

from scalelab.laws.rows import CurveKey, Observed, prepared
from scalelab.laws.step_time.ensemble import Ensemble
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.shape_prior import (
    Evidence,
    ShapePrior,
    free_scale,
    informed,
)
from scalelab.laws.step_time.shapes import PARAMETERS, Shape, in_batch_unit
from scalelab.laws.support import Coverage

_SHIPPED = "data/step_time_prior.json"
_MACHINE = ("device_type", "device_name", "node_group")
_MOST_RELATIVES = 24  # a longer history would cost more time than it can still teach
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
    "fixed_share": 0.6,
    "batch_exponent": 0.7,
    "batch_sharpness": 0.5,
    "exchange": 0.4,
    "overlap": 0.2,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedShape:
    """The parameters of a fitted shape, and what the points say about them."""

    parameters: np.ndarray
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Relative:
    """A fitted curve that teaches about others.

    Parameters
    ----------
    key
        What is fixed along it.
    batch_unit
        Samples in which its parameters count local batches.
    fits
        By shape.
    informs
        Parameters, as :class:`scalelab.laws.support.Gap` names them, that its own
        configurations determine.
    """

    key: CurveKey
    batch_unit: float
    fits: Mapping[Shape, FittedShape]
    informs: frozenset[str]

    def evidence_in(self, shape: Shape, batch_unit: float) -> Evidence:
        """Return what it says about its workload's parameters in another unit."""
        told = self.fits[shape]
        moved = in_batch_unit(told.parameters, batch_unit / self.batch_unit)
        change = told.evidence.information @ (moved - told.parameters)
        return replace(
            told.evidence, information_vector=told.evidence.information_vector + change
        )


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

    beliefs: Mapping[Shape, ShapePrior]
    relatives: tuple[Relative, ...] = field(default=())

    @classmethod
    def shipped(cls) -> StepTimePrior:
        """Know what published measurements have in common.

        ``benchmarks/learn_prior.py`` wrote the coefficients.
        """
        return _shipped()

    @classmethod
    def learn(cls, observations: Observed) -> StepTimePrior:
        """Learn from other curves, on top of what is shipped.

        Parameters
        ----------
        observations
            Rows of the observations frame, of other workloads on the same machine, of
            the same workload elsewhere, or both.
        """
        return cls.shipped().updated(prepared(observations).curves)

    def updated(
        self,
        curves: Mapping[CurveKey, pd.DataFrame],
        about: Collection[CurveKey] | None = None,
    ) -> StepTimePrior:
        """Return the prior with further curves as relatives, see :meth:`learn`.

        Parameters
        ----------
        curves
            Their rows, see :attr:`~scalelab.laws.rows.FitRows.curves`.
        about
            Keys of the curves that will be predicted: a curve that is related to none
            of them is not fitted. None: every curve is fitted.
        """
        related = {
            key: frame
            for key, frame in curves.items()
            if about is None or any(are_related(key, other) for other in about)
        }
        return self.with_relatives(self._relatives(related).values())

    def with_relatives(self, relatives: Iterable[Relative]) -> StepTimePrior:
        """Return the prior with further relatives."""
        return replace(self, relatives=(*self.relatives, *relatives))

    def for_each(
        self, curves: Mapping[CurveKey, pd.DataFrame]
    ) -> dict[CurveKey, StepTimePrior]:
        """Return the prior of each of several curves that teach one another.

        A curve learns from those that were measured on more nodes or devices than it
        was; those that share its gaps would repeat what it knows.

        Parameters
        ----------
        curves
            Their rows, see :attr:`~scalelab.laws.rows.FitRows.curves`.
        """
        reach = {
            key: tuple(frame[["num_nodes", "world_size"]].max())
            for key, frame in curves.items()
        }
        teachers = {
            key: [k for k in curves if reach[k] > reach[key] and are_related(k, key)]
            for key in curves
        }
        needed = {name for names in teachers.values() for name in names}
        known = self._relatives({key: curves[key] for key in curves if key in needed})
        return {
            key: self.with_relatives(known[name] for name in names if name in known)
            for key, names in teachers.items()
        }

    def _relatives(
        self, curves: Mapping[CurveKey, pd.DataFrame]
    ) -> dict[CurveKey, Relative]:
        """Fit the largest of some curves."""
        largest = sorted(curves, key=lambda key: -len(curves[key]))
        return {
            key: _relative(key, curves[key], self.beliefs)
            for key in largest[:_MOST_RELATIVES]
        }

    def about(self, key: CurveKey, batch_unit: float) -> Mapping[Shape, ShapePrior]:
        """Return the beliefs about one curve, by shape.

        Parameters
        ----------
        key
            What is fixed along it.
        batch_unit
            Samples in which its parameters count local batches.
        """
        same_work = [r for r in self.relatives if _is_same_work(r.key, key)]
        beside = [r for r in self.relatives if _on_same_machine(r.key, key)]
        beliefs = {}
        for shape, belief in self.beliefs.items():
            told = [r.evidence_in(shape, batch_unit) for r in same_work]
            belief = informed(belief, told, _shares(_OF_WORKLOAD))
            told = [r.fits[shape].evidence for r in beside]
            beliefs[shape] = informed(belief, told, _shares(SHARE_OF_MACHINE))
        return beliefs

    def determined_for(self, key: CurveKey) -> frozenset[str]:
        """Return parameters that other curves of the same machine determine."""
        told = (r.informs for r in self.relatives if _on_same_machine(r.key, key))
        return frozenset().union(*told)


def _on_same_machine(one: CurveKey, other: CurveKey) -> bool:
    """Say whether two curves exchange in one way on one machine."""
    mine, yours = dict(one), dict(other)
    same = (*_MACHINE, "parallelism")
    return _is_real(one, other) and all(mine.get(k) == yours.get(k) for k in same)


def _is_same_work(one: CurveKey, other: CurveKey) -> bool:
    """Say whether two curves are one workload, be it on two machines."""
    mine, yours = (
        {name: value for name, value in key if name not in _MACHINE}
        for key in (one, other)
    )
    return _is_real(one, other) and "workload" in mine and mine == yours


def _is_real(*keys: CurveKey) -> bool:
    """Say whether all were measured; an emulated curve declares its own machine."""
    return not any(dict(key).get("emulated") for key in keys)


def are_related(one: CurveKey, other: CurveKey) -> bool:
    """Say whether two curves teach about each other."""
    return _on_same_machine(one, other) or _is_same_work(one, other)


def _relative(
    key: CurveKey, frame: pd.DataFrame, beliefs: Mapping[Shape, ShapePrior]
) -> Relative:
    points = Points.of(frame)
    ensemble = Ensemble.fit(points, beliefs)
    coverage = Coverage(at=Configurations.of(frame), informed=frozenset())
    return Relative(
        key=key,
        batch_unit=points.batch_unit,
        fits={
            shape: FittedShape(
                parameters=fit.parameters, evidence=fit.evidence(ensemble.process)
            )
            for shape, fit in ensemble.fits.items()
        },
        informs=coverage.determined(),
    )


def _shares(by_name: Mapping[str, float]) -> np.ndarray:
    return np.array([by_name.get(name, 0.0) for name in PARAMETERS])


@cache
def _shipped() -> StepTimePrior:
    text = (
        files("scalelab.laws.step_time").joinpath(_SHIPPED).read_text(encoding="utf-8")
    )
    return StepTimePrior(beliefs=beliefs_from(json.loads(text)["beliefs"]))


def beliefs_from(table: Mapping[str, Mapping[str, object]]) -> dict[Shape, ShapePrior]:
    """Read beliefs as ``benchmarks/learn_prior.py`` writes them."""
    beliefs = {}
    for name, values in table.items():
        arrays = {key: np.array(value, dtype=float) for key, value in values.items()}
        spread = arrays["spread"]
        beliefs[Shape(name)] = ShapePrior(
            mean=arrays["mean"],
            covariance=free_scale(arrays["correlation"] * np.outer(spread, spread)),
            amplitude_mean=arrays["amplitude_mean"],
            amplitude_spread=arrays["amplitude_spread"],
        )
    return beliefs
