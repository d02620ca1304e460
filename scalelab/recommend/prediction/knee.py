"""The knee: the device count beyond which more devices do not pay, and the cause.

Waiting for input is a cause that no law knows: it is read off what was measured.
"""

import numpy as np
import pandas as pd

from scalelab.inputs.outcome import Support
from scalelab.laws.rows import FitRows, agreeing, configurations, numbers, split_curves
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.recommend.answer.recommendation import Knee
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.prediction.outlook import Outlook

_TAIL = 0.1
_WORDS = {
    "fixed": "fixed cost per pass",
    "per_sample": "computation of small local batches",
    "waiting": "waiting for the slowest rank",
    "contention": "contention between the devices of a node",
    "intra_node": "intra-node all-reduce",
    "inter_node": "inter-node all-reduce",
    "feed": "a source of samples that all devices share, such as storage",
    "unexplained": "step time grows",
}
_SAMPLES = "a larger batch needs more samples"
_OVERHEAD = "start-up and evaluation"
_INTERRUPTIONS = "more nodes are interrupted more often"
_INPUT = "waiting for input"
_OPEN = 8  # the ends of a range of counts that says little lie so many times apart
_LIKELY = 0.5  # chance of a knee up to the last row that is named
_SURE = 0.7  # share of the draws in which a cause leads that is named alone


def wait_share(rows: FitRows, configuration: pd.DataFrame) -> float:
    """Return the measured share of a step in which ranks waited for input.

    It is 0 where nothing was measured. Between measured world sizes it is interpolated
    over their logarithm, beyond them it stays as it is. Where the global batch was
    measured at some world size, only rows of that batch count.
    """
    (asked,) = map(dict, split_curves(configuration))
    at = configurations(configuration).iloc[0]

    wait_s = pd.Series(
        numbers(rows.observations, "data_wait_s"), rows.observations.index
    )
    for key in agreeing(rows.curves, asked):
        frame = rows.curves[key]
        share = wait_s[frame.index] / frame["step_time_s"]

        frame = frame.assign(share=share).dropna(subset="share")
        if len(frame):
            alike = frame[frame["global_batch_size"] == at["global_batch_size"]]
            measured = alike if len(alike) else frame
            shares = measured.groupby("world_size")["share"].median()
            sizes = np.log(shares.index.to_numpy(float))
            return float(np.interp(np.log(at["world_size"]), sizes, shares))

    return 0.0


def marginal_return(time_s: np.ndarray, world_size: np.ndarray) -> np.ndarray:
    """Return the speed-up gained per device added, from each size to each larger one.

    A size less than twice as large is compared with the largest of at most half of its
    devices, or with the first: sizes in between, such as part of a further node, are no
    step to judge by.

    Returns
    -------
    ndarray, shape (..., n_sizes, n_sizes)
        From a row's size to a column's: 1 where the time is halved by twice the
        devices, 0 where it does not change; it may be outside of [0, 1]. Minus infinity
        where the column's size is not larger.
    """
    index = np.arange(len(world_size))
    here = np.minimum(index[:, None], _halved(world_size))
    speed_up = time_s[..., here] / time_s[..., None, :]
    added = np.maximum(world_size / world_size[here] - 1, 1e-9)
    return np.where(index > index[:, None], (speed_up - 1) / added, -np.inf)


def _halved(world_size: np.ndarray) -> np.ndarray:
    half = np.searchsorted(world_size, world_size / 2, side="right") - 1
    return np.asarray(np.maximum(half, 0))


def last_paying(
    time_s: np.ndarray,
    world_size: np.ndarray,
    least: float,
    known: np.ndarray | None = None,
) -> np.ndarray:
    """Return the index of the first world size from which no larger one pays.

    One poor doubling is no end where the next ones make up for it; those of a world
    size that is not known, if it is told which are, make up for nothing.
    """
    pays = marginal_return(time_s, world_size) >= least
    if known is not None:
        pays &= known | (world_size <= 2 * world_size[:, None])
    return np.asarray((~pays.any(axis=-1)).argmax(axis=-1))


