"""The comparison of one device's allocations: what is shown, chosen and named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Support
from scalelab.inputs.wording import Option
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.notes import Named
from scalelab.recommend.prediction.knee import last_paying
from scalelab.recommend.prediction.outlook import (
    Outlook,
    best_of_each_size,
)
from scalelab.recommend.question.candidates import is_printed
from scalelab.recommend.question.choice import (
    Allocations,
    Choice,
    best_within,
    largest_paying,
)
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import unbeaten
from scalelab.records.columns import PROGRAM_COLUMN

_EVEN = 0.5  # confidence at which the likeliest of what is not sure enough is named
_NEAR = 0.05  # by which a confidence is near another one
_EDGE = 0.1  # by which the chance that a doubling pays is near an even one
# A row that surely takes so much less time for so little more is named
MUCH_FASTER, LITTLE_MORE = 1.5, 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The candidates that an answer shows, and the one that it recommends."""

    printed: Outlook
    choice: Choice
    every: Outlook  # all that was predicted
    limits: Constraints
    device_word: str
    # Whether only what was measured is named beside the chosen row
    names_measured: bool

    @classmethod
    def of(
        cls,
        every: Outlook,
        knowledge: Knowledge,
        limits: Constraints,
        gpus: Sequence[int],
        *,
        accepts_unmeasured: bool,
    ) -> Comparison:
        """Choose among predicted configurations."""
        best = every.take(best_of_each_size(every, limits))
        if not best.is_eligible.any():
            raise SpecError(
                f"Nothing may be chosen: no row with {knowledge.rule.in_words()} rests "
                "on what was measured here.",
                "Ask for another batch, or accept what was not measured: "
                f"{Option('accept_unmeasured', True)}.",
            )

        is_shown = is_printed(best.sizes, knowledge.rows.frame, gpus)
        is_shown |= not is_shown[best.is_eligible].any()
        word = knowledge.subject.device_word

        if not limits.limited:
            best, is_shown = best.take(is_shown), is_shown[is_shown]

        choice = _choose(best, limits, word)
        if best.frame["barred_by"][choice.index] == "contradicted":
            choice = replace(choice, meets=False, rule="every row is contradicted")
        is_shown[choice.index] = True
        printed, at = best.take(is_shown), int(is_shown[: choice.index].sum())

        names_measured = not (knowledge.compares_counts or accepts_unmeasured)
        if names_measured and (choice.meets or not limits.limited):
            choice = replace(choice, rule=f"no other {word} count was measured")

        return cls(
            printed=printed,
            choice=replace(choice, index=at),
            every=every,
            limits=limits,
            device_word=word,
            names_measured=names_measured,
        )

    def named(self) -> list[Named]:
        """Return what is named beside the chosen row."""
        at, word = self.choice.index, self.device_word
        every = self.every.take(np.isin(self.every.sizes, self.printed.sizes))
        found = _named(every, self.printed, at, self.limits, word)
        if self.names_measured:
            return [
                named_row for named_row in found if named_row[0] == "not_sure_enough"
            ]
        return [*found]

    def programs(self) -> dict[str, Outlook]:
        """Return the best row of each program on the chosen number of devices.

        A program that never came to the target is not among them.
        """
        best, every = {}, self.every
        if PROGRAM_COLUMN in every.frame.columns:
            alike = every.sizes == self.printed.sizes[self.choice.index]
            for name, rows_of_program in every.frame[alike].groupby(PROGRAM_COLUMN):
                found = every.take(rows_of_program.index.to_numpy())
                best[str(name)] = found.take(best_of_each_size(found, self.limits))
        return best


def may_be_chosen(best: Outlook) -> np.ndarray:
    """Mark the rows that may be chosen where there is no limit, shape (n_rows,)."""
    known = best.frame["support"].ne(Support.EXTRAPOLATED) | best.frame["is_tried"]
    return np.asarray(known.to_numpy(bool) & best.is_eligible)


def _choose(best: Outlook, limits: Constraints, device_word: str) -> Choice:
    if limits.limited:
        among = Allocations(
            spent=best.spent.medians(),
            probability=best.probability,
            is_eligible=best.is_eligible,
            is_measured=best.is_measured,
        )
        choice = best_within(among, limits)
    else:
        choice = _largest_known(best, limits, device_word)

    index = unbeaten(best.spent, choice.index, best.meets(limits))
    if index == choice.index:
        return choice

    first = counted(int(best.sizes[choice.index]), device_word)
    rule = f"clearly faster or cheaper than {first}, and not worse in the other"
    rule += f" ({first}: {choice.rule})"
    return Choice(index=index, meets=True, rule=rule)


