"""The fit of one shape to one curve: its most probable parameters and uncertainty."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

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
_MAJORITY = 6  # points; among fewer, a curve may be rough from the first fit on
# A row that is wrong by a factor: its log probability, the factor on the variance of
# its point, how far it lies from the others, and how many there may be
_ODD_LOG, _ODD_FACTOR, _SURPRISING = np.log(0.1), 600.0, 2.5
_FEWEST_WITH_ODD, _POINTS_PER_ODD, _NUM_SUSPECTS = 3, 10, 4
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
    def fit(cls, process: DiscrepancyProcess, prior: ShapePrior, shape: Shape) -> Self:
        """Fit a shape to the points of a process."""
        target = LogPosterior(process, prior, shape)
        state = _highest(target)
        precision = target.precision_at(state)
        nodes = _along_share(target, state.parameters, np.linalg.inv(precision))
        information = precision - prior.precision

        return cls(
            parameters=state.parameters,
            evidence=Evidence(
                information=information,
                information_vector=information @ state.parameters
                + state.slopes.T @ state.weights,
                amplitudes=process.log_amplitudes,
            ).without(FEED),
            nodes=nodes,
            nodes_across=_along_jump(target, nodes),
            log_evidence=target.log_evidence(state),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Cost of a log posterior at some parameters, and its derivatives."""

    parameters: np.ndarray
    # Log measured over predicted
    residuals: np.ndarray
    slopes: np.ndarray
    weights: np.ndarray
    cost: float


@dataclass(frozen=True, slots=True)
class LogPosterior:
    """The posterior of a shape's parameters; a fit minimises its negative log."""

    process: DiscrepancyProcess
    prior: ShapePrior
    shape: Shape

    def state(self, parameters: np.ndarray) -> State:
        """Return cost, slopes and weights at some parameters."""
        predicted, slopes = log_time(parameters, self.process.points.at, self.shape)
        residuals = self.process.points.log_time - predicted
        weights = self.process.inverse @ residuals
        offset = parameters - self.prior.mean
        cost = residuals @ weights + offset @ self.prior.precision @ offset

        return State(
            parameters=parameters,
            residuals=residuals,
            slopes=slopes,
            weights=weights,
            cost=float(cost) / 2,
        )

    def errors(self, state: State) -> np.ndarray:
        """Return the log errors of the prior mean, linearised at a state."""
        moved = state.parameters - self.prior.mean
        return np.asarray(state.residuals + state.slopes @ moved)

    def precision_at(self, state: State) -> np.ndarray:
        """Return the inverse covariance of the parameters, linearised at a state."""
        information = state.slopes.T @ (self.process.inverse @ state.slopes)
        return np.asarray(information + self.prior.precision)

    def log_evidence(self, state: State) -> float:
        """Return the log probability of the points by Laplace's approximation."""
        precision = self.precision_at(state)
        volume = np.linalg.slogdet(self.prior.covariance @ precision)[1]
        return -state.cost - float(volume) / 2

    def levenberg_marquardt(
        self, parameters: np.ndarray, num_steps: int, fixed: int | None = None
    ) -> State:
        """Minimise the cost by Levenberg-Marquardt; one parameter may be fixed."""
        precision, damping = self.prior.precision, 1e-2
        state = self.state(parameters)
        for _ in range(num_steps):
            information_vector = state.slopes.T @ state.weights
            information_vector -= precision @ (state.parameters - self.prior.mean)

            curvature = self.precision_at(state)
            if fixed is not None:
                curvature[fixed, :] = curvature[:, fixed] = 0.0
                curvature[fixed, fixed], information_vector[fixed] = 1.0, 0.0

            for _ in range(6):
                damped = curvature + damping * np.diag(np.diag(curvature))
                step = np.linalg.solve(damped, information_vector)
                step = np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
                after = self.state(state.parameters + step)
                if after.cost < state.cost:
                    break
                damping *= 6
            else:
                break

            gain = state.cost - after.cost
            state, damping = after, max(damping / 8, 1e-8)
            if gain < _ENOUGH:
                break

        return state


def _highest(target: LogPosterior) -> State:
    quiet = target.prior.mean.copy()  # with little exchange
    quiet[EXCHANGE] -= 1.5
    quiet[FIXED_SHARE] += 1.0
    starts = (target.prior.mean, quiet)
    states = [target.levenberg_marquardt(start, _NEXT_STEPS) for start in starts]
    return max(states, key=target.log_evidence)


