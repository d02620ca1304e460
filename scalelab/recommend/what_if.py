"""What if: the choice under other limits, as one table that a page can look up.

A page fits no law. But where all that a row takes is in proportion to its time, its
chance to hold a deadline and a budget is the share of its draws up to one time. So the
times at which chances change, with who beats whom, suffice to choose again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from scalelab.inputs.numerals import (
    device_time,
    duration,
    duration_ends,
    probability,
)
from scalelab.kinds.resources import DEVICE_HOURS, MONEY, TIME
from scalelab.recommend.advice import Considered
from scalelab.recommend.answer.note_words import settings_in_words
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import allocated
from scalelab.recommend.comparison import Comparison
from scalelab.recommend.prediction.outlook import Baseline, Outlook, outlook_rows
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import CLEARLY, beating, counted_chances

_CONFIDENCES = (0.5, 0.75, 0.8, 0.9, 0.95, 0.99)
_EVEN, _LESS = 0.5, "below 50%"
_PLACES, _NEVER = 10_000_000, 1e6  # of the median; times that are never reached
_MOST_ROWS = 1000  # of a page that is not to become too large


def what_if(considered: Considered, answer: Recommendation) -> dict[str, Any]:
    """Return the table of what would be chosen; empty where there can be none.

    ``unlimited`` holds the row that is chosen where nothing is limited, for each
    confidence. ``classes`` hold chances in words, as the choice rounds them, and for
    how many confidences they suffice. ``rows`` hold the candidates: their size, what
    they take, the times from which on their chance is of the next class, each as a step
    from the one before in ten-millionths of the median, and the rows that beat them.
    ``price`` is that of a device-hour; None: not known. ``clearly`` is what the choice
    takes for a tie, ``places`` the steps in a median, ``never`` the most medians.
    """
    limits, whole = considered.limits, considered.comparison.every
    hours = whole.spent.gpu_hours
    hours_per_s = (hours / whole.spent.time_s)[0]

    price = float((whole.spent.amounts.get(MONEY.name, hours) / hours)[0, 0])
    if not _are_proportional(whole, limits, hours_per_s, price):
        return {}

    whole = replace(whole, frame=whole.frame.assign(place=range(len(whole.sizes))))
    every = whole.take(whole.is_eligible)
    confidences = sorted({*_CONFIDENCES, limits.confidence})
    classes = _classes(len(every.reached), confidences)
    every = every.take(_may_win(every, classes.index))
    up_to = np.minimum(_up_to(every, classes.index) / every.time_s, _NEVER)
    steps = np.diff(np.round(_PLACES * up_to), axis=0, prepend=0).astype(int)
    kept = every.frame["place"].to_numpy()
    knowledge, is_any = considered.knowledge, np.ones(len(kept), dtype=bool)
    base = Baseline.of(knowledge.rows, knowledge.step_times)

    return {
        "price": price if limits.price else None,
        "clearly": CLEARLY,
        "places": _PLACES,
        "never": _NEVER,
        "currency": answer.currency,
        "hour_word": answer.device_hour_word,
        "limited": dict(answer.limited),
        "target": str(knowledge.need.target) if knowledge.need.uses_law else "",
        "confidence": limits.confidence,
        "confidences": confidences,
        "unlimited": np.searchsorted(
            kept, [_without_limits(considered, whole, sure) for sure in confidences]
        ).tolist(),
        "classes": classes.to_dict("records"),
        "rows": [
            {
                "size": row.world_size,
                "use": ", ".join(
                    [allocated(answer, row), *settings_in_words(row.settings)]
                ),
                "takes": f"{duration(row.time_s.value)} [{duration_ends(row.time_s)}]",
                "spends": device_time(row.gpu_hours.value, answer.device_hour_word),
                "basis": row.basis,
                "margin": float(every.margins[at]),
                "time_s": [float(every.time_s[at]), row.time_s.lo, row.time_s.hi],
                "hours_per_s": float(hours_per_s[kept[at]]),
                "steps": steps[:, at].tolist(),
                "beaten_by": np.flatnonzero(beating(every.spent, at, is_any)).tolist(),
            }
            for at, row in enumerate(outlook_rows(every, 0, base, limits, knowledge))
        ],
    }


def _are_proportional(
    every: Outlook, limits: Constraints, hours_per_s: np.ndarray, price: float
) -> bool:
    """Tell whether one time decides what a row takes, at one price for all."""
    spent, budgets = every.spent, limits.limits.keys() - {TIME.name}
    return bool(
        np.isfinite(spent.time_s).all()
        and budgets in (set(), {DEVICE_HOURS.name}, {MONEY.name})
        and np.allclose(spent.gpu_hours, hours_per_s * spent.time_s)
        and np.allclose(spent.of(spent.cost), price * spent.gpu_hours)
        and every.frame["is_accurate"][every.is_eligible].all()
        and len(every.sizes) <= _MOST_ROWS
    )


def _classes(num_draws: int, confidences: Sequence[float]) -> pd.DataFrame:
    """Return the classes of chances, by the number of draws from which each begins.

    ``sure`` is how many of the confidences it suffices for.
    """
    shares = np.arange(num_draws + 1) / num_draws
    known = pd.DataFrame(
        {
            "rounded": np.round(shares, 1),
            "counted": counted_chances(shares),
            "chance": [probability(s) if s >= _EVEN else _LESS for s in shares],
            "sure": (shares[:, None] >= confidences).sum(axis=1),
        }
    )
    return known[known.ne(known.shift()).any(axis=1)]


def _up_to(every: Outlook, starts: pd.Index) -> np.ndarray:
    """Return the times from which on chances are of the next class, for each row."""
    times_s = np.where(every.reached, every.spent.time_s, np.inf)
    return np.asarray(np.sort(times_s, axis=0)[starts[1:] - 1])


def _may_win(every: Outlook, starts: pd.Index) -> np.ndarray:
    """Mark the rows that no other of their size comes before under all limits."""
    time_s, sizes, medians = every.time_s, every.sizes, every.spent.medians()
    amounts = every.margins * np.array([time_s, medians.gpu_hours])
    figures = np.vstack([amounts, _up_to(every, starts)])
    is_no_more = (figures[:, :, None] <= figures[:, None, :]).all(axis=0)
    comes_before = is_no_more & (sizes[:, None] == sizes)
    # of rows that are alike the first comes before the others
    is_later = comes_before.T & np.tri(len(sizes), dtype=bool)
    return np.asarray(~(comes_before & ~is_later).any(axis=0))


def _without_limits(considered: Considered, every: Outlook, confidence: float) -> int:
    """Return the place of the row that is chosen where nothing is limited."""
    found = Comparison.of(
        replace(every, held=every.reached),
        considered.knowledge,
        replace(considered.limits, limits={}, confidence=confidence),
        considered.wanted,
        accepts_unmeasured=considered.accepts_unmeasured,
    )
    return int(found.printed.frame["place"].iloc[found.choice.index])
