"""The fit of one shape to one curve: its most probable parameters and uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.process import DiscrepancyProcess
from scalelab.laws.step_time.shape_prior import Evidence, ShapePrior
from scalelab.laws.step_time.shapes import (
    EXCHANGE,
    FEED,
    FIXED_SHARE,
    NODE_JUMP,
    NUM_PARAMETERS,
    Shape,
    log_time,
)

_LONGEST_STEP = 2.0
_FIRST_STEPS, _NEXT_STEPS = 15, 12
_ENOUGH = 1e-4
# If the fixed share is near one, or one batch was measured, the step time at other
# batches is far from linear in its log odds: they are integrated on a grid.
_WIDE_ODDS = 0.4
_ODDS_OFFSETS = np.array([-4.5, -2.5, -1.25, 0.0, 1.25, 2.5, 4.5])
_LEAST_WEIGHT = 0.02
_MAJORITY = 6  # points; among fewer, outliers are found by their evidence alone
# A row that is wrong by a factor: its log probability, the factor on the variance of
# its point, how far it lies from the others, and how many there may be
_ODD_LOG, _ODD_FACTOR, _SURPRISING = np.log(0.05), 3000.0, 4.0
_FEWEST_WITH_ODD, _POINTS_PER_ODD, _NUM_SUSPECTS = 4, 10, 4
# An unmeasured cost of the second node can make a step slower, but never faster than
# its computation: it is integrated in steps, up to so many deviations and of this width
_JUMP_REACH, _JUMP_STEP, _LEAST_JUMPS = 2.0, 0.8, 4


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearisedNode:
    """One normal part of a posterior: the log time is linear around its parameters."""

    # The shape that was fitted
    shape: Shape
    parameters: np.ndarray
    covariance: np.ndarray
    slopes: np.ndarray
    weights: np.ndarray
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeFit:
    """A shape fitted to a curve."""

    parameters: np.ndarray
    # What the points alone say of the parameters, for the prior of related curves.
    # Their feeds are their own.
    evidence: Evidence
    nodes: tuple[LinearisedNode, ...]
    # The same with more parts, for configurations on several nodes where no such
    # configuration was measured
    nodes_across: tuple[LinearisedNode, ...]
    # Log probability of the points (Laplace's approximation), up to a constant that is
    # the same for all shapes of one process
    log_evidence: float

    @classmethod
    def fit(
        cls, process: DiscrepancyProcess, prior: ShapePrior, shape: Shape
    ) -> ShapeFit:
        """Fit a shape to the points of a process."""
        target = LogPosterior(process, prior, shape)
        mode = _highest(target)
        parameters, state = mode.parameters, mode.state
        nodes = _along_share(target, parameters, np.linalg.inv(mode.precision))
        information = mode.precision - prior.precision
        return cls(
            parameters=parameters,
            evidence=Evidence(
                information=information,
                information_vector=information @ parameters
                + state.slopes.T @ state.weights,
                amplitudes=process.log_amplitudes,
            ).without(FEED),
            nodes=nodes,
            nodes_across=_along_jump(target, nodes),
            log_evidence=mode.log_evidence,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Cost and derivatives of a log posterior at some parameters."""

    cost: float
    slopes: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, slots=True)