def find_knee(outlook: Outlook, knowledge: Knowledge, least: float) -> Knee | None:
    """Find the knee, as an interval of world sizes, and the term that causes it.

    It is open where no row beyond it was measured, or where the interval says little;
    neither its cause nor a chance is claimed then. There is none with fewer than two
    rows, or where one device count alone was measured.
    """
    sizes, support = outlook.sizes, outlook.frame["support"].to_numpy()
    if not knowledge.compares_counts or len(sizes) < 2:
        return None

    is_known = support != Support.NOT_MEASURED
    index = last_paying(outlook.expected_s, sizes, least, is_known)
    inside = index < len(sizes) - 1
    # draws without a knee in the range of sizes have an infinite upper end
    above = np.append(sizes, np.inf)[index + 1]
    below = np.where(inside, sizes[index], np.inf)
    lo = np.quantile(below, _TAIL, method="lower")
    hi = np.quantile(above, 1 - _TAIL, method="higher")
    chance = float(inside.mean())
    is_unseen = set(support[sizes > lo]) == {Support.NOT_MEASURED}
    is_open = chance >= _LIKELY and (is_unseen or _OPEN * lo <= hi < np.inf)
    is_named = chance >= _LIKELY and not is_open

    return Knee(
        lo=int(lo) if np.isfinite(lo) else None,
        hi=int(hi) if np.isfinite(hi) and not is_unseen else None,
        marginal_return=least,
        term=_term(index[inside], outlook, knowledge) if is_named else None,
        probability_in_range=None if is_open else chance,
        largest_measured=int(knowledge.rows.frame["world_size"].max()),
    )


def _term(index: np.ndarray, outlook: Outlook, knowledge: Knowledge) -> str:
    """Name the cause of the most probable knee: the term that grows most there.

    Without the law behind the times, which knows the terms, only their growth is named.
    No shape knows of input, which is in several terms, then. It is named where the
    wait that was measured grows by more than half of all that is lost there.
    """
    if knowledge.whole_runs:
        return _WORDS["unexplained"]

    law, questions, sizes = knowledge.law, outlook.questions, outlook.sizes
    samples = np.median(outlook.samples, axis=0)
    after_knee = 1 + int(np.bincount(index).argmax()) if len(index) else len(sizes) - 1
    pair = [int(_halved(sizes)[after_knee]), after_knee]

    before, after = (
        _seconds(questions.iloc[[i]], float(samples[i]), law) for i in pair
    )
    if not before or not after:
        return _WORDS["unexplained"]

    shrink = sizes[pair[0]] / sizes[pair[1]]
    losses = {_WORDS[name]: after[name] - before[name] * shrink for name in _WORDS}
    waited = [wait_share(knowledge.rows, questions.iloc[[i]]) for i in pair]
    lost_to_input = waited[1] * sum(after.values())

    lost_to_input -= waited[0] * sum(before.values()) * shrink
    if lost_to_input > sum(losses.values()) / 2 > 0:
        return _INPUT

    growth = float(samples[pair[1]] / samples[pair[0]])
    losses |= {
        _SAMPLES: sum(after.values()) * (1 - 1 / growth),
        _OVERHEAD: _rise(outlook.overhead_s[:, pair], shrink),
        _INTERRUPTIONS: _rise(outlook.interruptions_s[:, pair], shrink),
    }

    words = max(losses, key=lambda words: losses[words])
    if words not in _WORDS.values() or words == _WORDS["unexplained"]:
        return words

    per_step = samples[pair] * (-shrink, 1.0)
    return _with_rival(words, questions.iloc[pair], per_step, law)


def _rise(seconds: np.ndarray, shrink: float) -> float:
    """Return what a part of the time loses at a doubling, by its medians."""
    return float(np.median(seconds, axis=0) @ (-shrink, 1.0))


def _with_rival(
    leading: str, sizes: pd.DataFrame, per_step: np.ndarray, law: StepTimeLaw
) -> str:
    """Name the second likeliest cause, too, where the rows leave open which one leads.

    ``per_step``, shape (2,), are the samples by which their seconds count.
    """
    per_step = per_step / configurations(sizes)["global_batch_size"].to_numpy(float)
    # one by one: their layouts, and so their curves, may differ
    parts = [law.term_draws(sizes.iloc[[place]]) for place in (0, 1)]
    terms = [np.hstack([getattr(part, name) for part in parts]) for name in _WORDS]
    lost = np.array(terms) @ per_step
    leads = np.bincount(lost.argmax(axis=0), minlength=len(_WORDS)) / lost.shape[1]

    shares = dict(zip(_WORDS.values(), leads, strict=True))
    if shares.pop(leading) >= _SURE:
        return leading

    return f"{leading} or {max(shares, key=lambda words: shares[words])}"


def _seconds(
    configuration: pd.DataFrame, samples: float, law: StepTimeLaw
) -> dict[str, float]:
    parts = law.terms(configuration)
    if parts is None:
        return {}
    batch = configurations(configuration)["global_batch_size"].iloc[0]
    return {name: getattr(parts, name).item() * samples / batch for name in _WORDS}
