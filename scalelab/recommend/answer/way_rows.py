"""The ways to train as plain values, a row for each; see ``recommend.ways``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalelab.inputs.document import Scalar

BASELINE = (
    "one process at the same number of samples, the same global batch and the same seed"
)
"""What an accuracy gap is against, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The mean of some runs, the least and the largest, and how many they are."""

    mean: float
    lo: float
    hi: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WayRow:
    """One way to train, as it was measured on so many devices.

    Parameters
    ----------
    step_time_s
        Median of the throughput trials; None where no step time is fit.
    time_to_target_s, num_reached, num_evaluated
        Median of the runs that reached their target, how many these are, and how many
        were evaluated.
    accuracy_gap
        See :func:`scalelab.recommend.ways.with_accuracy_gaps`; over the pairs.
    """

    parallelism: str
    settings: Mapping[str, Scalar]
    world_size: int
    global_batch_size: int
    step_time_s: float | None
    time_to_target_s: float | None
    num_reached: int
    num_evaluated: int
    final_metric: Spread | None
    accuracy_gap: Spread | None
    staleness_mean: float | None
    staleness_max: int | None
    averaging_period: int | None
    bubble_share: float | None
    num_servers: int | None


def side_by_side(rows: Sequence[WayRow]) -> tuple[WayRow, ...]:
    """Return the rows of the one number of devices with most ways, several if they can.

    Of several such numbers it is the largest.
    """
    by_size: dict[int, list[WayRow]] = {}
    for row in rows:
        by_size.setdefault(row.world_size, []).append(row)
    compared = {size: found for size, found in by_size.items() if len(found) > 1}
    # On one device all ways are the plain model.
    most = max(
        compared, key=lambda size: (size > 1, len(compared[size]), size), default=0
    )
    return tuple(compared.get(most, ()))