class LogPosterior:
    """The posterior of a shape's parameters; a fit minimises its negative log."""

    process: DiscrepancyProcess
    prior: ShapePrior
    shape: Shape

    @property
    def points(self) -> Points:
        """The measured points."""
        return self.process.points

    def residuals(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log measured over predicted, and the slopes of the log prediction.

        For one set of parameters, shape (14,), or several, shape (n_sets, 14).
        """
        predicted, slopes = log_time(parameters, self.points.at, self.shape)
        return self.points.log_time - predicted, slopes

    def state(self, parameters: np.ndarray) -> State:
        """Return cost, slopes and weights at some parameters."""
        residuals, slopes = self.residuals(parameters)
        weights = self.process.solve(residuals)
        offset = parameters - self.prior.mean
        cost = residuals @ weights + offset @ self.prior.precision @ offset
        return State(cost=float(cost) / 2, slopes=slopes, weights=weights)

    def precision_at(self, state: State) -> np.ndarray:
        """Return the inverse covariance of the parameters, linearised at a state."""
        information = state.slopes.T @ self.process.solve(state.slopes)
        return np.asarray(information + self.prior.precision)

    def levenberg_marquardt(
        self, parameters: np.ndarray, num_steps: int, fixed: int | None = None
    ) -> tuple[np.ndarray, float]:
        """Minimise the cost by Levenberg-Marquardt steps; one parameter may be fixed.

        Returns
        -------
        parameters : ndarray, shape (14,)
        cost : float
        """
        precision, damping = self.prior.precision, 1e-2
        state = self.state(parameters)
        for _ in range(num_steps):
            information_vector = state.slopes.T @ state.weights
            information_vector -= precision @ (parameters - self.prior.mean)
            curvature = self.precision_at(state)
            if fixed is not None:
                curvature[fixed, :] = curvature[:, fixed] = 0.0
                curvature[fixed, fixed], information_vector[fixed] = 1.0, 0.0
            for _ in range(6):
                damped = curvature + damping * np.diag(np.diag(curvature))
                step = np.linalg.solve(damped, information_vector)
                tried = parameters + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
                after = self.state(tried)
                if after.cost < state.cost:
                    break
                damping *= 6
            else:
                break
            gain = state.cost - after.cost
            parameters, state, damping = tried, after, max(damping / 8, 1e-8)
            if gain < _ENOUGH:
                break
        return parameters, state.cost


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mode:
    """A maximum of a log posterior."""

    parameters: np.ndarray
    state: State
    precision: np.ndarray
    log_evidence: float

    @classmethod
    def of(cls, target: LogPosterior, start: np.ndarray) -> _Mode:
        """Climb to the maximum near some parameters."""
        parameters, _ = target.levenberg_marquardt(start, _NEXT_STEPS)
        state = target.state(parameters)
        precision = target.precision_at(state)
        volume = np.linalg.slogdet(target.prior.covariance @ precision)[1]
        return cls(
            parameters=parameters,
            state=state,
            precision=precision,
            log_evidence=-state.cost - float(volume) / 2,
        )


def _highest(target: LogPosterior) -> _Mode:
    modes = [_Mode.of(target, start) for start in _starts(target.prior)]
    return max(modes, key=lambda mode: mode.log_evidence)


def log_evidence(process: DiscrepancyProcess, prior: ShapePrior, shape: Shape) -> float:
    """Return the log probability of the points of a process (Laplace)."""
    return _highest(LogPosterior(process, prior, shape)).log_evidence


def _starts(prior: ShapePrior) -> tuple[np.ndarray, np.ndarray]:
    """Return two starting points: the prior mean, and one with little exchange."""
    quiet = prior.mean.copy()
    quiet[EXCHANGE] -= 1.5
    quiet[FIXED_SHARE] += 1.0
    return prior.mean.copy(), quiet


def shared_process(
    points: Points, prior: ShapePrior, shape: Shape
) -> DiscrepancyProcess:
    """Fit the discrepancy of a curve with one shape; all shapes then share it."""
    factors = _odd_points(points, prior, shape)
    process = DiscrepancyProcess.of(points, prior.amplitude_mean, factors)
    target = LogPosterior(process, prior, shape)
    residuals, slopes = target.residuals(prior.mean)
    few = len(points) < _MAJORITY
    process, _ = process.tuned(residuals, slopes, prior, may_be_rough=few)
    target = LogPosterior(process, prior, shape)
    fits = [target.levenberg_marquardt(start, _FIRST_STEPS) for start in _starts(prior)]
    parameters = min(fits, key=lambda fit: fit[1])[0]
    for again in (False, True):
        residuals, slopes = target.residuals(parameters)
        errors = residuals + slopes @ (parameters - prior.mean)
        process, _ = process.tuned(errors, slopes, prior, may_be_rough=few or again)
        if not few:
            process = process.reweighted(residuals)
        target = LogPosterior(process, prior, shape)
        parameters, _ = target.levenberg_marquardt(parameters, _NEXT_STEPS)
    return process


def _odd_points(points: Points, prior: ShapePrior, shape: Shape) -> np.ndarray:
    """Return factors on the variances of points, large where one was mismeasured.

    That a single row is wrong by a factor is weighed against a curve that is rough
    everywhere: whichever makes all rows more probable. Too slow and too fast count
    alike. The only point on several nodes, or devices, is never too slow.
    """
    factors = np.ones(len(points))
    if len(points) < _FEWEST_WITH_ODD:
        return factors
    best, surprises, errors = _evidence(points, factors, prior, shape)
    for _ in range(max(1, len(points) // _POINTS_PER_ODD)):
        likely = np.argsort(-surprises)[:_NUM_SUSPECTS]
        suspects = [
            place
            for place in likely
            if surprises[likely[0]] > _SURPRISING
            and factors[place] == 1
            and (errors[place] < 0 or not points.is_alone(place))
        ]
        tried = []
        for place in suspects:
            odd = np.where(np.arange(len(points)) == place, _ODD_FACTOR, factors)
            evidence, *left = _evidence(points, odd, prior, shape)
            unlikely = points.num_repeats[place] * _ODD_LOG
            tried.append((evidence + unlikely, odd, *left))
        if not tried:
            break
        found = max(tried, key=lambda each: each[0])
        if found[0] <= best:
            break
        best, factors, surprises, errors = found
    return factors


def _evidence(
    points: Points, factors: np.ndarray, prior: ShapePrior, shape: Shape
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the log probability of the points, how surprising and how late each is."""
    process = DiscrepancyProcess.of(points, prior.amplitude_mean, factors)
    target = LogPosterior(process, prior, shape)
    parameters, _ = target.levenberg_marquardt(prior.mean, _FIRST_STEPS)
    residuals, slopes = target.residuals(parameters)
    errors = residuals + slopes @ (parameters - prior.mean)
    _, evidence = process.tuned(errors, slopes, prior, may_be_rough=True)
    return evidence, process.surprises(errors, slopes, prior), residuals


def _along_jump(
    target: LogPosterior, nodes: tuple[LinearisedNode, ...]
) -> tuple[LinearisedNode, ...]:
    """Split parts along the cost of the second node, if no point measured it."""
    if target.points.at.crosses.any():
        return nodes
    found: list[LinearisedNode] = []
    for node in nodes:
        deviation = float(np.sqrt(node.covariance[NODE_JUMP, NODE_JUMP]))
        along = node.covariance[NODE_JUMP] / deviation
        count = max(
            int(np.ceil(2 * _JUMP_REACH * deviation / _JUMP_STEP)), _LEAST_JUMPS
        )
        step = 2 * _JUMP_REACH / count
        offsets = (np.arange(count) - (count - 1) / 2) * step
        shares = np.exp(-(offsets**2) / 2)
        shares /= shares.sum()
        left = 1 - float(shares @ offsets**2)
        within = node.covariance - (1 - left) * np.outer(along, along)
        moved = node.parameters + np.outer(offsets, along)
        if target.shape is not Shape.TIERS:
            # a ring across nodes has the links of one within a node, and slower ones
            moved[:, NODE_JUMP] = np.maximum(moved[:, NODE_JUMP], 0.0)
        found += _nodes(target, moved, [within] * count, node.share * shares)
    return tuple(found)


def _along_share(
    target: LogPosterior, parameters: np.ndarray, covariance: np.ndarray
) -> tuple[LinearisedNode, ...]:
    if covariance[FIXED_SHARE, FIXED_SHARE] < _WIDE_ODDS**2:
        return _nodes(target, parameters[None], [covariance], np.ones(1))
    free = np.arange(NUM_PARAMETERS) != FIXED_SHARE
    found, covariances, logs = [], [], []
    for offset in _ODDS_OFFSETS:
        moved = parameters.copy()
        moved[FIXED_SHARE] += offset
        if offset:
            moved, _ = target.levenberg_marquardt(moved, 5, fixed=FIXED_SHARE)
        state = target.state(moved)
        precision = target.precision_at(state)[np.ix_(free, free)]
        within = np.zeros_like(covariance)
        within[np.ix_(free, free)] = np.linalg.inv(precision)
        found.append(moved)
        covariances.append(within)
        logs.append(-state.cost - float(np.linalg.slogdet(precision)[1]) / 2)
    shares = np.exp(np.array(logs) - max(logs)) * np.gradient(_ODDS_OFFSETS)
    shares /= shares.sum()
    kept = np.flatnonzero(shares >= _LEAST_WEIGHT)
    return _nodes(
        target,
        np.array(found)[kept],
        [covariances[place] for place in kept],
        shares[kept] / shares[kept].sum(),
    )


def _nodes(
    target: LogPosterior,
    parameters: np.ndarray,
    covariances: Sequence[np.ndarray],
    shares: np.ndarray,
) -> tuple[LinearisedNode, ...]:
    """Return one part for each of n sets of parameters, shape (n, 14)."""
    residuals, slopes = target.residuals(parameters)
    weights = target.process.solve(residuals.T).T
    columns = zip(parameters, covariances, slopes, weights, shares, strict=True)
    return tuple(
        LinearisedNode(
            shape=target.shape,
            parameters=moved,
            covariance=covariance,
            slopes=slope,
            weights=weight,
            share=float(share),
        )
        for moved, covariance, slope, weight, share in columns
    )
