"""The default law on one curve: predictions, the parts of a step, its parameters.

The parameters of a shape are logarithms and exponents in the units of their curve. The
table gives them in physical units and alike for all shapes, with intervals over the
draws of all shapes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import counted
from scalelab.kinds.strategies import strategy_of
from scalelab.laws.interval import (
    NUM_DRAWS,
    SEED,
    central,
    normals,
    shortest_positive,
    substreams,
)
from scalelab.laws.rows import CONFIGURATION, CurveKey
from scalelab.laws.step_time.ensemble import Ensemble
from scalelab.laws.step_time.mixture import Mixture
from scalelab.laws.step_time.physics import NEVER, Configurations
from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.step_time.shapes import (
    BATCH_EXPONENT,
    CONTENTION,
    EXCHANGE,
    FEED,
    FIXED_SHARE,
    IMBALANCE,
    NUM_PARAMETERS,
    OVERLAP,
    SCALE,
    Shape,
    Terms,
    log_time,
)
from scalelab.laws.support import Coverage, Gap

# further log error of the first doubling of world size and of local batch beyond the
# measured range, calibrated on published curves of machines that were left out of the
# prior; each doubling of devices errs anew, so that their errors add up as squares do
_DRIFT, _DRIFT_POWER = np.array([0.06, 0.04]), np.array([0.5, 1.0])
# A cliff: from somewhere beyond the measured devices on, further devices gain nothing.
# Its chance for each doubling of devices; the same where all workers ask the same
# servers, or where the last measured doubling gave less than so many times the samples
# per second; and the chance that a doubted slow row of the most devices was right
_CLIFF, _LIKELY_CLIFF, _GAINED_LITTLE, _RIGHT_AFTER_ALL = 0.03, 0.1, 1.5, 0.3
_GAINLESS = float(np.log(2.0))  # log of what a doubling costs that gains nothing
# Where nothing says what the second node costs: the chance of a link slower than all
# published ones, and mean and variance of the log of how many times as long a step is
_SLOW_LINK, _SLOWER = 0.05, (1.6, 0.64)
# a row is doubted whose log time differs by so much, and either by so many deviations,
# or so that the fit has given its point so many times the variance of others
_DOUBTFUL, _FAR, _HARDLY_COUNTS = np.log(1.2), 4.0, 100.0
_MISTAKEN = np.log(2.0)  # what differs less may be true of its configuration after all
# How many draws a curve keeps, and of how many configurations each
_MOST_DRAWN, _MOST_CONFIGURATIONS = 8, 200


@dataclass(frozen=True, kw_only=True)
class FittedCurve(ABC):
    """A model of the step time along one curve, as a law fits it."""

    points: Points
    coverage: Coverage
    # The rows that lie far from what the law says of their configuration, with
    # ``predicted_s``
    doubted: pd.DataFrame
    _drawn: dict[tuple[bytes, bool], np.ndarray] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {counted(len(self.points.log_time), 'point')}>"
        )

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Parameters of the law that no measured configuration contains."""
        return ()

    @abstractmethod
    def mixture(self, frame: pd.DataFrame) -> Mixture:
        """Return the predictive distribution of log expected step times (s)."""

    @abstractmethod
    def log_draws(self, frame: pd.DataFrame) -> np.ndarray:
        """Draw log expected step times (s) jointly, (n_draws, n_configurations)."""

    def draws(self, frame: pd.DataFrame, one_run: bool) -> np.ndarray:
        """Draw step times (s), expected or of one run, (n_draws, n_configurations).

        Draws of few configurations are kept: several questions ask for the same.
        """
        asked = (frame.to_numpy().tobytes(), one_run)
        if (kept := self._drawn.get(asked)) is not None:
            return kept

        mixture, logs = self.mixture(frame), self.log_draws(frame)
        if one_run:
            scale, freedom = self.points.further_run(frame)
            mixture = mixture.of_one_run(scale, freedom)
            luck = substreams(SEED + 3, Configurations.of(frame).columns)
            logs = logs + scale * luck

        draws = np.asarray(np.exp(mixture.ranked(logs)))
        if len(frame) <= _MOST_CONFIGURATIONS:
            if len(self._drawn) >= _MOST_DRAWN:
                self._drawn.clear()
            self._drawn[asked] = draws
        return draws

    def terms(self, frame: pd.DataFrame) -> Terms | None:
        """Split expected step times into parts, seconds; None if the law has none."""
        return None

    def term_draws(self, frame: pd.DataFrame) -> Terms | None:
        """Draw the parts, seconds, (n_draws, n); None if the law has none."""
        return None

    @abstractmethod
    def parameters(self, interval: float) -> pd.DataFrame:
        """Return name, value, lo, hi, unit, identified and remedy of each parameter."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Curve(FittedCurve):
    """The default law fitted to one curve; ``ensemble`` holds the shapes."""

    ensemble: Ensemble
    # Chance of a cliff for each doubling of devices beyond the measured ones
    cliff: float
    # Chance of a link between nodes that is slower than all published ones
    slow_link: float

    @classmethod
    def fit(cls, key: CurveKey, frame: pd.DataFrame, prior: StepTimePrior) -> Self:
        """Fit the rows of one curve, see :attr:`~scalelab.laws.rows.FitRows.curves`."""
        points = Points.of(frame)
        informed = prior.determined_for(key)
        curve = cls(
            points=points,
            coverage=Coverage.of(frame, informed),
            ensemble=Ensemble.fit(points, prior.of_curve(key, points)),
            doubted=frame.iloc[:0],
            cliff=_chance_of_cliff(key, points),
            slow_link=_SLOW_LINK if prior.is_link_unknown(key, points) else 0.0,
        )

        doubted = curve._doubted(frame)
        # a further run may be like a row that was doubted, if it is not far off
        far = np.abs(np.log(doubted["step_time_s"] / doubted["predicted_s"]))
        like = far[far < _MISTAKEN]

        return replace(
            curve,
            points=points.deviating(doubted.loc[like.index], like.to_numpy(float)),
            coverage=Coverage.of(frame.drop(index=doubted.index), informed),
            doubted=doubted,
        )

    def mixture(self, frame: pd.DataFrame) -> Mixture:
        """Return the predictive distribution of log expected step times (s)."""
        at = Configurations.of(frame, self.points.batch_unit)
        drift = (self._drift(frame) ** 2).sum(axis=1)

        likely = self.ensemble.mixture(at).moved(np.log(self.points.time_unit_s), drift)
        if self.slow_link and at.crosses.any():
            likely = likely.with_tail(self.slow_link * at.crosses, *_SLOWER)

        doublings = np.log2(at.world_size / self.points.at.world_size.max())
        doublings = np.maximum(doublings, 0.0)
        if not doublings.any():
            return likely

        share, lost = 1 - (1 - self.cliff) ** doublings, _GAINLESS * doublings
        late = self._late_at_most()
        if late:
            share = np.where(doublings > 0, np.maximum(share, _RIGHT_AFTER_ALL), 0.0)

        # a cliff begins anywhere up to the asked devices
        return likely.with_tail(share, late + lost / 2, lost**2 / 12)

    def _late_at_most(self) -> float:
        """Return the log of how late a doubted row of the most devices is, else 0."""
        sizes = self.doubted["world_size"]
        last = self.doubted[sizes == self.points.at.world_size.max()]
        late = np.log(last["step_time_s"] / last["predicted_s"])
        return float(late.to_numpy().max(initial=0.0))

    def log_draws(self, frame: pd.DataFrame) -> np.ndarray:
        """Draw log expected step times (s) jointly, (n_draws, n_configurations)."""
        at = Configurations.of(frame, self.points.batch_unit)
        drawn = normals(SEED + 1, NUM_PARAMETERS + 2)
        draws = drawn[:, :2] @ self._drift(frame).T
        draws += self.ensemble.draws(at, drawn[:, 2:])
        return np.asarray(draws + np.log(self.points.time_unit_s))

    def _drift(self, frame: pd.DataFrame) -> np.ndarray:
        distance = self.coverage.distance(Configurations.of(frame))
        return np.asarray(_DRIFT * distance**_DRIFT_POWER)

    def terms(self, frame: pd.DataFrame) -> Terms:
        """Split the expected step time into its parts, seconds."""
        at = Configurations.of(frame, self.points.batch_unit)
        return Terms(*(self.points.time_unit_s * np.array(self.ensemble.terms(at))))

    def term_draws(self, frame: pd.DataFrame) -> Terms:
        """Draw the parts of the step time, seconds, (n_draws, n_configurations)."""
        at = Configurations.of(frame, self.points.batch_unit)
        drawn = self.ensemble.term_draws(at, normals(SEED, NUM_PARAMETERS))
        return Terms(*(self.points.time_unit_s * np.array(drawn)))

    def _doubted(self, rows: pd.DataFrame) -> pd.DataFrame:
        expected = self.mixture(rows)
        far = np.abs(np.log(rows["step_time_s"].to_numpy(float)) - expected.mean)
        usual = np.sqrt(expected.variance + self.points.scatter.spread**2)
        process = self.ensemble.process
        odd = {*process.points.at.take(process.factors >= _HARDLY_COUNTS).labels()}
        at = Configurations.of(rows, self.points.batch_unit)
        hardly_counts = np.array([label in odd for label in at.labels()])
        is_doubted = (far > _DOUBTFUL) & ((far > _FAR * usual) | hardly_counts)
        doubted: pd.DataFrame = rows.loc[is_doubted, [*CONFIGURATION, "step_time_s"]]
        return doubted.assign(predicted_s=np.exp(expected.mean[is_doubted]))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Parameters that no measured configuration contains."""
        return self.coverage.gaps()

    def parameters(self, interval: float) -> pd.DataFrame:
        """Return name, value, lo, hi, unit, identified and remedy of each parameter."""
        return parameter_table(self.ensemble, self.points, self.gaps, interval)


