"""Learning-rate rules: scaling with the global batch or staleness, and warm-up."""

from __future__ import annotations

import math
from enum import StrEnum

from scalelab.experiment.trial import LearningRate


class LearningRateRule(StrEnum):
    """How the learning rate scales with the global batch, or with staleness.

    References
    ----------
    ``linear``: P. Goyal et al. (2017), Accurate, Large Minibatch SGD, section 2.1.
    ``sqrt``: A. Krizhevsky (2014), One weird trick, section 5; E. Hoffer et al. (2017),
    Train longer, generalize better, section 4. ``staleness``: S. Gupta, W. Zhang,
    F. Wang (2016), Model Accuracy and Runtime Tradeoff in Distributed Deep Learning:
    the rate is divided by the mean staleness of gradients.
    """

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"
    STALENESS = "staleness"

    @property
    def scales_with_batch(self) -> bool:
        """Whether it needs the batch that the rate was tuned at."""
        return self in (LearningRateRule.LINEAR, LearningRateRule.SQRT)


def scaled_rate(
    base: float,
    *,
    rule: LearningRateRule,
    at_batch: int,
    global_batch_size: int,
    steps_in_flight: int = 1,
) -> float:
    """Return the learning rate for a global batch.

    With ``k = global_batch_size / at_batch``: ``base`` (none), ``k base`` (linear),
    ``sqrt(k) base`` (sqrt); ``base / steps_in_flight`` (staleness).

    References
    ----------
    See :class:`LearningRateRule`. Linear scaling was found to hold up to about 8k
    samples on ImageNet (Goyal et al. 2017, figure 1) and fails beyond.

    >>> scaled_rate(0.1, rule=LearningRateRule.LINEAR, at_batch=256,
    ...             global_batch_size=1024)
    0.4
    """
    ratio = global_batch_size / at_batch
    if rule is LearningRateRule.STALENESS:
        return base / steps_in_flight
    if rule is LearningRateRule.LINEAR:
        return base * ratio
    return base * math.sqrt(ratio) if rule is LearningRateRule.SQRT else base


def learning_rate_at(rate: LearningRate, samples: float) -> float:
    """Return the learning rate of the step that ends at this many samples.

    It rises linearly from 0 to ``rate.value`` over ``rate.warmup_samples`` and stays
    there.

    References
    ----------
    P. Goyal et al. (2017), section 2.2, gradual warm-up; there from the base rate.
    """
    if samples >= rate.warmup_samples:
        return rate.value
    return rate.value * samples / rate.warmup_samples
