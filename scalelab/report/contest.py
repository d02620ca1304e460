"""Which law would have predicted points that were held back, as a notebook shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd

from scalelab.errors import FitError
from scalelab.laws.rivals.held_back import HoldBack, held_back_errors, ranking
from scalelab.laws.rivals.laws import LAWS

_PLACE = {
    "curve": False,
    "world_size": True,
    "num_nodes": False,
    "local_batch_size": True,
    "gradient_accumulation_steps": False,
}
"""What says which point, and whether it is shown where all have the same."""

_TIMES = ("measured_s", "predicted_s", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """Laws judged by the same held-back points.

    Parameters
    ----------
    errors
        The result of :func:`~.held_back.held_back_errors`; None where no
        point could be held back.
    why_none
        Why not; empty where there are points.
    """

    errors: pd.DataFrame | None
    why_none: str = ""

    @classmethod
    def hold(
        cls,
        observations: pd.DataFrame,
        hold_back: HoldBack,
        *,
        laws: Sequence[str] = tuple(LAWS),
        interval: float = 0.8,
    ) -> Contest:
        """Hold points back, as :func:`~.held_back.held_back_errors`."""
        try:
            errors = held_back_errors(
                observations, hold_back, laws=laws, interval=interval
            )
        except FitError as error:
            return cls(errors=None, why_none=str(error))
        return cls(errors=errors)

    @property
    def ranking(self) -> pd.DataFrame:
        """The laws in order, see :func:`~scalelab.laws.rivals.held_back.ranking`."""
        if self.errors is None:
            return pd.DataFrame()
        return ranking(self.errors)

    def worst(self, count: int = 12) -> pd.DataFrame:
        """Return the points that were predicted worst, errors relative."""
        if self.errors is None:
            return pd.DataFrame()
        order = (
            self.errors["error"].abs().sort_values(ascending=False, kind="stable").index
        )
        place = [
            name
            for name, is_shown_always in _PLACE.items()
            if is_shown_always or self.errors[name].nunique() > 1
        ]
        table = self.errors.loc[order[:count], ["law", *place, *_TIMES]]
        return table.reset_index(drop=True)

    def _repr_html_(self) -> str:
        """Show the ranking, or why there is no contest."""
        if self.errors is None:
            return f"<p>No contest. {escape(self.why_none)}</p>"
        table = self.ranking.rename(columns=lambda name: name.replace("_", " "))
        styled = table.rename_axis(None).style.format("{:.1%}")
        styled = styled.format("{:.0%}", subset=["inside"])
        return styled.to_html()