def _chance_of_cliff(key: CurveKey, points: Points) -> float:
    """Return the chance of a cliff for each doubling beyond the measured devices."""
    strategy = strategy_of(dict(key).get("parallelism"))
    if strategy.num_servers(2, {}):
        return _LIKELY_CLIFF

    at, gains = points.at, []
    steps = np.column_stack([at.samples, at.accumulation])
    for step in np.unique(steps, axis=0):
        alike = np.flatnonzero((steps == step).all(axis=1))
        sizes = np.unique(at.world_size[alike])[-2:]
        if sizes[-1] == at.world_size.max() and len(sizes) > 1:
            before, last = (
                points.log_time[alike][at.world_size[alike] == size].min()
                for size in sizes
            )
            gains.append(1 - (last - before) / np.log(sizes[1] / sizes[0]))

    is_little = len(gains) and np.median(gains) < np.log2(_GAINED_LITTLE)
    return _LIKELY_CLIFF if is_little else _CLIFF


UNITS = {
    "compute_fixed": "s",
    "compute_per_sample": "s",
    "compute_exponent": "1",
    "imbalance": "1",
    "contention": "1",
    "intra_node_exchange": "s",
    "inter_node_exchange": "s",
    "overlap": "1",
    "shared_feed": "samples/s",
}
"""Cost of a typical pass that no smaller batch saves; cost of one more sample; exponent
of the batch; waiting for the slowest device and, for each further device of a node,
contention, as shares of a pass; what an exchange adds to the smallest pass on one full
node, and what it adds more on two; how sharply an exchange hides behind computation,
from 0, not at all, to 1; what a source that all devices share passes."""
_WIDE = 4.0  # hi / lo beyond which a cost in seconds is not identified
_WIDE_SHARE = 0.25  # hi - lo beyond which a share is not identified
_NEGLIGIBLE = 0.02  # of a typical pass; a cost that is surely smaller is identified
_MIN_BATCHES, _MIN_BATCH_RANGE = 3, 4.0  # that tell the exponent of the batch
_REMEDIES = {
    "compute": "Measure a smaller and a larger local batch on one device.",
    "overlap": "Measure a smaller local batch at the largest allocation.",
}
_MORE_SIZES = "Measure more world sizes, with more repeats."