def log_evidence(process: DiscrepancyProcess, prior: ShapePrior, shape: Shape) -> float:
    """Return the log probability of the points of a process (Laplace)."""
    target = LogPosterior(process, prior, shape)
    return target.log_evidence(_highest(target))


def shared_process(
    points: Points, prior: ShapePrior, shape: Shape
) -> DiscrepancyProcess:
    """Fit the discrepancy of a curve with one shape; all shapes then share it."""
    factors = _odd_points(points, prior, shape)
    process = DiscrepancyProcess.of(points, prior.amplitude_mean, factors)
    state = LogPosterior(process, prior, shape).state(prior.mean)
    few = len(points) < _MAJORITY
    process, _ = process.tuned(state.residuals, state.slopes, prior, may_be_rough=few)
    target = LogPosterior(process, prior, shape)

    state = target.levenberg_marquardt(prior.mean, _FIRST_STEPS)
    for again in (False, True):
        errors, rough = target.errors(state), few or again
        process, _ = process.tuned(errors, state.slopes, prior, may_be_rough=rough)
        target = LogPosterior(process, prior, shape)
        state = target.levenberg_marquardt(state.parameters, _NEXT_STEPS)

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

        before = best

        for place in suspects:
            odd = np.where(np.arange(len(points)) == place, _ODD_FACTOR, factors)
            evidence, *left = _evidence(points, odd, prior, shape)
            evidence += points.num_repeats[place] * _ODD_LOG
            if evidence > best:
                best, (found, surprises, errors) = evidence, (odd, *left)

        if best == before:
            break

        factors = found

    return factors


def _evidence(
    points: Points, factors: np.ndarray, prior: ShapePrior, shape: Shape
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the log probability of the points, how surprising and how late each is."""
    process = DiscrepancyProcess.of(points, prior.amplitude_mean, factors)
    target = LogPosterior(process, prior, shape)
    state = target.levenberg_marquardt(prior.mean, _FIRST_STEPS)
    errors, slopes = target.errors(state), state.slopes
    _, evidence = process.tuned(errors, slopes, prior, may_be_rough=True)
    return evidence, process.surprises(errors, slopes, prior), state.residuals


def _along_jump(
    target: LogPosterior, nodes: tuple[LinearisedNode, ...]
) -> tuple[LinearisedNode, ...]:
    if target.process.points.at.crosses.any():
        return nodes
    found: list[LinearisedNode] = []
    for node in nodes:
        deviation = float(np.sqrt(node.covariance[NODE_JUMP, NODE_JUMP]))
        along = node.covariance[NODE_JUMP] / deviation
        steps = int(np.ceil(2 * _JUMP_REACH * deviation / _JUMP_STEP))
        count = max(steps, _LEAST_JUMPS)
        offsets = (np.arange(count) - (count - 1) / 2) * (2 * _JUMP_REACH / count)
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
        steps = 5 if offset else 0
        state = target.levenberg_marquardt(moved, steps, fixed=FIXED_SHARE)
        precision = target.precision_at(state)[np.ix_(free, free)]
        within = np.zeros_like(covariance)
        within[np.ix_(free, free)] = np.linalg.inv(precision)
        found.append(state.parameters)
        covariances.append(within)
        logs.append(-state.cost - float(np.linalg.slogdet(precision)[1]) / 2)

    shares = np.exp(np.array(logs) - max(logs)) * np.gradient(_ODDS_OFFSETS)
    shares /= shares.sum()
    kept = shares >= _LEAST_WEIGHT
    shares = shares[kept] / shares[kept].sum()
    return _nodes(target, np.array(found)[kept], np.array(covariances)[kept], shares)


def _nodes(
    target: LogPosterior,
    parameters: np.ndarray,
    covariances: Iterable[np.ndarray],
    shares: np.ndarray,
) -> tuple[LinearisedNode, ...]:
    """Return one part for each of n sets of parameters, shape (n, 14)."""
    points = target.process.points
    predicted, slopes = log_time(parameters, points.at, target.shape)
    weights = (target.process.inverse @ (points.log_time - predicted).T).T
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
