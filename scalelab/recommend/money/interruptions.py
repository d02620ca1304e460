"""Interruptions: the time of a job whose nodes may be taken away while it runs.

References
----------
Daly 2006, *A higher order estimate of the optimum checkpoint interval for restart
dumps*, Future Generation Computer Systems 22(3), doi 10.1016/j.future.2004.11.016.
"""

from dataclasses import dataclass

import numpy as np

from scalelab.laws.interval import SEED

MOST_TIMES = 100.0  # of its work, after which a job is taken never to end
_MOST_EVENTS = 600  # that are simulated; what is left then goes on at the pace so far
_LEAST_S = 1e-3  # a wait of no length
_NONE = 1e-12  # a pace, or a rate, of none


def best_interval(checkpoint_s: float, between_s: np.ndarray) -> np.ndarray:
    """Return the seconds of work between checkpoints that lose least time.

    Daly 2006, equation 37: ``checkpoint_s`` is the time of one checkpoint,
    ``between_s`` the mean time between interruptions of the whole job.
    """
    share = np.sqrt(checkpoint_s / (2 * between_s))
    factor = 1 + share / 3 + share**2 / 9
    interval = np.sqrt(2 * checkpoint_s * between_s) * factor - checkpoint_s
    return np.where(checkpoint_s < 2 * between_s, interval, between_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruptions:
    """How often nodes are interrupted, and what an interruption costs.

    Parameters
    ----------
    per_second : ndarray, shape (n_draws,)
        Interruptions of one node per second, as draws of what is known of them.
    checkpoint_s
        The time in which a checkpoint is written and nothing is computed.
    interval_s
        Work between two checkpoints; None: what :func:`best_interval` says.
    restart_s
        From the moment that all nodes are there to the first step.
    wait_s
        Mean time until a node that was taken is replaced.
    """

    per_second: np.ndarray
    checkpoint_s: float
    interval_s: float | None
    restart_s: float
    wait_s: float

    def intervals(self, num_nodes: np.ndarray) -> np.ndarray:
        """Return the work between checkpoints on so many nodes, in seconds."""
        if self.interval_s is not None:
            return np.full(len(num_nodes), self.interval_s)
        between_s = 1 / (num_nodes * np.median(self.per_second))
        return best_interval(self.checkpoint_s, between_s).clip(min=_LEAST_S)


def simulated(
    work_s: np.ndarray,
    num_nodes: np.ndarray,
    is_gang: np.ndarray,
    terms: Interruptions,
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate the events of jobs: nodes that are lost, and nodes that come.

    Both come at random, without memory. Nodes of a gang work only while all are there;
    with the first that is lost, what was done since the last checkpoint is lost, and
    work begins again after a restart. Where workers do not wait for one another, the
    others go on: of a worker that is lost, only its share of the pace is missing until
    it has been replaced and started.

    Parameters
    ----------
    work_s : ndarray, shape (n_draws, n_rows)
        Time without interruptions.
    num_nodes : ndarray, shape (n_rows,)
        Nodes that are lost one by one.
    is_gang : ndarray, shape (n_rows,)
        Whether their ranks wait for one another.
    terms
        How often nodes are lost, and what that costs. A job that takes more than
        ``MOST_TIMES`` its work is cut off there.

    Returns
    -------
    time_s, charged_s : ndarray, shape (n_draws, n_rows)
        The time of the jobs, and that for which all nodes together are charged: those
        that are there, waiting or not.
    """
    rng = np.random.default_rng(SEED + 11)
    even = (np.arange(len(work_s)) + 0.5) / len(work_s)
    draw, row = (index.ravel() for index in np.indices(work_s.shape))
    work, nodes = work_s.ravel().astype(float), num_nodes[row].astype(float)
    gang, interval_s = is_gang[row], terms.intervals(num_nodes)[row]
    rate = terms.per_second[draw]
    wait_s = np.where(gang, terms.wait_s, terms.wait_s + terms.restart_s)
    wait_s = wait_s.clip(min=_LEAST_S)
    # of a node that is not there, the share of its time in which it is charged
    held = np.where(gang, 0.0, terms.restart_s / wait_s)
    left, present, lead_s = work.copy(), nodes.copy(), np.zeros_like(work)
    time_s, charged_s = np.zeros_like(work), np.zeros_like(work)

    going = np.arange(work.size)
    for _ in range(_MOST_EVENTS):
        # the same luck for all rows of a draw; over the draws it is evenly spread
        waits, luck = -np.log(rng.permutation(even)), rng.permutation(even)
        at, here, all_nodes = going, present[going], nodes[going]
        losses = here * rate[at]
        events = losses + (all_nodes - here) / wait_s[at]
        gap_s = waits[draw[at]] / events.clip(min=_NONE)
        works = ~gang[at] | (here == all_nodes)
        pace = np.where(gang[at], 1.0, here / all_nodes) * works
        num_checkpoints = np.where(gang[at], np.ceil(left[at] / interval_s[at]) - 1, 0)
        needed_s = lead_s[at] + left[at] + num_checkpoints * terms.checkpoint_s
        needed_s /= pace.clip(min=_NONE)
        spent_s = np.minimum(gap_s, needed_s)
        time_s[at] += spent_s
        absent = (all_nodes - here) * held[at]
        charged_s[at] += spent_s * (here + absent) / all_nodes
        stays = (gap_s < needed_s) & (time_s[at] < MOST_TIMES * work[at])

        going, gap_s, works = at[stays], gap_s[stays], works[stays]
        if not going.size:
            break

        done_s = gap_s * pace[stays]
        whole_s = interval_s[going] + terms.checkpoint_s
        saved = np.floor((gap_s - lead_s[going]).clip(min=0) / whole_s)
        saved_s = saved * interval_s[going] * works
        left[going] -= np.where(gang[going], saved_s, done_s)
        lead_s[going] = np.where(gang[going], terms.restart_s, 0.0)
        is_loss = luck[draw[going]] * events[stays] < losses[stays]
        present[going] += np.where(is_loss, -1.0, 1.0)

    done_s = (work - left)[going].clip(min=_NONE * work[going])
    time_s[going] *= work[going] / done_s
    charged_s[going] *= work[going] / done_s
    cut = np.minimum(1.0, MOST_TIMES * work / time_s)
    return (time_s * cut).reshape(work_s.shape), (charged_s * cut).reshape(work_s.shape)