def parameter_table(
    ensemble: Ensemble,
    points: Points,
    gaps: Sequence[Gap],
    interval: float,
) -> pd.DataFrame:
    """Return name, value, lo, hi, unit, identified and remedy of each parameter."""
    draws = _draws(ensemble, points)
    remedies = {_part(name): gap.remedy for gap in gaps for name in gap.parameters}
    rows = []

    measured = _measured(points.at)
    for name, values in draws.items():
        if name not in measured:
            continue
        lo, hi = _ends(name, values, interval)
        is_open = _part(name) in remedies or not _is_resolved(name, values, points)
        remedy = remedies.get(_part(name), _REMEDIES.get(_part(name), _MORE_SIZES))
        rows.append(
            {
                "name": name,
                "value": float(np.median(values)),
                "lo": lo,
                "hi": hi,
                "unit": UNITS[name],
                "identified": not is_open,
                "remedy": remedy if is_open else "",
            }
        )

    return pd.DataFrame(rows)


def _draws(ensemble: Ensemble, points: Points) -> dict[str, np.ndarray]:
    normals = np.random.default_rng(SEED).standard_normal((NUM_DRAWS, NUM_PARAMETERS))
    drawn = ensemble.parameter_draws(normals)
    values = np.concatenate([*drawn.values()])
    share = 1 / (1 + np.exp(-values[:, FIXED_SHARE]))
    growing = values[:, BATCH_EXPONENT] * (1 - share)
    one_pass = np.exp(values[:, SCALE]) * points.time_unit_s
    exchange = np.concatenate(
        [_exchange_s(*drawn_term, points.at) for drawn_term in drawn.items()]
    )
    within, across = points.time_unit_s * exchange.T
    found = {
        "compute_fixed": one_pass * np.maximum(1 - growing, 0.0),
        "compute_per_sample": one_pass * growing / points.batch_unit,
        "compute_exponent": values[:, BATCH_EXPONENT],
        "imbalance": np.exp(values[:, IMBALANCE]),
        "contention": np.exp(values[:, CONTENTION]),
        "intra_node_exchange": within,
        "inter_node_exchange": across,
        "overlap": 1 / (1 + np.exp(-values[:, OVERLAP])),
    }

    fed = values[values[:, FEED] > NEVER / 2]
    if 2 * len(fed) > len(values):
        one_feed = np.exp(fed[:, SCALE] + fed[:, FEED]) * points.time_unit_s
        found["shared_feed"] = points.batch_unit / one_feed

    return found


