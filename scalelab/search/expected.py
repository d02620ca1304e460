"""What the laws expect of the candidates of an adaptive sweep, from its rows so far."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from scalelab.experiment.trial import Trial
from scalelab.kinds.resources import DEVICE_HOURS, MONEY
from scalelab.laws.rows import CONFIGURATION, CurveKey, FitRows, numbers
from scalelab.plan.budget import Spent
from scalelab.recommend.answer.kept import Question
from scalelab.recommend.by_device import consider_kind, limits_of
from scalelab.recommend.knowledge import History
from scalelab.recommend.prediction.next_trial import loss
from scalelab.recommend.prediction.outlook import Outlook, look_ahead
from scalelab.recommend.question.devices import kinds_of
from scalelab.recommend.question.objective import Constraints, RunSite
from scalelab.recommend.question.spending import Spending
from scalelab.records.taken_over import IMPORTED
from scalelab.search.candidates import configuration
from scalelab.search.planner import Prospects, departures

_PLACE = "candidate"  # a candidate's position, as a column
_MOST_REGRET = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What is expected of candidates of which a curve was measured.

    Parameters
    ----------
    places
        Their positions among all candidates.
    prospects
        Of these candidates, in this order.
    step_s : ndarray, shape (n_places,)
        Median step times.
    job
        What the job takes on the pick, in the unit of each kind of budget.
    knows_link
        Something tells the speed of the link between nodes.
    """

    places: Sequence[int]
    prospects: Prospects
    step_s: np.ndarray
    job: Mapping[Spent, float]
    knows_link: bool


def expected(
    rows: FitRows,
    candidates: Sequence[Trial],
    curves: Mapping[int, CurveKey],
    question: Question,
    site: RunSite | None,
    history: History | None = None,
    *,
    broken: Collection[int] = (),
) -> Expected | None:
    """Predict candidates, by joint draws of the laws.

    Parameters
    ----------
    rows
        What was measured, here and elsewhere: the devices are those that were here.
    curves
        The measured curve of each candidate, by its position; one of another program or
        precision, say, of which nothing was measured, has none.
    broken
        Candidates of which a trial failed: they are not to be chosen.

    Returns
    -------
    Expected or None
        None: no candidate can be chosen, since none runs, or none has an allowed batch.

    Raises
    ------
    FitError, SpecError
        The rows do not suffice, or the question is wrong.
    """
    here = rows.observations[rows.observations["kind"] != IMPORTED]
    kind = kinds_of(here if len(here) else rows.observations)[0]
    frame = kind.rows(rows.observations)
    limits = limits_of(question, kind, rows.observations, site.site if site else None)
    considered = consider_kind(
        replace(question, limits=limits), rows, frame, kind, site, history
    )
    knowledge = considered.knowledge
    asked = _configurations(candidates, curves)
    places = asked[_PLACE].to_numpy()
    outlook = look_ahead(asked, knowledge, limits, accepts_unmeasured=True)

    at = np.searchsorted(places, outlook.frame[_PLACE].to_numpy(int))
    may_be = outlook.is_measured | knowledge.memory.fits(asked)[at]
    may_be &= outlook.is_allowed_batch & ~np.isin(places[at], [*broken])
    if not may_be.any():
        return None

    def regret(expected_s: np.ndarray) -> np.ndarray:
        by_row = _regret(outlook, expected_s, limits, may_be)
        found = np.full((len(by_row), len(asked)), np.inf)
        for row, column in enumerate(at):
            found[:, column] = np.minimum(found[:, column], by_row[:, row])
        return found

    shown = knowledge.law.draws(asked, one_run=True)
    step_s = np.median(shown, axis=0)
    middle_s = np.median(outlook.expected_s, axis=0)
    measured_s = _measured(
        rows,
        {
            int(column): (curves[places[column]], candidates[places[column]])
            for column in np.unique(at)
        },
    )
    prospects = Prospects(
        regret=regret(outlook.expected_s),
        shown=shown,
        as_measured={
            column: regret(np.where(at == column, factor * middle_s, middle_s)[None])[0]
            for column, factor in departures(measured_s, step_s).items()
        },
    )
    pick = np.flatnonzero(at == prospects.pick)[:1]
    is_measured = bool((numbers(rows.frame, "num_nodes") > 1).any())
    return Expected(
        places=places.tolist(),
        prospects=prospects,
        step_s=step_s,
        job=_job(outlook.spent.take(pick)),
        knows_link=is_measured or considered.link is not None,
    )


def _configurations(
    candidates: Sequence[Trial], curves: Mapping[int, CurveKey]
) -> pd.DataFrame:
    rows = []
    for place, key in sorted(curves.items()):
        trial = candidates[place]
        sizes = (
            trial.world_size,
            trial.allocation.num_nodes,
            trial.local_batch_size,
            trial.gradient_accumulation_steps,
            trial.data_parallel_size,
        )
        named = dict(zip(CONFIGURATION, sizes, strict=True))
        rows.append({**named, **dict(key), _PLACE: place})
    return pd.DataFrame(rows)


def _regret(
    outlook: Outlook, expected_s: np.ndarray, limits: Constraints, may_be: np.ndarray
) -> np.ndarray:
    """Return by which share each row is worse than the best, (n_draws, n_rows).

    ``expected_s`` are times of the job, of the same shape. The best is one of those
    that may be chosen, ``may_be``.

    Without limits, the best is where a further doubling stops paying: where time times
    a power of the devices is least. A doubling that gives the least return that pays
    leaves that product as it was.
    """
    sizes, nodes = (
        outlook.frame[name].to_numpy(float) for name in ("world_size", "num_nodes")
    )
    if limits.limited:
        spent = limits.spending(expected_s, sizes, nodes)
        amount = loss(spent, sizes, limits)
    else:
        power = np.log2(1 + limits.min_marginal_return)
        amount = expected_s * sizes**power

    least = np.where(may_be, amount, np.inf).min(axis=1, keepdims=True)
    return np.where(may_be, np.minimum(amount / least - 1, _MOST_REGRET), np.inf)


def _measured(
    rows: FitRows, asked: Mapping[int, tuple[CurveKey, Trial]]
) -> dict[int, float]:
    """Return the median step time in seconds of each that was measured."""
    medians = {
        key: part.groupby([*CONFIGURATION])["step_time_s"].median()
        for key, part in rows.curves.items()
    }
    found = {
        column: medians[key].get(configuration(trial))
        for column, (key, trial) in asked.items()
    }
    return {column: step_s for column, step_s in found.items() if step_s is not None}


def _job(spent: Spending) -> dict[Spent, float]:
    medians = spent.medians()
    found = {
        Spent.TIME: float(medians.time_s[0]),
        Spent.DEVICE_TIME: float(medians.of(DEVICE_HOURS)[0]) * 3600,
    }
    if MONEY in medians.known:
        found[Spent.MONEY] = float(medians.of(MONEY)[0])
    return found
