"""Interval of a mean step time, by block bootstrap; when a trial ends; later steps."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from scalelab.experiment.trial import Measurement
from scalelab.plan.first_check import AT_LEAST, AT_MOST, UNEXPLAINED
from scalelab.records.columns import FIRST_EPOCH, PAUSES

# A trial whose step times have not settled goes on for so many times its steps, unless
# its steps have taken so long.
MOST_TIMES_ITS_STEPS = 10
SETTLES_WITHIN_S = 120.0

NUM_RESAMPLES = 1000
MIN_STEPS = 20  # fewer are never called steady
# Halves of a trial's step times that differ by less are usual on a shared machine.
_MATERIAL = 0.05
# A step that takes so many times as long as usual is a pause of the steps.
_PAUSE = 3.0
# Pauses are evenly apart where their distances differ by less.
_UNEVEN = 0.1

_QUANTILE_975 = 1.959963984540054


def mean_interval(
    step_times_s: npt.NDArray[np.float64], *, seed: int = 0
) -> tuple[float, float]:
    """Return the 95% interval of the mean step time, by circular block bootstrap.

    Step times are autocorrelated: a disturbance lasts longer than one step. Blocks of
    about ``sqrt(n)`` steps are drawn with replacement from the series closed to a
    circle, and the spread of their means is widened by ``sqrt(m / (m - 1))`` and by the
    ratio of Student's to the normal quantile for the ``m`` blocks of a resample,
    without which short series give intervals that are too narrow. See Politis and
    Romano 1992, "A circular block-resampling procedure for stationary data".

    ``step_times_s`` has shape (n_steps,), seconds in order without the warm-up; for
    fewer than 4 steps both ends are nan.

    >>> lo, hi = mean_interval(np.array([1.0, 1.1, 0.9, 1.0] * 10))
    >>> bool(0.95 < lo < 1.0 < hi < 1.05)
    True
    """
    n = len(step_times_s)
    if n < 4:
        return float("nan"), float("nan")

    block = round(np.sqrt(n))
    m = -(-n // block)
    circle = np.concatenate([step_times_s, step_times_s[:block]])
    sums = np.cumsum(np.concatenate([[0.0], circle]))
    block_means = (sums[block:] - sums[:-block])[:n] / block
    starts = np.random.default_rng(seed).integers(0, n, size=(NUM_RESAMPLES, m))
    mean = step_times_s.mean()
    deviations = block_means[starts].mean(axis=1) - mean
    widening = np.sqrt(m / (m - 1)) * _student_ratio(m - 1)
    lo, hi = mean + widening * np.quantile(deviations, [0.025, 0.975])
    return float(lo), float(hi)


def cycle_means(
    step_times_s: npt.NDArray[np.float64], cycle: int
) -> npt.NDArray[np.float64]:
    """Return the mean seconds per step of each cycle, shape (n_steps / cycle,).

    Steps of a cycle do different work. That is no scatter of the mean over whole
    cycles, so its interval is that of the cycles' means.
    """
    return np.asarray(step_times_s.reshape(-1, cycle).mean(axis=1))


def unlike_halves(step_times_s: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the means of both halves of step times, if they differ; None: they agree.

    They differ where they are more than 5% apart and their 95% intervals do not
    overlap: the trial was still warming up, or another load came or went.
    ``step_times_s`` has shape (n_steps,), seconds in order without the warm-up; fewer
    than 8 show nothing.

    >>> unlike_halves(np.array([1.0, 1.1] * 10))
    >>> unlike_halves(np.arange(30.0, 10.0, -1))
    (25.5, 15.5)
    """
    halves = np.array_split(step_times_s, 2)
    if len(halves[-1]) < 4:
        return None
    earlier, later = (float(half.mean()) for half in halves)
    (lo, hi), (later_lo, later_hi) = map(mean_interval, halves)
    is_material = abs(later - earlier) > _MATERIAL * min(earlier, later)
    is_apart = is_material and (hi < later_lo or later_hi < lo)
    return (earlier, later) if is_apart else None


