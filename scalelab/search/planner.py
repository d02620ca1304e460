"""The planner of measurements: which trial is worth most to a decision, and the end.

It knows candidates, what the laws expect of them, and what a trial of each costs. It
ends when the decision is known, and no trial saves the job more than it costs; when the
best that further trials could bring is worth less than the next one costs; or when
nothing that would help is affordable.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalelab.plan.inquiry import Ending, Purpose
from scalelab.search.value import LITTLE, Prospects

SURELY = 0.9
"""The probability of a little regret from which on a decision counts as known."""
_MOST_RUNS = 3  # of one candidate, to settle what scatters
_MUCH = 0.25  # of the largest gain: among these, the gain per cost decides
_MUCH_BESIDE = 0.1  # of the expected regret: what is worth running beside others
_LEAST_GAIN = 1e-3  # a smaller one cannot be told from none
_LEAST_PAYING = 3e-3  # of a job, for which what is known is measured further


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """The candidates of a decision, and the trials that ran or run of them.

    Parameters
    ----------
    sizes : ndarray, shape (n_candidates,)
        Devices.
    costs : ndarray, shape (n_candidates,)
        What a trial costs, in the unit of the budget.
    num_runs : ndarray, shape (n_candidates,)
        Trials that have ended.
    pending
        The candidates of which trials run.
    is_affordable : ndarray, shape (n_candidates,)
        A trial fits into what is left of the budget.
    is_broken : ndarray, shape (n_candidates,)
        A trial failed, and does not run again.
    """

    sizes: np.ndarray
    costs: np.ndarray
    num_runs: np.ndarray
    pending: Sequence[int] = ()
    is_affordable: np.ndarray
    is_broken: np.ndarray

    @property
    def is_pending(self) -> np.ndarray:
        """Whether a trial of each runs, shape (n_candidates,)."""
        is_pending = np.zeros(len(self.sizes), bool)
        is_pending[[*self.pending]] = True
        return is_pending

    @property
    def is_seen(self) -> np.ndarray:
        """Whether a trial of each ran, or runs; shape (n_candidates,)."""
        return np.asarray((self.num_runs > 0) | self.is_broken | self.is_pending)

    @property
    def may_run(self) -> np.ndarray:
        """Whether a further trial of each tells something, shape (n_candidates,)."""
        is_settled = (self.num_runs >= _MOST_RUNS) | self.is_broken
        return np.asarray(~is_settled & ~self.is_pending)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What is decided now: the pick so far, and the next trial or the end.

    ``candidate`` None without an ``ending``: what runs is waited for. ``settles`` is
    the share of the expected regret that the trial is expected to remove. Where the
    budget ends the plan, ``candidate`` is the trial that a little more would buy.
    """

    pick: int
    surety: float  # the probability that the pick is at most a little worse than any
    candidate: int | None = None
    purpose: Purpose | None = None
    settles: float | None = None
    ending: Ending | None = None


def next_step(
    candidates: Candidates, prospects: Prospects, worth: float | None
) -> Step:
    """Decide on the next trial.

    Parameters
    ----------
    candidates
        What may run.
    prospects
        What is expected of them.
    worth
        What the job costs at its best, in the unit of the budget: a regret of 0.1 is a
        tenth of it. None: it is not known; every trial that helps is worth it until
        the decision is known, and none after that.
    """
    pick, surety = prospects.pick, prospects.surety
    regret = float(prospects.mean[pick])
    candidate, purpose, settles = _wanted(candidates, prospects, worth)

    worthwhile = math.inf
    if worth is not None and purpose is Purpose.DECIDES:
        worthwhile = regret * worth

    ending = _ending(candidates, candidate, worthwhile, is_sure=surety >= SURELY)
    if ending is not None and candidates.pending:
        # what runs is waited for, and may change it
        candidate, purpose, ending = None, None, None

    return Step(
        pick=pick,
        surety=surety,
        candidate=candidate,
        purpose=purpose,
        settles=settles,
        ending=ending,
    )


