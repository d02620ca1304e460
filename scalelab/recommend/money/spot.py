"""The spot market: on which terms the nodes of a kind of device may be taken away."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.special import gammaincinv

from scalelab.errors import SpecError
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import Option
from scalelab.laws.interval import NUM_DRAWS, SEED, levels
from scalelab.laws.rows import cells, numbers
from scalelab.recommend.money.history import PriceHistory
from scalelab.recommend.money.interruptions import Interruptions
from scalelab.recommend.money.prices import Price
from scalelab.site.spot import Spot

_ASSUMED_S = {"checkpoint": 60.0, "restart": 60.0, "wait": 180.0}
_AT_MOST = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenInterruptions:
    """How many nodes a run lost, and for how long it held nodes."""

    count: int
    node_hours: float

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Count the attempts whose nodes were lost or taken away."""
        lost = (Outcome.PREEMPTED, Outcome.NODE_FAIL)
        count = sum(outcome in lost for outcome in cells(frame, "outcome"))
        start, end = (
            pd.to_datetime(frame.reindex(columns=[name])[name], utc=True)
            for name in ("started_at", "ended_at")
        )
        hours = (end - start).dt.total_seconds() / 3600 * numbers(frame, "num_nodes")
        return cls(count=count, node_hours=float(hours.sum()))

    def per_hour(self, shares: np.ndarray) -> np.ndarray:
        """Return quantiles of the interruptions of one node in an hour.

        Their number is a Poisson variable; before it is known any rate is as likely
        as any other. So none in E node-hours says: at most 3 / E, with 95%.
        """
        return np.asarray(gammaincinv(self.count + 1, shares) / self.node_hours)


def known_seconds(
    terms: Spot, start_up_s: float
) -> tuple[dict[str, float], dict[str, str]]:
    """Return how long a checkpoint, a restart and a wait take, and who says so.

    ``start_up_s`` is the measured one; 0: none was measured.
    """
    given = {
        name: seconds
        for name in _ASSUMED_S
        if (seconds := getattr(terms, name)) is not None
    }
    measured = {"restart": start_up_s} if start_up_s > 0 else {}
    sources = {
        **dict.fromkeys(_ASSUMED_S, "assumed"),
        **dict.fromkeys(measured, "measured"),
        **dict.fromkeys(given, "as given"),
    }
    return {**_ASSUMED_S, **measured, **given}, sources


@dataclass(frozen=True, kw_only=True, slots=True)
class SpotMarket:
    """What interruptible nodes cost, how they are interrupted, and who says so."""

    price: Price | None
    interruptions: Interruptions
    # what the sentence on the terms says: seconds by name, and where they come from
    terms: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        terms: Spot,
        on_demand: Price | None,
        seen: SeenInterruptions,
        start_up_s: float,
        *,
        is_asked: bool = False,
    ) -> Self:
        """Read the terms; what is missing is measured, or assumed.

        ``is_asked``: the question itself says the price.

        Raises
        ------
        SpecError
            If the price is in another currency than on demand.
        """
        known_s, sources = known_seconds(terms, start_up_s)
        every_s, observed = terms.interrupted_every, {}
        if every_s is None:
            per_second = seen.per_hour(levels(SEED + 13)) / 3600
            observed = {
                "num_seen": seen.count,
                "node_hours": seen.node_hours,
                "at_most_per_hour": float(seen.per_hour(np.array([_AT_MOST]))[0]),
                "at_most_sure": _AT_MOST,
            }
        else:
            per_second = np.full(NUM_DRAWS, 1 / every_s)

        return cls(
            price=_spot_price(terms, on_demand, is_asked=is_asked),
            interruptions=Interruptions(
                per_second=per_second,
                checkpoint_s=known_s["checkpoint"],
                interval_s=terms.checkpoint_every,
                restart_s=known_s["restart"],
                wait_s=known_s["wait"],
            ),
            terms={
                **{f"{name}_s": seconds for name, seconds in known_s.items()},
                "sources": sources,
                "every_s": every_s,
                **observed,
            },
        )


def _spot_price(
    terms: Spot, on_demand: Price | None, *, is_asked: bool
) -> Price | None:
    """Return the price of interruptible nodes, charged by what is charged on demand."""
    usual, history, said_by = on_demand or Price(amount=0.0), None, "as given"
    if terms.history is not None:
        history = PriceHistory.read(Path(terms.history).expanduser())
        amount, currency = history.mean, history.currency
        said_by = f"on average, by {history.name}"
    elif terms.price is not None:
        amount, currency = float(terms.price), terms.price.currency
        said_by = said_by if is_asked else usual.said_by
    else:
        return None

    if on_demand and currency and currency != on_demand.currency:
        raise SpecError(
            f"{Option('spot')}: the price on the spot market is in {currency}, that on "
            f"demand in {on_demand.currency}. Say both in one currency.",
            code="spot_in_other_currency",
        )

    return replace(
        usual,
        amount=amount,
        currency=currency or usual.currency,
        history=history,
        terms=None,
        said_by=said_by,
    )