def interval_columns(
    step_times_s: npt.NDArray[np.float64], step_time_s: float
) -> dict[str, Any]:
    """Return the interval of a step time, and whether it has settled, by column.

    Where it has not, the step time is that of the later half, a bound: later steps take
    even less, or even more. Its interval is widened to where one more such change would
    lead.

    ``step_times_s`` has shape (n,), seconds in order without the warm-up, and may weigh
    steps otherwise than the mean ``step_time_s``, which the columns are scaled to;
    nothing is known from fewer than 4.
    """
    if len(step_times_s) < 4:
        return {}

    scale = step_time_s / float(step_times_s.mean())
    halves = unlike_halves(step_times_s)
    if halves is None:
        lo, hi = mean_interval(step_times_s)
        return {
            "step_time_lo_s": lo * scale,
            "step_time_hi_s": hi * scale,
            "settled": True,
        }

    earlier, later = halves
    ends = [*mean_interval(np.array_split(step_times_s, 2)[1]), later**2 / earlier]
    return {
        "step_time_s": later * scale,
        "step_time_lo_s": min(ends) * scale,
        "step_time_hi_s": max(ends) * scale,
        "settled": False,
        "step_time_bound": AT_MOST if later < earlier else AT_LEAST,
    }


def warmup_to_go_on_with(
    step_times_s: npt.NDArray[np.float64],
    *,
    num_steps: int,
    warmup_steps: int,
    measurement: Measurement,
    spent_s: float,
    is_precise: Callable[[], bool],
) -> int | None:
    """Return the warm-up with which a throughput trial goes on; None: it ends here.

    It goes on until it has its steps, or its mean is precise. Where the halves of its
    step times differ then, its warm-up is doubled, and it measures at least as many
    steps as that leaves out. It ends unsettled after ``MOST_TIMES_ITS_STEPS`` times its
    steps, or after ``SETTLES_WITHIN_S`` seconds.

    Parameters
    ----------
    step_times_s
        Seconds in order without the warm-up, shape (n,); each may be a mean of several
        steps.
    num_steps
        Steps without the warm-up.
    warmup_steps
        Steps left out so far.
    spent_s
        Seconds that all steps took.
    is_precise
        Tells whether the mean is precise before all steps are done.

    """
    is_late = (
        warmup_steps + num_steps >= MOST_TIMES_ITS_STEPS * measurement.steps
        or spent_s >= SETTLES_WITHIN_S
    )
    if warmup_steps > measurement.warmup_steps:
        is_enough = is_late or num_steps >= max(measurement.steps, warmup_steps)
    else:
        is_enough = num_steps >= measurement.steps or is_precise()

    if not is_enough:
        return warmup_steps
    if is_late or warmup_steps == 0 or not unlike_halves(step_times_s):
        return None
    return 2 * warmup_steps


