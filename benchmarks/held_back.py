"""Hold measured points of a run back, and let each law predict them from the others.

    python benchmarks/held_back.py RUN [--hold-back largest_scale] [--laws scalelab,usl]

The errors say how far each law that ``--law`` offers can be trusted on these
measurements. Notebook 05 in ``analysis`` shows the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

import numpy as np
import pandas as pd

import scalelab
from scalelab.errors import FitError
from scalelab.laws.published import LAWS, law_named
from scalelab.laws.rows import (
    CONFIGURATION,
    Observed,
    curve_columns,
    curve_label,
    prepared,
)

_FOLDS = 5
_SEED = 20240229


class HoldBack(StrEnum):
    """Which measured points are held back, so that a law must predict them."""

    LARGEST_SCALE = "largest_scale"
    """The largest world size of a curve."""
    LARGEST_BATCH = "largest_batch"
    """The largest local batch of a curve."""
    SCATTERED = "scattered"
    """A fifth of the configurations at a time, each once."""


_LARGEST = {
    HoldBack.LARGEST_SCALE: "world_size",
    HoldBack.LARGEST_BATCH: "local_batch_size",
}


def held_back_errors(
    observations: Observed,
    hold_back: HoldBack = HoldBack.LARGEST_SCALE,
    *,
    laws: Sequence[str] = tuple(LAWS),
    interval: float = 0.8,
) -> pd.DataFrame:
    """Predict the held-back points of every curve by every law."""
    rows = prepared(observations)
    left_out = ", ".join(map(str, rows.left_out))
    aside = f" Rows left out: {left_out}." if left_out else ""
    if rows.frame.empty:
        raise FitError(f"No row has a usable step time to be held back.{aside}")
    curves = rows.curves
    parts = [
        _contest(name, kept, held, interval).assign(curve=curve_label(key, curves))
        for key, frame in curves.items()
        for kept, held in _splits(frame, hold_back)
        for name in laws
    ]
    if not parts:
        raise FitError(f"{_nothing_to_spare(rows.frame, hold_back)}{aside}")
    table = pd.concat(parts, ignore_index=True)
    places = table[list(CONFIGURATION)].convert_dtypes()
    rest = table.drop(columns=["law", "curve", *CONFIGURATION])
    return pd.concat([table[["law", "curve"]], places, rest], axis=1)


def _nothing_to_spare(rows: pd.DataFrame, hold_back: HoldBack) -> str:
    if hold_back is HoldBack.SCATTERED:
        return (
            "No curve can spare a point: it takes three configurations, of which two "
            "are kept. Measure further world sizes or local batches."
        )
    column = _LARGEST[hold_back]
    values = sorted({f"{value:g}" for value in rows[column]}, key=float)
    return (
        f"No curve can spare its largest {column}: two configurations must be left. "
        f"Measured: {column} {', '.join(values)}. Measure others."
    )


def ranking(errors: pd.DataFrame) -> pd.DataFrame:
    """Rank laws by the mean size of their errors, smallest first."""
    sizes = errors.assign(size=errors["error"].abs())
    groups = sizes.groupby("law")
    table = pd.DataFrame(
        {
            "mean_error": groups["size"].mean(),
            "median_error": groups["size"].median(),
            "worst_error": groups["size"].max(),
            "inside": groups["inside"].mean(),
        }
    )
    return table.sort_values(["mean_error", "median_error"])


def _splits(
    frame: pd.DataFrame, hold_back: HoldBack
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Yield (kept, held back) rows of one curve."""
    place = frame.groupby(list(CONFIGURATION), sort=True).ngroup().to_numpy()
    if hold_back is HoldBack.SCATTERED:
        order = np.random.default_rng(_SEED).permutation(place.max() + 1)
        folds = order[place] % min(_FOLDS, len(order))
        masks = [folds == fold for fold in np.unique(folds)]
    else:
        column = _LARGEST[hold_back]
        masks = [(frame[column] == frame[column].max()).to_numpy()]
    for held in masks:
        if len(np.unique(place[~held])) > 1 and held.any():
            yield frame[~held], frame[held]


def _contest(
    name: str, kept: pd.DataFrame, held: pd.DataFrame, interval: float
) -> pd.DataFrame:
    """Fit one law to the kept rows of a curve and predict the held-back ones."""
    medians = held.groupby(list(CONFIGURATION))["step_time_s"].median()
    points = medians.reset_index()
    measured = points.pop("step_time_s")
    fixed = {column: kept[column].iloc[0] for column in curve_columns(kept)}
    answer = law_named(name).fit(kept).predict(points.assign(**fixed), interval)
    return points.assign(
        law=name,
        measured_s=measured,
        predicted_s=answer["step_time_s"],
        lo_s=answer["step_time_lo_s"],
        hi_s=answer["step_time_hi_s"],
        support=answer["support"],
        error=answer["step_time_s"] / measured - 1,
        inside=measured.between(answer["step_time_lo_s"], answer["step_time_hi_s"]),
    )


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
        The result of :func:`held_back_errors`; None where no
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
        """Hold points back, as :func:`held_back_errors`."""
        try:
            errors = held_back_errors(
                observations, hold_back, laws=laws, interval=interval
            )
        except FitError as error:
            return cls(errors=None, why_none=str(error))
        return cls(errors=errors)

    @property
    def ranking(self) -> pd.DataFrame:
        """The laws in order, see :func:`ranking`."""
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


def main() -> None:
    """Print the ranking and the points that were predicted worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--hold-back", type=HoldBack, default=HoldBack.LARGEST_SCALE)
    parser.add_argument("--laws", default=",".join(LAWS))
    asked = parser.parse_args()
    observations = scalelab.load(asked.run).observations
    contest = Contest.hold(observations, asked.hold_back, laws=asked.laws.split(","))
    if contest.errors is None:
        print(f"No contest. {contest.why_none}")
    else:
        print(contest.ranking.round(4).to_string())
        print(f"\n{contest.worst().round(4).to_string(index=False)}")


if __name__ == "__main__":
    main()
