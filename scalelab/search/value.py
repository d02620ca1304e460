"""The value of information: how far a trial is expected to improve a decision.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

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
