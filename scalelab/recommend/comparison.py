"""The comparison of all candidates, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from scalelab.errors import NotIdentifiableError, SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.support import Support
from scalelab.inputs.wording import Option
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.prediction.knee import last_paying
from scalelab.recommend.prediction.outlook import (
    Outlook,
    best_of_each_size,
    look_ahead,
)
from scalelab.recommend.question.candidates import is_printed
from scalelab.recommend.question.objective import Choice, Constraints, choose
from scalelab.records.columns import PROGRAM_COLUMN

_CLEARLY = 0.05  # less of both: a smaller difference may be noise


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The candidates that an answer shows, and the one that it recommends.

    Parameters
    ----------
    passed_over
        The measured configuration, one row or none, that would have been better than
        the recommended one but does not hold the limits surely enough.
    programs
        The best configuration of each of several programs, one row, on as many devices
        as recommended.
    """

    printed: Outlook
    choice: Choice
    passed_over: Outlook
    programs: Mapping[str, Outlook]

    @classmethod
    def of(
        cls,
        asked: pd.DataFrame,
        knowledge: Knowledge,
        limits: Constraints,
        allocations: Sequence[Allocation] | None,
        *,
        accepts_unmeasured: bool,
    ) -> Comparison:
        """Predict the asked configurations and choose."""
        every = look_ahead(asked, knowledge, limits, accepts_unmeasured)
        best = every.take(best_of_each_size(every, limits))
        if not best.is_eligible.any():
            raise SpecError(
                f"Nothing may be chosen: no row with {knowledge.rule.in_words()} rests "
                "on what was measured here.",
                "Ask for another batch, or accept what was not measured: "
                f"{Option('accept_unmeasured', True)}.",
            )
        is_shown = is_printed(best.sizes, knowledge.rows.frame, allocations)
        is_shown |= not is_shown[best.is_eligible].any()
        word = knowledge.subject.device_word
        if not limits.any_limit:
            best, is_shown = best.take(np.flatnonzero(is_shown)), is_shown[is_shown]
        choice = _choose(best, limits, word)
        if not (limits.any_limit or knowledge.compares_counts):
            choice = replace(choice, rule=f"no other {word} count was measured")
        is_shown[choice.index] = True
        position = int(is_shown[: choice.index].sum())
        alike = asked[asked["world_size"] == best.sizes[choice.index]]
        return cls(
            printed=best.take(np.flatnonzero(is_shown)),
            choice=replace(choice, index=position),
            passed_over=_passed_over(every, best, choice.index, limits),
            programs=_best_of_programs(alike, knowledge, limits, accepts_unmeasured),
        )


def _best_of_programs(
    asked: pd.DataFrame,
    knowledge: Knowledge,
    limits: Constraints,
    accepts_unmeasured: bool,
) -> dict[str, Outlook]:
    """Return the best of configurations on as many devices, by program.

    A program that never came to the target is not among them.
    """
    best = {}
    if PROGRAM_COLUMN in asked.columns:
        for name, own in asked.groupby(PROGRAM_COLUMN):
            with suppress(NotIdentifiableError):
                own = own.reset_index(drop=True)
                every = look_ahead(own, knowledge, limits, accepts_unmeasured)
                best[str(name)] = every.take(best_of_each_size(every, limits))
    return best


def _choose(best: Outlook, limits: Constraints, device_word: str) -> Choice:
    time, eligible = best.time_s, best.is_eligible
    last = int(last_paying(time[None], best.sizes, limits.min_marginal_return)[0])
    is_known = (best.frame["support"] != Support.EXTRAPOLATED).to_numpy() & eligible
    paying = is_known & (np.arange(len(time)) <= last)
    if not paying.any():
        first = (is_known if is_known.any() else eligible).argmax()
        paying = np.arange(len(time)) == first
    choice = choose(
        best.spent.medians(),
        best.probability,
        eligible,
        paying,
        best.is_measured,
        limits,
        device_word,
    )
    if limits.any_limit:
        return choice
    if choice.index < last:
        more = "more were not measured"
        rule = f"{choice.rule}; {more}" if choice.index else f"{more}, though they pay"
        choice = replace(choice, rule=rule)
    return _undominated(best, choice, is_known)


def _undominated(best: Outlook, choice: Choice, is_known: np.ndarray) -> Choice:
    """Return the fastest row that takes less of time and device-hours, if one does.

    Returns that diminish at one doubling may come back at the next.
    """
    time, hours = best.time_s, np.median(best.spent.gpu_hours, axis=0)
    of, share = choice.index, 1 - _CLEARLY
    is_less = (time < share * time[of]) & (hours < share * hours[of]) & is_known
    if not is_less.any():
        return choice
    rule = (
        "it takes less time, and fewer device-hours, than the count at which returns "
        "first diminish"
    )
    fastest = int(np.where(is_less, time, np.inf).argmin())
    return replace(choice, index=fastest, rule=rule)


def _passed_over(
    every: Outlook, best: Outlook, index: int, limits: Constraints
) -> Outlook:
    """Return the likeliest measured configuration that is better but less sure."""
    chosen = best.take(np.array([index]))
    none = every.take(np.array([], dtype=int))
    if not limits.any_limit:
        return none
    medians, own = every.spent.medians(), chosen.spent.medians()
    aim = limits.minimised(medians.known)
    is_better = medians.of(aim) < own.of(aim)
    if chosen.probability[0] < limits.confidence:
        is_better = np.full(len(is_better), True)
    is_unsure = every.probability < limits.confidence
    holds = limits.excess(medians) <= 1
    found = np.flatnonzero(every.is_measured & is_better & is_unsure & holds)
    if not len(found):
        return none
    likeliest = found[every.probability[found].argmax()]
    is_chosen = every.questions.iloc[likeliest].equals(chosen.questions.iloc[0])
    return none if is_chosen else every.take(np.array([likeliest]))
