"""The learning rate to train with at the recommended batch."""

from __future__ import annotations

import numpy as np
import pandas as pd

from scalelab.experiment.rates import LearningRateRule, scaled_rate
from scalelab.laws.rows import numbers
from scalelab.recommend.answer.recommendation import LearningRatePlan


def learning_rate(
    frame: pd.DataFrame, global_batch_size: int, rule: str = ""
) -> LearningRatePlan | None:
    """Return the learning rate at a batch: measured, or scaled by its rule.

    It is scaled from the measured rate at the nearest batch.
    """
    rate, batch = numbers(frame, "learning_rate"), numbers(frame, "global_batch_size")
    known = np.isfinite(rate) & (batch > 0)
    if not known.any() or "lr_rule" not in frame.columns:
        return None
    rules = frame["lr_rule"].fillna("none").astype(str)
    wanted = rule or str(rules[known].mode().iloc[0])
    same = known & (rules == wanted).to_numpy()
    if not same.any():
        return None
    distance = np.full(len(frame), np.inf)
    distance[same] = np.abs(np.log(batch[same] / global_batch_size))
    nearest = int(distance.argmin())
    is_of_staleness = wanted == LearningRateRule.STALENESS
    if is_of_staleness and len({*rate[same].tolist()}) > 1:
        return None
    value, at_batch = float(rate[nearest]), int(batch[nearest])
    if at_batch == global_batch_size:
        return LearningRatePlan(rule=wanted, value=value)
    if wanted not in list(LearningRateRule):
        return None
    scaled = scaled_rate(
        value,
        rule=LearningRateRule(wanted),
        at_batch=at_batch,
        global_batch_size=global_batch_size,
    )
    return LearningRatePlan(rule=wanted, value=scaled)
