"""The step-time law: step time against devices, nodes and local batch.

>>> import pandas as pd
>>> rows = pd.DataFrame(
...     {"world_size": [1, 1, 2, 4], "local_batch_size": [8, 32, 32, 32],
...      "step_time_s": [0.012, 0.041, 0.047, 0.050]}
... )
>>> law = StepTimeLaw.fit(rows)
>>> answer = law.predict(pd.DataFrame({"world_size": [4], "local_batch_size": [32]}))
>>> answer["support"].item()
'measured'
"""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from scalelab.errors import FitError, SpecError
from scalelab.inputs.guessed import Guided, by_guess
from scalelab.laws.asked import asked_configurations, law_in_words
from scalelab.laws.interval import NUM_DRAWS, check_mass
from scalelab.laws.left_out import LeftOut
from scalelab.laws.rows import (
    CONFIGURATION,
    CurveKey,
    Observed,
    agreeing,
    checked_configurations,
    curve_label,
    prepared,
    split_curves,
)
from scalelab.laws.step_time.curve import Curve, FittedCurve
from scalelab.laws.step_time.physics import Configurations
from scalelab.laws.step_time.prior import StepTimePrior
from scalelab.laws.step_time.shapes import Terms
from scalelab.laws.support import Gap

_ANSWER_COLUMNS = (
    "step_time_s",
    "step_time_lo_s",
    "step_time_hi_s",
    "throughput_samples_per_s",
    "support",
    "num_repeats",
)


