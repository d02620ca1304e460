"""The planner of measurements: which trial is worth most to a decision, and the end.

It knows candidates, what the laws expect of them, and what a trial of each costs. It
ends when the decision is known, and no trial saves the job more than it costs; when the
best that further trials could bring is worth less than the next one costs; or when
nothing that would help is affordable.

The decision is which candidate a job runs on. Draws of the laws say, draw by draw, how
much worse each candidate is than the best one. A trial shows one candidate's step time,
and so tells of all that the draws connect with it. What the decision gains on average
by that (the expected value of sample information) is estimated by regressing the
regrets on what the trial would show.

References
----------
Strong, Oakley and Brennan 2014, *Estimating multiparameter partial expected value of
perfect information from a probabilistic sensitivity analysis sample*, Medical Decision
Making 34.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from scalelab.plan.inquiry import Ending, Purpose

LITTLE = 0.05
"""A regret that nobody minds: so much worse than the best, as a share of it."""
_MOST_OPTIONS = 64  # candidates among which a better informed decision would choose
_EXPONENTS = np.arange(1, 4)  # of what a trial shows, in the regression


@dataclass(frozen=True, kw_only=True, slots=True)
class Prospects:
    """What is expected of the candidates of a decision, by joint draws of the laws.

    Parameters
    ----------
    regret : ndarray, shape (n_draws, n_candidates)
        By which share each candidate is worse than the best one, in each draw;
        infinite where it cannot be chosen.
    shown : ndarray, shape (n_draws, n_candidates)
        The step time in seconds that a trial of each would show. Draw for draw it
        belongs to the regrets.
    as_measured : mapping to ndarray, shape (n_candidates,)
        By candidate that departs from what the laws expect of it by more than a little:
        the regrets if what its trials showed is true, and not what the laws expect.
    """

    regret: np.ndarray
    shown: np.ndarray
    as_measured: Mapping[int, np.ndarray] = field(default_factory=dict)

    @property
    def mean(self) -> np.ndarray:
        """The expected regret of each candidate, shape (n_candidates,)."""
        return np.asarray(self.regret.mean(axis=0))

    @property
    def pick(self) -> int:
        """The candidate with the least expected regret."""
        return int(self.mean.argmin())

    @property
    def surety(self) -> float:
        """The probability that the pick is at most a little worse than the best."""
        return float((self.regret[:, self.pick] <= LITTLE).mean())

    @property
    def share_best(self) -> np.ndarray:
        """The share of draws in which each candidate is the best, (n_candidates,)."""
        num_draws, num_candidates = self.regret.shape
        best = self.regret.argmin(axis=1)
        return np.asarray(np.bincount(best, minlength=num_candidates) / num_draws)

    def gains(self, pending: Sequence[int] = ()) -> np.ndarray:
        """Return the expected decrease of regret by each trial, (n_candidates,).

        It comes on top of what ``pending`` trials will have shown by then.
        """
        mean = self.mean
        order = np.argsort(mean, kind="stable")[:_MOST_OPTIONS]
        regret = self.regret[:, order[np.isfinite(mean[order])]]

        scores = _normal_scores(self.shown)
        features = scores[:, :, None] ** _EXPONENTS
        known = features[:, [*pending]].reshape(len(scores), -1)
        before = _informed(regret, known)
        found = [
            before - _informed(regret, np.column_stack([known, features[:, probe]]))
            for probe in range(scores.shape[1])
        ]

        return np.maximum(found, 0.0)


def departures(
    measured_s: Mapping[int, float], expected_s: np.ndarray
) -> dict[int, float]:
    """Return by which factors measured step times depart from the expected ones.

    Both are in seconds, and by candidate; those that depart by a little are left out.
    """
    factors = {at: step_s / expected_s[at] for at, step_s in measured_s.items()}
    return {
        at: factor
        for at, factor in factors.items()
        if abs(np.log(factor)) > np.log1p(LITTLE)
    }


def _informed(regret: np.ndarray, features: np.ndarray) -> float:
    """Return the mean regret of the candidates that features of the draws point to.

    They are learned on one half of the draws and judged on the other: on the same
    draws, chance would look like information.
    """
    is_even = np.arange(len(regret)) % 2 == 0
    terms = np.column_stack([np.ones(len(regret)), features])
    total = 0.0
    for learned in (is_even, ~is_even):
        weights = np.linalg.lstsq(terms[learned], regret[learned], rcond=None)[0]
        chosen = (terms[~learned] @ weights).argmin(axis=1)
        total += float(regret[~learned][np.arange(len(chosen)), chosen].sum())
    return total / len(regret)


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Return the ranks of draws as quantiles of the normal distribution."""
    ranks = values.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable")
    return np.asarray(ndtri((ranks + 0.5) / len(values)))


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
