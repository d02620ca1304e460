"""The prior of the node jump where several nodes were measured: usual, or any at all.

Links between nodes differ by factors of hundreds, so that the cost of a second node may
lie far from what is usual. Under one normal prior a far value is shared out among all
parameters that make it less improbable, such as that of *exactly two* nodes. Further
nodes would then seem nearly free.
"""

from __future__ import annotations

import numpy as np

from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.process import DiscrepancyProcess
from scalelab.laws.step_time.shape_fit import LogPosterior
from scalelab.laws.step_time.shape_prior import ShapePrior
from scalelab.laws.step_time.shapes import NODE_JUMP, Shape

# One machine in fifty has links unlike those of most; their jumps spread so much wider
_UNUSUAL, _WIDER = 0.02, 4.0
_MOST_STEPS, _NUM_FIT_STEPS = 8, 15
_ENOUGH = 1.1  # a smaller factor on the variance changes no prediction


def with_unusual_links(points: Points, prior: ShapePrior, shape: Shape) -> ShapePrior:
    """Return a prior whose node jump is wider where the points say that it is unusual.

    The node jump follows a mixture of two normals around one mean. The variance
    returned is that of the part which the points make probable, found by expectation
    maximisation; it never shrinks.

    Parameters
    ----------
    points
        The points of the curve. Where none is on several nodes, the prior stays.
    prior
        The normal prior of the shape on the curve.
    shape
        The shape.

    References
    ----------
    Tukey 1960, *A survey of sampling from contaminated distributions*.
    """
    if not points.at.crosses.any():
        return prior
    process = DiscrepancyProcess.of(points, prior.amplitude_mean, np.ones(len(points)))
    usual = variance = float(prior.covariance[NODE_JUMP, NODE_JUMP])
    parameters, found = prior.mean, prior
    for _ in range(_MOST_STEPS):
        target = LogPosterior.of(process, found, shape)
        parameters, _ = target.levenberg_marquardt(parameters, _NUM_FIT_STEPS)
        squared = float((parameters - prior.mean)[NODE_JUMP] ** 2) / usual
        wider = usual / _mean_precision(squared)
        if wider < _ENOUGH * variance:
            break
        found, variance = prior.widened(NODE_JUMP, wider), wider
    return found


def _mean_precision(squared: float) -> float:
    """Return the expected precision at a squared deviate, relative to the usual one."""
    usual = (1 - _UNUSUAL) * np.exp(-squared / 2)
    unusual = _UNUSUAL / _WIDER * np.exp(-squared / _WIDER**2 / 2)
    return float((usual + unusual / _WIDER**2) / (usual + unusual))
