"""The comparison of all candidates, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.laws.support import Support
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.prediction.knee import last_paying
from scalelab.recommend.prediction.outlook import (
    Outlook,
    best_of_each_size,
    look_ahead,
)
from scalelab.recommend.question.candidates import is_printed
from scalelab.recommend.question.objective import Choice, Constraints, choose


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The candidates that an answer shows, and the one that it recommends.

    Parameters
    ----------
    printed
        The best configuration of each world size that the table shows.
    choice
        The recommended row of ``printed``.
    passed_over
        The measured configuration, one row or none, that would have been better than
        the recommended one but does not hold the limits surely enough.
    """

    printed: Outlook
    choice: Choice
    passed_over: Outlook

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
        """Predict the asked configurations and choose.

        Parameters
        ----------
        asked
            The candidates.
        knowledge
            What is known of them.
        limits
            What the job must hold.
        allocations
            Allocations that the question names; None: it names none.
        accepts_unmeasured
            Also choose what rests on a term that was not measured here.

        Raises
        ------
        SpecError
            Nothing may be chosen.
        """
        every = look_ahead(asked, knowledge, limits, accepts_unmeasured)
        best = every.take(best_of_each_size(every, limits))
        if not best.is_eligible.any():
            raise SpecError(
                f"Nothing may be chosen: no row with {knowledge.rule.in_words()} rests "
                "on what was measured here. Ask for another batch, or accept what was "
                "not measured: --accept-unmeasured."
            )
        is_shown = is_printed(best.sizes, knowledge.rows.frame, allocations)
        is_shown |= not is_shown[best.is_eligible].any()
        word = knowledge.subject.device_word
        if not limits.any_limit:
            best, is_shown = best.take(np.flatnonzero(is_shown)), is_shown[is_shown]
        choice = _choose(best, limits, word)
        is_shown[choice.index] = True
        position = int(is_shown[: choice.index].sum())
        return cls(
            printed=best.take(np.flatnonzero(is_shown)),
            choice=replace(choice, index=position),
            passed_over=_passed_over(every, best, choice.index, limits),
        )


def _choose(best: Outlook, limits: Constraints, device_word: str) -> Choice:
    time, eligible = best.time_s, best.is_eligible
    last = int(last_paying(time[None], best.sizes, limits.min_marginal_return)[0])
    is_known = (best.frame["support"] != Support.EXTRAPOLATED).to_numpy() & eligible
    paying = is_known & (np.arange(len(time)) <= last)
    if not paying.any():
        paying = (
            np.arange(len(time)) == (is_known if is_known.any() else eligible).argmax()
        )
    return choose(
        best.spent.medians(), best.probability, eligible, paying, limits, device_word
    )


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
    is_measured = (every.frame["support"] == Support.MEASURED).to_numpy()
    is_unsure = every.probability < limits.confidence
    holds = limits.excess(medians) <= 1
    found = np.flatnonzero(is_measured & is_better & is_unsure & holds)
    if not len(found):
        return none
    likeliest = found[every.probability[found].argmax()]
    is_chosen = every.questions.iloc[likeliest].equals(chosen.questions.iloc[0])
    return none if is_chosen else every.take(np.array([likeliest]))