def _exchange_s(shape: Shape, draws: np.ndarray, seen: Configurations) -> np.ndarray:
    """Return what an exchange adds on a full node, and more on two, (n_draws, 2)."""
    per_node = float(seen.per_node.max())
    at = Configurations(
        world_size=np.array([per_node, 2 * per_node]),
        num_nodes=np.array([1.0, 2.0]),
        samples=np.full(2, seen.samples.min()),
        accumulation=np.ones(2),
    )

    silent = draws.copy()
    silent[:, EXCHANGE] = NEVER
    whole, compute = (
        np.exp(log_time(draws_of, at, shape)[0]) for draws_of in (draws, silent)
    )
    added = whole - compute
    added[:, 1] -= added[:, 0]
    return np.asarray(np.maximum(added, 0.0))


def _measured(at: Configurations) -> frozenset[str]:
    batches = np.unique(at.samples)
    wide = batches[-1] >= _MIN_BATCH_RANGE * batches[0]
    depends = {
        "compute_per_sample": True,
        "compute_fixed": len(batches) > 1,
        "compute_exponent": len(batches) >= _MIN_BATCHES and wide,
        "imbalance": at.world_size.min() == 1 and at.world_size.max() > 1,
        "contention": at.per_node.min() < at.per_node.max(),
        "intra_node_exchange": bool(at.is_shared.any()),
        "inter_node_exchange": bool(at.crosses.any()),
        "overlap": bool((at.world_size > 1).any()),
        "shared_feed": True,
    }
    return frozenset(name for name, does in depends.items() if does)


def _part(name: str) -> str:
    parts = ("compute", "intra_node", "inter_node")
    return next((part for part in parts if name.startswith(part)), name)


def _ends(name: str, draws: np.ndarray, interval: float) -> tuple[float, float]:
    if name == "compute_exponent":
        lo, hi = (float(end) for end in central(draws, interval))
        return lo, hi
    return shortest_positive(draws, interval)


def _is_resolved(name: str, draws: np.ndarray, points: Points) -> bool:
    lo, hi = _ends(name, draws, 0.8)
    if UNITS[name] == "1":
        return hi - lo < _WIDE_SHARE
    return hi < _WIDE * lo or hi < _NEGLIGIBLE * points.time_unit_s
