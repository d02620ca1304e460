"""The comparison of one device's allocations, and the argument of an answer.

What is shown, chosen and named; why not the next row, and what the choice rests on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Support
from scalelab.inputs.problems import Option
from scalelab.kinds.resources import Units
from scalelab.recommend.answer.facts import Fact, WhyNot
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.notes import Named
from scalelab.recommend.prediction.consistency import is_among
from scalelab.recommend.prediction.knee import last_paying
from scalelab.recommend.prediction.outlook import (
    Outlook,
    best_of_each_size,
)
from scalelab.recommend.question.batches import ONE_EPOCH, BatchRule
from scalelab.recommend.question.candidates import is_printed
from scalelab.recommend.question.choice import (
    Allocations,
    Choice,
    best_within,
    largest_paying,
)
from scalelab.recommend.question.objective import Constraints
from scalelab.recommend.question.spending import CLEARLY, Spending, unbeaten
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
                code="nothing_measured_to_choose",
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


def why_not(
    comparison: Comparison,
    rows: Sequence[OutlookRow],
    rule: BatchRule,
    named: Sequence[Named],
    units: Units,
) -> Iterator[Fact]:
    """Note the runner-up: what it takes beside the chosen row, and why not it."""
    printed, at = comparison.printed, comparison.choice.index
    limits, chosen = comparison.limits, rows[comparison.choice.index]
    if len(rows) == 1:
        yield Fact.of("only_count", world_size=chosen.world_size)
        return

    other = _runner_up(comparison, rows, named)
    row, spent = rows[other], printed.spent.medians()
    cost = spent.of(spent.cost)
    speedup = float(spent.time_s[at] / spent.time_s[other])
    needed = 1 + limits.min_marginal_return * (row.world_size / chosen.world_size - 1)
    reason = _reason(comparison, rows, other, rule, speedup >= needed)
    batch = row.batch.global_batch_size
    yield Fact.of(
        "why_not",
        world_size=row.world_size,
        allocation=row.allocation,
        than=chosen.world_size,
        basis=row.basis,
        time_s=row.time_s.value,
        speedup=speedup,
        cost_ratio=float(cost[other] / cost[at]),
        unit=spent.cost.unit(float(cost[at]), units)[1],
        reason=reason,
        barred_by=row.barred_by,
        needed=needed if reason == "pays_too_little" else None,
        probability=row.probability,
        limits=[*limits.in_words(units)],
        global_batch_size=batch,
        largest=rule.largest,
        why_largest=rule.why_largest,
        may_ask=rule.why_largest != ONE_EPOCH,
    )


def _runner_up(
    comparison: Comparison, rows: Sequence[OutlookRow], named: Sequence[Named]
) -> int:
    """Return the place of the row that a reader would ask about.

    That is one that is much faster for little more. With limits it is what takes less,
    were it allowed or sure enough, of these the likeliest; where no limit is met, what
    is likelier to meet them. Else it is the next doubling, or the row before the last.
    """
    at, limits = comparison.choice.index, comparison.limits
    sizes = [row.world_size for row in rows]
    for kind, one, _ in named:
        if kind == "faster":
            return sizes.index(int(one.sizes[0]))

    places = [place for place in range(len(rows)) if place != at]
    if limits.limited:
        chances = comparison.printed.probability
        spent = comparison.printed.spent.medians()
        amounts = spent.of(limits.minimised(spent.known))

        is_better = chances > chances[at]
        if comparison.choice.meets:
            is_better = (amounts < amounts[at]) & ~comparison.printed.meets(limits)

        better = [place for place in places if is_better[place]]
        if better:
            apart = np.abs(np.log(np.array(sizes) / sizes[at]))
            chances = np.round(chances, 2)
            return max(better, key=lambda place: (chances[place], -apart[place]))

    following = rows[at].next_world_size
    if following in sizes:
        return sizes.index(following)

    return at + 1 if at + 1 < len(rows) else at - 1


def _reason(
    comparison: Comparison,
    rows: Sequence[OutlookRow],
    other: int,
    rule: BatchRule,
    pays: bool,
) -> WhyNot:
    """Return why a row is not chosen; of several reasons the first that holds."""
    at, limits = comparison.choice.index, comparison.limits
    row, chosen = rows[other], rows[at]
    is_larger = row.world_size >= 2 * chosen.world_size

    if ineligible := _why_ineligible(row, rule):
        return ineligible
    if (row.probability is not None) and row.probability < limits.confidence:
        return "unlikely"

    if limits.limited:
        spent = comparison.printed.spent.medians()
        amounts = spent.of(limits.minimised(spent.known))
        return "takes_more" if amounts[at] <= amounts[other] else "compared"

    if row.time_s.value >= chosen.time_s.value and row.world_size > chosen.world_size:
        return "slower"
    if is_larger and not pays:
        return "pays_too_little"
    if is_larger and not may_be_chosen(comparison.printed)[other]:
        return "not_measured"

    return "more_pay" if row.world_size < chosen.world_size else "compared"


def _why_ineligible(row: OutlookRow, rule: BatchRule) -> WhyNot | None:
    if row.batch.global_batch_size > rule.largest:
        return "batch_too_large"
    if row.is_eligible:
        return None
    is_belief = row.basis == Support.NOT_MEASURED
    return "not_measured_here" if is_belief else "not_accepted"


def grounds(
    knowledge: Knowledge, comparison: Comparison, config: Mapping[Any, Any]
) -> Iterator[Fact]:
    """Note how the step time, the choice and the samples of an answer are known."""
    yield _step_time(knowledge, comparison.printed, comparison.choice.index)
    yield from in_draws(knowledge, comparison)
    yield from _reached(knowledge, config)


def _step_time(knowledge: Knowledge, printed: Outlook, at: int) -> Fact:
    frame, chosen = knowledge.rows.frame, printed.frame.iloc[[at]]
    times_s = frame["step_time_s"][is_among(frame, chosen)].to_numpy(float)

    apart = None
    if len(times_s) > 1:
        apart = float(np.abs(times_s / np.median(times_s) - 1).max())

    doubted = frame.loc[[*knowledge.doubted.index, *knowledge.uneven]]
    contradicted = is_among(chosen, knowledge.contradicted) | is_among(chosen, doubted)
    return Fact.of(
        "step_time",
        basis=str(chosen["support"].iloc[0]),
        num_runs=len(times_s),
        apart=apart,
        is_contradicted=bool(contradicted.any()),
        is_emulated=knowledge.subject.is_emulated,
    )


def in_draws(knowledge: Knowledge, comparison: Comparison) -> Iterator[Fact]:
    """Note in how many draws of the times the choice is the same, where it meets.

    With limits it is the same where no row that meets them takes clearly less. What was
    chosen by another rule, such as among several kinds of devices, is not judged.
    """
    printed, at, limits = comparison.printed, comparison.choice.index, comparison.limits
    frame = printed.frame
    if not (knowledge.compares_counts and comparison.choice.meets):
        return
    if limits.limited:
        sizes, nodes = (frame[n].to_numpy(float) for n in ("world_size", "num_nodes"))
        spent, meets = (
            limits.spending(printed.expected_s, sizes, nodes),
            printed.meets(limits),
        )
        picked = least_of(spent, meets, at, limits)
        picked_by_medians = least_of(spent.medians(), meets, at, limits)
    else:
        picked = _last_known(printed, printed.expected_s, limits)
        picked_by_medians = _last_known(printed, printed.time_s[None], limits)

    if (picked_by_medians == at).all():
        places = [
            {"world_size": int(size)} for size in frame["world_size"].to_numpy(int)
        ]
        yield choice_in_draws(picked, at, places)


def choice_in_draws(
    picked: np.ndarray, at: int, places: Sequence[Mapping[str, Any]]
) -> Fact:
    """Note how many draws pick the chosen row, and which other row is picked most.

    ``picked`` has the place of the picked row in each draw, shape (n_draws,);
    ``places`` describe the rows.
    """
    others, counts = np.unique(picked[picked != at], return_counts=True)
    instead = dict(places[others[counts.argmax()]]) if len(others) else None
    num_same = int((picked == at).sum())
    return Fact.of(
        "choice_in_draws",
        num_same=num_same,
        num_otherwise=len(picked) - num_same,
        num_draws=len(picked),
        instead=instead,
        num_others=len(others),
    )


def least_of(
    spent: Spending, among: np.ndarray, at: int, limits: Constraints
) -> np.ndarray:
    """Return the place of the marked row that takes least, in each draw.

    The row at ``at`` is returned where no other row takes clearly less.
    """
    amounts = np.atleast_2d(spent.of(limits.minimised(spent.known)))
    allowed = np.where(among, amounts, np.inf)
    is_same = amounts[:, at] <= (1 + CLEARLY) * allowed.min(axis=1)
    return np.where(is_same, at, allowed.argmin(axis=1))


def _last_known(
    printed: Outlook, time_s: np.ndarray, limits: Constraints
) -> np.ndarray:
    """Return the place of the row to choose, in each draw of times."""
    last = last_paying(time_s, printed.sizes, limits.min_marginal_return)
    known = np.flatnonzero(may_be_chosen(printed))
    if not len(known):
        known = np.flatnonzero(printed.is_eligible)
    place = np.searchsorted(known, last, side="right") - 1
    return np.asarray(known[np.maximum(place, 0)])


def _reached(knowledge: Knowledge, config: Mapping[Any, Any]) -> Iterator[Fact]:
    """Note how many runs reached the target at the chosen batch, with its rule."""
    need = knowledge.need
    if not need.uses_law:
        return

    key, batch = need.keys[int(config["samples_curve"])], config["global_batch_size"]
    runs = need.tried[key].runs
    runs = runs[runs["global_batch_size"] == batch]
    yield Fact.of(
        "target_reached",
        target=str(need.target),
        global_batch_size=int(batch),
        num_runs=len(runs),
        num_reached=int((~runs["censored"].astype(bool)).sum()),
    )
