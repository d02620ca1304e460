"""The prior of a curve: the stated one, informed by related curves."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pandas as pd

from scalelab.inputs.links import Link
from scalelab.laws.rows import CurveKey, Observed, prepared
from scalelab.laws.step_time.ensemble import Ensemble, with_unmeasured_link
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.shape_fit import ShapeFit
from scalelab.laws.step_time.shape_prior import (
    Evidence,
    ShapePrior,
    informed,
    stated_priors,
)
from scalelab.laws.step_time.shapes import (
    EXCHANGE,
    NODE_JUMP,
    NUM_PARAMETERS,
    PARAMETERS,
    Shape,
    in_batch_unit,
)
from scalelab.laws.support import Coverage

_MACHINE = ("device_type", "device_name", "node_group")
INTER_NODE = "inter_node_latency"
_MOST_RELATIVES = 24  # further ones would cost time and hardly change the prior
# share of a parameter's variance between curves that belongs to the machine
_OF_MACHINE = {
    "batch_exponent": 0.2,
    "batch_sharpness": 0.2,
    "exchange": 0.5,
    "growth": 0.9,
    "growth_per_node": 0.95,
    "growth_nodes": 0.95,
    "second_node": 0.98,
    "overlap": 0.4,
    "imbalance": 0.5,
    "contention": 0.6,
}
# The node jump of a machine may be any, and that of a workload differs from it by so
# much, which no number of relatives settles: another one hides more of its exchange, or
# exchanges in other pieces. Standard deviations.
_JUMP_OF_MACHINE, _JUMP_OF_WORKLOAD = 2.0, 0.35
# ... of the exchange where the bytes of both curves are known: links are the machine's
_SHARE_OF_KNOWN_EXCHANGE = 0.7
# ... and share that belongs to the workload, on whichever machine it runs
_OF_WORKLOAD = {
    "fixed_share": 0.6,
    "batch_exponent": 0.7,
    "batch_sharpness": 0.5,
    "exchange": 0.4,
    "overlap": 0.2,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Relative:
    """A fitted curve of the same machine or workload, which informs a prior."""

    key: CurveKey
    points: Points
    fits: Mapping[Shape, ShapeFit]
    # Parameters that its own configurations determine, named as in Gap.
    informs: frozenset[str]

    def exchange_at(self, shape: Shape, log_rate: float) -> Evidence:
        """Return the evidence, the exchange scaled with the bytes if they are known.

        ``log_rate`` is that of the informed curve, see :attr:`Points.log_rate`.
        """
        more, change = log_rate - self.points.log_rate, np.zeros(NUM_PARAMETERS)
        change[EXCHANGE] = more if np.isfinite(more) else 0.0
        return self.fits[shape].evidence.moved(change)

    def evidence_in(self, shape: Shape, batch_unit: float) -> Evidence:
        """Return the evidence about a shape's parameters, in another batch unit."""
        fit = self.fits[shape]
        moved = in_batch_unit(fit.parameters, batch_unit / self.points.batch_unit)
        return fit.evidence.moved(moved - fit.parameters)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimePrior:
    """The prior of the step-time law, and the related curves that inform it.

    Parameters
    ----------
    priors
        For each shape, the prior of its parameters on any curve.
    relatives
        Fitted curves of the same machines or workloads. A relative narrows the prior of
        a curve only as far as curves of one machine or workload are alike.
    link
        The stated link between nodes; None: any. It only counts where no row, and no
        relative on the same machine, is on several nodes.
    """

    priors: Mapping[Shape, ShapePrior]
    relatives: tuple[Relative, ...] = field(default=())
    link: Link | None = None

    @classmethod
    def shipped(cls) -> Self:
        """Return the prior that knows no other curve."""
        return cls(priors=stated_priors())

    @classmethod
    def learn(cls, observations: Observed) -> Self:
        """Return the shipped prior with other curves as relatives."""
        return cls.shipped().updated(prepared(observations).curves)

    def updated(
        self,
        curves: Mapping[CurveKey, pd.DataFrame],
        about: Collection[CurveKey] | None = None,
    ) -> Self:
        """Return the prior with further curves as relatives, see :meth:`learn`."""
        related = {
            key: frame
            for key, frame in curves.items()
            if about is None or any(are_related(key, other) for other in about)
        }
        found = self._relatives(related).values()
        return replace(self, relatives=(*self.relatives, *found))

    def with_links(self, between_nodes: Link | None) -> Self:
        """Return the prior for nodes that a stated link joins."""
        return replace(self, link=between_nodes)

    def for_each(self, curves: Mapping[CurveKey, pd.DataFrame]) -> dict[CurveKey, Self]:
        """Return the prior of each of several curves that inform one another.

        A curve is informed by related curves that were measured on more nodes or
        devices; curves with the same gaps would only repeat what it knows.
        """
        reach = {
            key: tuple(frame[["num_nodes", "world_size"]].max())
            for key, frame in curves.items()
        }
        sources = {
            key: [k for k in curves if reach[k] > reach[key] and are_related(k, key)]
            for key in curves
        }
        needed = {name for names in sources.values() for name in names}
        known = self._relatives({key: curves[key] for key in curves if key in needed})

        return {
            key: replace(
                self,
                relatives=(*self.relatives, *(known[n] for n in names if n in known)),
            )
            for key, names in sources.items()
        }

    def _relatives(
        self, curves: Mapping[CurveKey, pd.DataFrame]
    ) -> dict[CurveKey, Relative]:
        largest = sorted(curves, key=lambda key: -len(curves[key]))
        found = {}
        for key in largest[:_MOST_RELATIVES]:
            points = Points.of(curves[key])
            found[key] = Relative(
                key=key,
                points=points,
                fits=Ensemble.fit(points, self.priors).fits,
                informs=Coverage.of(curves[key], frozenset()).determined(),
            )

        return found

    def of_curve(self, key: CurveKey, points: Points) -> Mapping[Shape, ShapePrior]:
        """Return the prior of each shape for a curve whose points are known."""
        priors = self.about(key, points.batch_unit, points.log_rate)
        if self._is_crossing_known(key, points):
            return priors
        return with_unmeasured_link(priors, points, self.link)

    def is_link_unknown(self, key: CurveKey, points: Points) -> bool:
        """Tell whether nothing says what the second node costs."""
        return self.link is None and not self._is_crossing_known(key, points)

    def _is_crossing_known(self, key: CurveKey, points: Points) -> bool:
        return bool(points.at.crosses.any()) or INTER_NODE in self.determined_for(key)

    def about(
        self, key: CurveKey, batch_unit: float, log_rate: float = float("nan")
    ) -> Mapping[Shape, ShapePrior]:
        """Return the prior of each shape for one curve, as its relatives inform it."""
        same_work = [r for r in self.relatives if _is_same_work(r.key, key)]
        same_machine = [r for r in self.relatives if _on_same_machine(r.key, key)]

        priors = {}
        for shape, prior in self.priors.items():
            evidence = [r.evidence_in(shape, batch_unit) for r in same_work]
            prior = informed(prior, evidence, _shares(_OF_WORKLOAD))
            evidence = [r.exchange_at(shape, log_rate) for r in same_machine]

            shares = _shares(_OF_MACHINE)
            if any(INTER_NODE in r.informs for r in same_machine):
                variances = _JUMP_OF_MACHINE**2, _JUMP_OF_WORKLOAD**2
                prior = prior.widened(NODE_JUMP, sum(variances))
                shares[NODE_JUMP] = variances[0] / sum(variances)

            if all(np.isfinite(log_rate - r.points.log_rate) for r in same_machine):
                shares[EXCHANGE] = _SHARE_OF_KNOWN_EXCHANGE

            priors[shape] = informed(prior, evidence, shares)

        return priors

    def determined_for(self, key: CurveKey) -> frozenset[str]:
        """Return the parameters that other curves of the same machine determine."""
        known = (r.informs for r in self.relatives if _on_same_machine(r.key, key))
        return frozenset().union(*known)


def _on_same_machine(one: CurveKey, other: CurveKey) -> bool:
    same, mine, yours = (*_MACHINE, "parallelism"), dict(one), dict(other)
    return _are_measured(one, other) and all(mine.get(k) == yours.get(k) for k in same)


def _is_same_work(one: CurveKey, other: CurveKey) -> bool:
    mine, yours = (
        {name: value for name, value in key if name not in _MACHINE}
        for key in (one, other)
    )
    return _are_measured(one, other) and "workload" in mine and mine == yours


def _are_measured(*keys: CurveKey) -> bool:
    # an emulated curve declares its own machine
    return not any(dict(key).get("emulated") for key in keys)


def are_related(one: CurveKey, other: CurveKey) -> bool:
    """Tell whether a curve may inform the prior of another one."""
    return _on_same_machine(one, other) or _is_same_work(one, other)


def _shares(by_name: Mapping[str, float]) -> np.ndarray:
    return np.array([by_name.get(name, 0.0) for name in PARAMETERS])