def later_columns(
    step_times_s: npt.NDArray[np.float64],
    ends: npt.NDArray[np.int64],
    *,
    window_end: int,
    samples_per_step: float,
    samples_per_epoch: int | None,
) -> dict[str, Any]:
    """Return whether later steps of a long trial take another time, by column.

    The window is the steps that another trial would have measured. Later steps differ
    where pauses that the window does not hold make steps 5% longer. They also differ
    where their mean is more than 5% from the mean of the window, and the difference is
    beyond its 95% interval. Two forms are known: pauses at even distances, which count
    as evaluation, and a first epoch that takes longer than later epochs. A window that
    had not settled tells nothing.

    Parameters
    ----------
    step_times_s
        Seconds per step in order without the warm-up, shape (n,); each may be a mean of
        several steps.
    ends
        Steps of the training after each, shape (n,).
    window_end
        Steps of the training after which another trial would have ended.
    samples_per_step
        Samples that all ranks train on in a step.
    samples_per_epoch
        Of the job; None: not known.

    """
    in_window = ends <= window_end
    window, later = step_times_s[in_window], step_times_s[~in_window]
    if min(len(window), len(later)) < 4 or unlike_halves(window):
        return {}
    columns: dict[str, Any] = {
        "window_step_time_s": float(window.mean()),
        "later_step_time_s": float(later.mean()),
    }
    usual_s = float(np.median(step_times_s))
    is_pause = step_times_s > _PAUSE * usual_s
    is_pause &= not is_pause[in_window].any()
    apart = _distance(ends[is_pause], int(ends[-1]))
    steps = np.diff(ends, prepend=0)[is_pause]
    pauses_s = float(((step_times_s[is_pause] - usual_s) * steps).sum())

    epoch_end = (samples_per_epoch or math.inf) / samples_per_step
    of_later, in_first = ~in_window & ~is_pause, ends <= epoch_end
    if not _have_moved(window, step_times_s[of_later]):
        if pauses_s <= _MATERIAL * usual_s * ends[-1]:
            return columns
        differs = PAUSES if apart else UNEXPLAINED
    elif (
        window_end <= epoch_end
        and not _have_moved(window, step_times_s[of_later & in_first])
        and not unlike_halves(step_times_s[~is_pause & ~in_first])
    ):
        differs, of_later = FIRST_EPOCH, ~is_pause & ~in_first
        slower_s = float(window.mean() - step_times_s[of_later].mean())
        columns["first_epoch_s"] = slower_s * epoch_end
        columns["first_epoch_samples"] = samples_per_epoch
    else:
        differs = UNEXPLAINED

    columns["later_differs"] = differs
    if differs != UNEXPLAINED:
        columns["later_step_time_s"] = float(step_times_s[of_later].mean())
        if apart:
            columns["evaluation_s"] = pauses_s / steps.size * float(ends[-1]) / apart
            columns["evaluation_interval_samples"] = round(apart * samples_per_step)
    return columns


def _have_moved(
    window: npt.NDArray[np.float64], later: npt.NDArray[np.float64]
) -> bool:
    """Tell whether the means of step times differ by more than scatter explains."""
    if min(len(window), len(later)) < 4:
        return False
    means, reaches = [], []
    for step_times_s in (window, later):
        lo, hi = mean_interval(step_times_s)
        means.append(float(step_times_s.mean()))
        reaches.append((hi - lo) / 2)

    change = abs(means[1] - means[0])
    return change > max(_MATERIAL * min(means), math.hypot(*reaches))


def _distance(positions: npt.NDArray[np.int64], last: int) -> float:
    """Return the steps between positions that are evenly apart until the last step.

    0 where they are not, or are fewer than two. The first may be another number of
    steps from the beginning.

    >>> _distance(np.array([200, 400]), 500), _distance(np.array([200, 210]), 500)
    (200.0, 0.0)
    """
    if len(positions) < 2:
        return 0.0
    apart = float(np.median(np.diff(positions, prepend=0)))
    is_even = np.abs(np.diff(positions) - apart).max() <= _UNEVEN * apart
    return apart if is_even and last - positions[-1] <= (1 + _UNEVEN) * apart else 0.0


def is_steady(
    step_times_s: npt.NDArray[np.float64], relative_precision: float, *, cycle: int = 1
) -> bool:
    """Tell whether the half-width of the 95% interval is a small fraction of the mean.

    ``step_times_s`` has shape (n_steps,), seconds in order without the warm-up, and
    ``relative_precision`` is the largest such fraction.
    """
    if len(step_times_s) < MIN_STEPS:
        return False
    lo, hi = mean_interval(cycle_means(step_times_s, cycle))
    return bool((hi - lo) / 2 < relative_precision * step_times_s.mean())


def _student_ratio(degrees: int) -> float:
    """97.5% quantile of Student's t over the normal one, by its series in 1/degrees."""
    z = _QUANTILE_975
    first = (z**2 + 1) / (4 * degrees)
    second = (5 * z**4 + 16 * z**2 + 3) / (96 * degrees**2)
    return float(1 + first + second)