_BATCHES = ("local_batch_size", "global_batch_size")
_USE = "law.parameters(), law.predict(world_size=32)"
_GUESSED = by_guess(
    {
        "law.predict(world_size=32)": "prediction forecast time step_time throughput "
        "extrapolate evaluate speedup efficiency",
        "law.parameters()": "params coefficients coef_ summary fitted values",
        "law.reference": "formula equation expression model",
        "law.identifiable": "is_identified identified open unknown",
        "law.doubted": "outliers residuals doubts errors",
        "run.figures.throughput": "plot show figure",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimeLaw(Guided):
    """The default step-time law: for each curve, an average over three shapes.

    Along a curve, workload, device, precision, parallelism and options are fixed; the
    number of devices and nodes and the batch vary. The shapes are three formulas for
    the growth of the step time (:mod:`~scalelab.laws.step_time.shapes`). They share a
    discrepancy, a Gaussian process for what no formula explains, and each has a prior.
    The parts of a step are defined in :mod:`~scalelab.laws.step_time.shapes`.

    Parameters
    ----------
    curves
        The fitted curves, by the columns that are fixed along them.
    left_out
        How many rows were not fitted, and why.
    """

    name: ClassVar[str] = "scalelab"
    reference: ClassVar[str] = (
        "T = (A-1) C + (C^g + S^g)^(1/g); C = (share + (1-share) b^(qp))^(1/q) "
        "(1 + imbalance + contention (k-1)); S grows as a ring in the node and links "
        "between nodes, or as one ring, hidden or not: averaged, with a Gaussian "
        "process for the rest; never shorter than a shared source of samples takes "
        "(Patarasuk and Yuan 2009; Qiao et al. 2021; Kennedy and O'Hagan 2001)"
    )

    _instead: ClassVar[Mapping[str, str]] = _GUESSED

    # Whether it predicts beyond the measured range what it predicts at its edge
    is_flat: ClassVar[bool] = False

    curves: Mapping[CurveKey, FittedCurve]
    left_out: tuple[LeftOut, ...]

    @classmethod
    def fit(cls, observations: Observed, prior: StepTimePrior | None = None) -> Self:
        """Fit every curve; curves on more nodes or devices inform related ones.

        Parameters
        ----------
        observations
            Rows of the observations frame; rows that ``validity`` marks, that did not
            complete or that have no step time are left out and counted.
        prior
            The prior of every curve; None: the shipped one.

        Raises
        ------
        FitError
            No row has a usable step time.
        """
        rows = prepared(observations)
        if rows.frame.empty:
            why = ", ".join(map(str, rows.left_out))
            raise FitError(
                f"None of the {len(rows.observations)} rows has a usable step time"
                f"{f' ({why})' if why else ''}. Run at least one throughput trial."
            )
        curves = cls._fit_curves(rows.curves, prior or StepTimePrior.shipped())
        return cls(curves=curves, left_out=rows.left_out)

    def predict(
        self,
        configurations: pd.DataFrame | None = None,
        interval: float = 0.8,
        **keywords: Any,
    ) -> pd.DataFrame:
        """Predict the step time of one further run.

        Every configuration gets an answer. The less the rows tell about it, the wider
        is its interval; ``support`` says what it rests on.

        Parameters
        ----------
        configurations
            ``world_size``, ``local_batch_size`` or ``global_batch_size``, and where
            they are not 1 ``num_nodes`` and ``gradient_accumulation_steps``; with
            several curves, the columns that tell them apart.
        interval
            Probability mass of the interval, in (0, 1).
        **keywords
            The same without a frame, each a value or several: ``world_size=32``. What
            they leave open is each curve that agrees, each local batch that was
            measured on it, and nodes as full as the fullest that was.

        Returns
        -------
        DataFrame
            The configurations' columns and ``step_time_s`` (the median),
            ``step_time_lo_s``, ``step_time_hi_s``, ``throughput_samples_per_s``,
            ``support``, see :class:`~scalelab.inputs.outcome.Support`, and
            ``num_repeats``, the number of runs measured there.

        Raises
        ------
        SpecError
            No run could have one of the configurations, or a configuration does not say
            to which curve it belongs.
        """
        check_mass(interval)
        if keywords or not isinstance(configurations, pd.DataFrame):
            configurations = self._asked(configurations, keywords)

        parts = [
            self._predict_curve(key, part, interval)
            for key, part in self._by_curve(configurations)
        ]
        if not parts:
            return configurations.assign(**{name: [] for name in _ANSWER_COLUMNS})

        answer = pd.concat(parts).sort_index()
        return configurations.assign(
            **{name: answer[name].to_numpy() for name in _ANSWER_COLUMNS}
        )

    def draws(
        self, configurations: pd.DataFrame, *, one_run: bool = False
    ) -> np.ndarray:
        """Draw step times from the joint distribution of several configurations.

        Draw for draw, configurations err together. The draws of one configuration do
        not depend on what else is asked.

        With ``one_run`` the draws include the spread between repeats; without it they
        are draws of the expected step time.

        Returns
        -------
        ndarray, shape (n_draws, n_configurations)
            Seconds.
        """
        draws = np.empty((NUM_DRAWS, len(configurations)))
        for key, frame in self._by_curve(configurations):
            draws[:, frame.index] = self.curves[key].draws(frame, one_run)
        return draws

    @classmethod
    def _fit_curves(
        cls, frames: Mapping[CurveKey, pd.DataFrame], prior: StepTimePrior
    ) -> Mapping[CurveKey, FittedCurve]:
        priors = prior.for_each(frames)
        return {key: Curve.fit(key, frames[key], priors[key]) for key in frames}

    def _asked(self, frame: object, keywords: Mapping[str, Any]) -> pd.DataFrame:
        """Return what keywords ask, completed by what was measured."""
        curves = [dict(key) for key in self.curves]
        names = dict.fromkeys(name for curve in curves for name in curve)
        telling = [n for n in names if len({str(curve.get(n)) for curve in curves}) > 1]
        columns = [*CONFIGURATION, *_BATCHES[1:], *telling]
        asked = asked_configurations(frame, keywords, columns, example="world_size")
        return self._with_what_is_open(asked, telling)

    def _with_what_is_open(
        self, asked: pd.DataFrame, telling: list[str]
    ) -> pd.DataFrame:
        rows = []
        for row in asked.to_dict("records"):
            values = {str(name): value for name, value in row.items()}
            has_batch = not values.keys().isdisjoint(_BATCHES)
            for key in agreeing(self.curves, values):
                points = self.curves[key].points
                telling_values = {name: value for name, value in key if name in telling}
                world_size = values.get("world_size", 1)
                nodes = int(np.ceil(world_size / points.at.per_node.max()))
                whole = {**telling_values, "num_nodes": nodes, **values}
                measured = [{"local_batch_size": b} for b in points.local_batches]
                batches: list[dict[str, float]] = [{}] if has_batch else measured
                rows += [{**whole, **batch} for batch in batches]
        return pd.DataFrame(rows) if rows else asked

    def _predict_curve(
        self, key: CurveKey, frame: pd.DataFrame, interval: float
    ) -> pd.DataFrame:
        curve = self.curves[key]
        run = curve.mixture(frame).of_one_run(*curve.points.further_run(frame))
        levels = [(1 + side * interval) / 2 for side in (0, -1, 1)]
        mid, lo, hi = np.exp([run.quantile(level) for level in levels])

        return pd.DataFrame(
            {
                "step_time_s": mid,
                "step_time_lo_s": lo,
                "step_time_hi_s": hi,
                "throughput_samples_per_s": frame["global_batch_size"] / mid,
                "support": curve.coverage.support(Configurations.of(frame)),
                "num_repeats": curve.points.repeats_of(frame),
            },
            index=frame.index,
        )

    def gaps_at(self, configurations: pd.DataFrame) -> tuple[Gap, ...]:
        """Return the gaps that widen the prediction of some configuration.

        Each names the trial that would measure what no row contains.
        """
        found = [
            gap
            for key, frame in self._by_curve(configurations)
            for gap in self.curves[key].coverage.gaps_at(Configurations.of(frame))
        ]
        return tuple(dict.fromkeys(found))

    def terms(self, configurations: pd.DataFrame) -> Terms | None:
        """Split expected step times into their parts; None if the law has none.

        Raises
        ------
        SpecError
            No configuration is given, or they belong to several curves.
        """
        curve, frame = self._one_curve(configurations)
        return curve.terms(frame)

    def term_draws(self, configurations: pd.DataFrame) -> Terms | None:
        """Draw the parts that :meth:`terms` gives, (n_draws, n_configurations)."""
        curve, frame = self._one_curve(configurations)
        return curve.term_draws(frame)

    def _one_curve(
        self, configurations: pd.DataFrame
    ) -> tuple[FittedCurve, pd.DataFrame]:
        parts = self._by_curve(configurations)
        if len(parts) != 1:
            raise SpecError(
                f"{len(configurations)} configurations on {len(parts)} curves were "
                "asked for the parts of a step. Ask for one or more of one curve.",
                code="not_one_curve",
            )
        ((key, frame),) = parts
        return self.curves[key], frame

    def _by_curve(self, frame: pd.DataFrame) -> list[tuple[CurveKey, pd.DataFrame]]:
        frame = frame.reset_index(drop=True)  # curves are indexed by position
        completed = checked_configurations(frame)
        return [
            (self._curve_of(key), completed.loc[part.index])
            for key, part in split_curves(frame).items()
            if len(part)
        ]

    def _curve_of(self, key: CurveKey) -> CurveKey:
        if key in self.curves:
            return key
        asked = dict(key)
        matches = [
            curve
            for curve in agreeing(self.curves, asked)
            if asked.keys() <= dict(curve).keys()
        ]
        if len(matches) == 1:
            return matches[0]

        labels = [curve_label(curve, self.curves) for curve in self.curves]
        raise SpecError(
            f"The configuration {asked or '{}'} matches {len(matches)} of "
            f"{len(self.curves)} fitted curves: {'; '.join(labels[:8])}. Add the "
            "columns that name one.",
            code="not_one_curve",
        )

    def __repr__(self) -> str:
        labels = [curve_label(key, self.curves) for key in self.curves]
        return law_in_words(f"law {self.name!r}", labels, _USE)

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.parameters().to_html()}"

    def parameters(self, interval: float = 0.8) -> pd.DataFrame:
        """Return the fitted parameters with intervals of this mass.

        Columns ``curve``, ``name``, ``value`` (median), ``lo``, ``hi``, ``unit``,
        ``identified`` and ``remedy``, the trial that would determine a parameter that
        is not identified.
        """
        frames = [
            curve.parameters(interval).assign(curve=curve_label(key, self.curves))
            for key, curve in self.curves.items()
        ]
        table = pd.concat(frames, ignore_index=True)
        return table[["curve", *table.columns.drop("curve")]]

    @property
    def doubted(self) -> pd.DataFrame:
        """The rows that hardly count, because the others contradict them.

        Columns ``curve``, those of the configuration, ``step_time_s`` as measured,
        ``predicted_s`` as the other rows say, and ``factor``, measured over predicted;
        by the index of the rows.
        """
        found = [
            curve.doubted.assign(curve=curve_label(key, self.curves))
            for key, curve in self.curves.items()
        ]
        table = pd.concat(found)
        return table.assign(factor=table["step_time_s"] / table["predicted_s"])

    @property
    def identifiable(self) -> pd.DataFrame:
        """Which parameters the rows determine, and which trial would determine others.

        Columns ``curve``, ``parameter``, ``identified``, ``remedy``.
        """
        rows = []
        for key, curve in self.curves.items():
            label, fitted = curve_label(key, self.curves), curve.parameters(0.8)
            known = fitted[["name", "identified", "remedy"]].itertuples(index=False)
            rows += [(label, *row) for row in known]
            rows += [
                (label, name, False, gap.remedy)
                for gap in curve.gaps
                for name in gap.parameters
                if name not in set(fitted["name"])
            ]

        return pd.DataFrame(
            rows, columns=["curve", "parameter", "identified", "remedy"]
        )