def _largest_known(best: Outlook, limits: Constraints, device_word: str) -> Choice:
    """Return the largest world size that pays, of those that are known."""
    rows, time_s = np.arange(len(best.sizes)), best.time_s
    last = int(last_paying(time_s[None], best.sizes, limits.min_marginal_return)[0])
    is_known = may_be_chosen(best)

    pays = is_known & (rows <= last)
    if not pays.any():
        fewest = (is_known if is_known.any() else best.is_eligible).argmax()
        pays = rows == fewest

    choice = largest_paying(pays, best.meets(limits), limits, device_word)
    if choice.index >= last:
        return choice

    more = "more were not measured"
    rule = f"{choice.rule}; {more}" if choice.index else f"{more}, though they pay"
    return replace(choice, rule=rule)


def _picked(every: Outlook, limits: Constraints, device_word: str) -> Outlook | None:
    """Return the one row that would be chosen; None where nothing meets the limits."""
    if not every.is_eligible.any():
        return None
    best = every.take(best_of_each_size(every, limits))
    choice = _choose(best, limits, device_word)
    return best.take(np.array([choice.index])) if choice.meets else None


def _nearly_paying(best: Outlook, at: int, limits: Constraints) -> Iterator[Named]:
    """Yield what would be chosen if doublings had to pay more, or less, surely."""
    rows, least = np.arange(len(best.sizes)), _EVEN - _EDGE
    last = last_paying(best.expected_s, best.sizes, limits.min_marginal_return)
    pays = last[:, None] >= rows
    chance = pays.mean(axis=0)

    may_be = (best.frame["support"] != Support.EXTRAPOLATED) & best.is_eligible
    for sure in (least, limits.confidence)[: 1 + (chance[at] < _EVEN + _EDGE)]:
        found = rows[may_be & (chance >= sure)][-1:]
        if len(found) and found[0] != at and chance[at] >= least:
            row = replace(best.take(found), held=pays[:, found])
            yield "on_the_edge", row, best.take(np.array([at]))


def _named(
    every: Outlook, best: Outlook, at: int, limits: Constraints, word: str
) -> Iterator[Named]:
    """Yield what else would be chosen, what is much faster, and what is safe now."""
    chosen, sure = best.take(np.array([at])), limits.confidence
    measured, even = every.take(every.is_measured), replace(limits, confidence=_EVEN)
    if limits.limited:
        found = _picked(measured, even, word)
        is_same = found and found.questions.equals(chosen.questions)
        if found and found.probability[0] < sure and not is_same:
            yield "not_sure_enough", found, chosen

        step = min(_NEAR, (1 - sure) / 2)
        for near in (sure - step, sure + step):
            found = _picked(every, replace(limits, confidence=near), word)
            if found and found.sizes[0] != chosen.sizes[0]:
                yield "on_the_edge", found, chosen
    else:
        yield from _nearly_paying(best, at, limits)

    if chosen.probability[0] < sure:
        return

    time_s, amount = best.time_s, best.spent.medians().of(best.spent.cost)
    drawn_s = best.spent.time_s
    is_much_faster = (MUCH_FASTER * drawn_s <= drawn_s[:, [at]]).mean(axis=0) >= sure
    is_worth = best.meets(limits) & is_much_faster

    is_worth &= amount <= (1 + LITTLE_MORE) * amount[at]
    if is_worth.any():
        fastest = int(np.where(is_worth, time_s, np.inf).argmin())
        yield "faster", best.take(np.array([fastest])), chosen
    if not chosen.is_measured[0]:
        found = _picked(measured, limits, word)
        if found:
            yield "to_submit_now", found, chosen
        else:
            yield "nothing_measured", chosen, chosen
        return

    allowed = every.frame.assign(is_eligible=every.is_allowed_batch)
    better = _picked(replace(every, frame=allowed), even, word)
    if better and (better.frame["support"] == Support.NOT_MEASURED).all():
        yield "to_submit_now", chosen, better
