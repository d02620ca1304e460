"""Links that are unlike those of most machines, told from what was measured on them.

Links differ by factors of hundreds, so that an exchange may cost far more than is
usual. Under one normal prior a far value is shared out among all parameters that make
it less improbable, such as that of *exactly two* nodes, or it is taken for scatter.
More nodes or devices would then seem nearly free.
"""

from __future__ import annotations

import numpy as np

from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.process import DiscrepancyProcess
from scalelab.laws.step_time.shape_fit import log_evidence
from scalelab.laws.step_time.shape_prior import ShapePrior
from scalelab.laws.step_time.shapes import EXCHANGE, NODE_JUMP, Shape

# One machine in fifty has unusual links, whose costs spread four times as wide
_LOG_ODDS, _WIDER = float(np.log(0.02 / 0.98)), 4.0


def with_unusual_links(points: Points, prior: ShapePrior, shape: Shape) -> ShapePrior:
    """Return the prior, wider for the links that the points show to be unusual.

    Parameters
    ----------
    prior
        The normal prior of the shape on the curve.
    shape
        The shape.
    """
    process = DiscrepancyProcess.of(points, prior.amplitude_mean)
    is_told = {EXCHANGE: points.at.is_parallel, NODE_JUMP: points.at.crosses}
    best, most = prior, log_evidence(process, prior, shape)
    for parameter in (each for each, where in is_told.items() if where.any()):
        variance = _WIDER**2 * prior.covariance[parameter, parameter]
        wider = prior.widened(parameter, float(variance))
        probable = _LOG_ODDS + log_evidence(process, wider, shape)
        if probable > most:
            best, most = wider, probable
    return best