def _wanted(
    candidates: Candidates, prospects: Prospects, worth: float | None
) -> tuple[int | None, Purpose | None, float | None]:
    """Return the trial that would be next, what it is for, and what it settles."""
    is_sure = prospects.surety >= SURELY
    if is_sure:
        found, purpose = _before_the_end(candidates, prospects)
        if found is not None:
            return found, purpose, None

    gains = np.where(candidates.may_run, prospects.gains(candidates.pending), 0.0)
    if is_sure:
        # an estimate may exceed all that there is to gain
        found = _paying(candidates, np.minimum(gains, prospects.mean.min()), worth)
    else:
        found = _deciding(candidates, prospects, gains)
    if found is None:
        return None, None, None
    return found, Purpose.DECIDES, min(1.0, gains[found] / prospects.mean.min())


def _ending(
    candidates: Candidates, candidate: int | None, worthwhile: float, *, is_sure: bool
) -> Ending | None:
    """Return why the trial that would be next does not run; None: it does.

    ``worthwhile`` is the most that it may cost.
    """
    if candidate is None:
        return Ending.KNOWN if is_sure else Ending.EXHAUSTED
    if candidates.costs[candidate] >= worthwhile:
        return Ending.NOT_WORTH
    return None if candidates.is_affordable[candidate] else Ending.SPENT


def _before_the_end(
    candidates: Candidates, prospects: Prospects
) -> tuple[int | None, Purpose | None]:
    """Return what is measured yet before a decision counts as known.

    A law that has seen nothing beyond the pick cannot see a cliff there, nor can a
    trial of the pick: one trial at about twice its devices does. A measured time that
    a law takes for chance is measured again where the pick would not be the best if it
    were true.
    """
    pick, sizes = prospects.pick, candidates.sizes
    larger = np.unique(sizes[(sizes > sizes[pick]) & np.isfinite(prospects.mean)])
    if len(larger):
        twice = larger[np.abs(np.log(larger / (2 * sizes[pick]))).argmin()]
        is_beyond = (sizes > sizes[pick]) & (sizes <= twice)
        if not candidates.is_seen[is_beyond].any():
            regret = np.where(sizes == twice, prospects.mean, np.inf)
            return int(regret.argmin()), Purpose.BEYOND

    if not candidates.is_seen[pick]:
        return pick, Purpose.CONFIRMS

    contradicts = {
        candidate: regret[pick]
        for candidate, regret in prospects.as_measured.items()
        if candidates.may_run[candidate] and regret[pick] > LITTLE
    }
    if contradicts:
        return max(contradicts, key=contradicts.__getitem__), Purpose.CONTRADICTS
    return None, None


def _paying(
    candidates: Candidates, gains: np.ndarray, worth: float | None
) -> int | None:
    """Return the trial that saves the job most for its cost, and more than that."""
    if worth is None:
        return None
    pays = (gains * worth > candidates.costs) & (gains >= _LEAST_PAYING)
    value = np.where(pays & candidates.is_affordable, gains / candidates.costs, 0.0)
    return int(value.argmax()) if value.any() else None


def _deciding(
    candidates: Candidates, prospects: Prospects, gains: np.ndarray
) -> int | None:
    """Return the trial that changes the decision most for its cost.

    Where no single one is expected to change it, the likeliest rivals of the pick are
    measured one by one. Beside trials that run, only what changes it much is.
    """
    least = max(_MUCH * gains.max(), _LEAST_GAIN)
    if candidates.pending:
        least = max(least, _MUCH_BESIDE * float(prospects.mean.min()))

    is_much = gains >= least
    value = np.where(is_much, gains, 0.0)
    if not is_much.any() and not candidates.pending:
        is_open = candidates.may_run & (candidates.num_runs == 0)
        value = np.where(is_open, prospects.share_best, 0.0)

    affordable = np.where(candidates.is_affordable, value, 0.0)
    value = affordable if affordable.any() else value
    return int((value / candidates.costs).argmax()) if value.any() else None
