"""A source that all devices share, such as storage, told from what was measured.

It passes only so many samples per second, however many devices ask for them. On most
machines it is never met, so that a curve has none unless its rows show one: a step that
grows with the samples of all devices, which no exchange of gradients does.
"""

from __future__ import annotations

import numpy as np

from scalelab.laws.step_time.points import Points
from scalelab.laws.step_time.process import DiscrepancyProcess
from scalelab.laws.step_time.shape_fit import log_evidence
from scalelab.laws.step_time.shape_prior import ShapePrior
from scalelab.laws.step_time.shapes import FEED, Shape

# One machine in fifty is limited by its feed within the measured allocations; the
# largest of them is then about where the limit begins, within a factor of three
_LOG_ODDS, _SPREAD = float(np.log(0.02 / 0.98)), 1.0


def with_shared_feed(points: Points, prior: ShapePrior, shape: Shape) -> ShapePrior:
    """Return the prior with a feed that all devices share, if the points show one.

    Parameters
    ----------
    prior
        The normal prior of the shape on the curve, without such a feed.
    shape
        The shape.
    """
    if not _has_batches(points):
        return prior
    most = float(points.at.log_samples_of_all.max())
    fed = prior.believing(FEED, -most, _SPREAD)
    process = DiscrepancyProcess.of(points, prior.amplitude_mean)
    gain = log_evidence(process, fed, shape) - log_evidence(process, prior, shape)
    return fed if _LOG_ODDS + gain > 0 else prior


def _has_batches(points: Points) -> bool:
    """Whether an allocation of several devices was measured at several batches."""
    at = points.at.take(np.flatnonzero(points.at.is_parallel))
    devices = np.column_stack([at.world_size, at.num_nodes])
    steps = np.column_stack([devices, at.log_samples_of_all])
    return len(np.unique(devices, axis=0)) < len(np.unique(steps, axis=0))
