"""The knowledge behind an answer: its subject, measurements, and fitted laws.

A row of a typing error does not fit between its neighbours, and is named.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.experiment.trial import TrialKind
from scalelab.inputs.document import Scalar
from scalelab.inputs.links import Link
from scalelab.inputs.numerals import counted, device_words
from scalelab.inputs.outcome import Support
from scalelab.inputs.problems import Option
from scalelab.laws.convergence.rows import RATE_SETTINGS, is_equal
from scalelab.laws.convergence.time_to_target import Factorisation
from scalelab.laws.convergence.whole_runs import WholeRunLaw, measured_whole_runs
from scalelab.laws.rows import (
    CONFIGURATION,
    CurveKey,
    FitRows,
    cells,
    curve_columns,
    curve_name,
    numbers,
    step_time_rows,
    strategies,
)
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.prior import StepTimePrior, are_related
from scalelab.plan.first_check import AT_LEAST, NOT_WITNESSED
from scalelab.recommend.afterwards.calibration import Calibration
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.evidence import Accuracy
from scalelab.recommend.prediction.consistency import (
    contradicted_samples,
    contradictions,
    having,
    is_among,
)
from scalelab.recommend.prediction.needs import Overhead, SampleNeed
from scalelab.recommend.question.batches import BatchRule
from scalelab.recommend.question.candidates import MemoryRoom, allocation_label
from scalelab.recommend.question.devices import (
    DEVICE_COLUMNS,
    DeviceKind,
    has_value,
    kinds_of,
)
from scalelab.records.columns import OPTION_PREFIX

_UNEVEN = 1.1  # factor between rates beyond which a neighbour is far away
_BATCH = ["local_batch_size", "gradient_accumulation_steps"]


def uneven(rows: FitRows, doubted: pd.DataFrame) -> dict[Any, Fact]:
    """Note allocations measured once that do not fit between their neighbours.

    At the same local batch, each device did clearly more on a larger allocation, or all
    devices together did on a smaller one. Where one is far above several others, it is
    the one that is named. Doubted rows are left out; notes are by the index of the row.
    """
    frame = rows.frame.drop(index=doubted.index)
    frame = frame.assign(rate=frame["global_batch_size"] / frame["step_time_s"])
    found: dict[Any, Fact] = {}
    for key, curve in rows.curves.items():
        places = _places(frame.loc[frame.index.intersection(curve.index)])
        places = places.assign(curve=curve_name(key, rows.curves))
        for _, alike in places.groupby(_BATCH):
            found |= _among([*alike.itertuples(index=False)])
    return found


def _places(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for the runs of a local batch on each number of devices.

    It is the first of them, with the median of their rates.
    """
    runs = rows.assign(row=rows.index).groupby([*_BATCH, "world_size"])
    found = runs[["row", "num_nodes"]].first().reset_index()
    rate, num_runs = runs["rate"].median(), runs["rate"].size()
    found = found.assign(rate=rate.to_numpy(), num_runs=num_runs.to_numpy())
    return found.assign(of_one=found["rate"] / found["world_size"])


def _among(places: list[Any]) -> dict[Any, Fact]:
    low: list[tuple[Any, Any, bool]] = []
    for at, place in enumerate(places):
        larger = max(places[at:], key=lambda neighbour: neighbour.of_one)
        smaller = max(places[: at + 1], key=lambda neighbour: neighbour.rate)
        if larger.of_one > _UNEVEN * place.of_one:
            low.append((place, larger, True))
        elif smaller.rate > _UNEVEN * place.rate:
            low.append((place, smaller, False))

    above = Counter(larger.world_size for _, larger, is_of_one in low if is_of_one)
    named = [
        (larger, place, True) if above[larger.world_size] > 1 else (place, larger, kind)
        for place, larger, kind in low
    ]
    ends = {places[0].world_size, places[-1].world_size}
    return {
        place.row: _fact(place, *rest, is_between=place.world_size not in ends)
        for place, *rest in named
        if place.num_runs == 1
    }


def _fact(place: Any, other: Any, is_of_one: bool, *, is_between: bool) -> Fact:
    rates = [
        neighbour.of_one if is_of_one else neighbour.rate
        for neighbour in (place, other)
    ]
    size = int(place.world_size)
    return Fact.of(
        "uneven",
        world_size=size,
        allocation=allocation_label(size, int(place.num_nodes)),
        local_batch_size=int(place.local_batch_size),
        gradient_accumulation_steps=int(place.gradient_accumulation_steps),
        samples_per_s=float(rates[0]),
        other_world_size=int(other.world_size),
        other_samples_per_s=float(rates[1]),
        is_of_one=is_of_one,
        is_between=is_between,
        curve=place.curve,
    )


_ONE_VALUE = ("workload", "sequence_length", "dataset", "emulated")
_MAX_LISTED = 6
# Figures that carry a mark, with the column and its value that say so: no second source
# confirms samples or ranks, or the step time had not settled
MARKS = {
    "samples": ("samples_witness", NOT_WITNESSED),
    "ranks": ("ranks_witness", NOT_WITNESSED),
    "settled": ("settled", "False"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedCurves:
    """Observations of one workload on one kind of device."""

    frame: pd.DataFrame
    # ``frame`` and the observations on other devices: how many samples training needs
    # does not depend on the device
    everywhere: pd.DataFrame
    workload: str
    device_name: str
    node_group: str
    device_word: str
    device_hour_word: str
    is_emulated: bool
    device: str  # by which it is told from others
    is_interruptible: bool = False  # its nodes are those of the spot market


def choose_subject(
    observations: pd.DataFrame,
    select: Mapping[str, Scalar],
    device: DeviceKind | None = None,
) -> AskedCurves:
    """Choose the observations of one workload on one kind of device."""
    everywhere = selected(observations, select)
    frame = everywhere if device is None else device.rows(everywhere)
    refuse_several(frame, (*_ONE_VALUE, *DEVICE_COLUMNS))
    is_emulated = _only(frame, "emulated") == "True"
    kind = device or kinds_of(frame)[0]
    words = device_words(kind.device_type, is_emulated=is_emulated)

    return AskedCurves(
        frame=frame,
        everywhere=everywhere,
        workload=_only(frame, "workload"),
        device_name=kind.device_name,
        node_group=kind.node_group,
        device_word=words.device,
        device_hour_word=words.hour,
        is_emulated=is_emulated,
        device=kind.label,
    )


def selected(observations: pd.DataFrame, select: Mapping[str, Scalar]) -> pd.DataFrame:
    """Return the rows with the selected values."""
    frame = observations
    for name, value in select.items():
        chosen = with_value(frame, name, value).index
        if name in DEVICE_COLUMNS:
            # what tells samples alone holds on any device
            chosen = chosen.union(frame.index[frame[name].isna()])

        is_timed = is_equal(frame, "kind", TrialKind.THROUGHPUT)
        if name in RATE_SETTINGS and not chosen.isin(frame.index[is_timed]).all():
            # what tells times alone holds at any rate
            chosen = chosen.union(frame.index[is_timed])

        frame = frame.loc[chosen]
    return frame


def refuse_several(frame: pd.DataFrame, names: Iterable[str] = _ONE_VALUE) -> None:
    """Refuse rows of several workloads, or of what else an answer is about one of."""
    for name in names:
        counts = _counts(frame, name)
        unnamed = len(frame) - sum(counts.values())
        # Any other column may be missing in trials that failed early.
        if name == "workload" and counts and unnamed:
            counts["none"] = unnamed

        if len(counts) > 1:
            rows = [f"{value} ({counted(counts[value], 'row')})" for value in counts]
            more = len(counts) - _MAX_LISTED
            raise SpecError(
                f"The observations mix {len(counts)} values of {name}: "
                f"{', '.join(rows[:_MAX_LISTED])}"
                f"{f' and {more} more' if more > 0 else ''}. One answer is about one "
                "of them.",
                f"Choose it with {Option('select', 'VALUE', key=name)}.",
                code="several_values",
            )


def apart(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the names and values of which each has an answer of its own."""
    values = ([(name, value) for value in _counts(frame, name)] for name in _ONE_VALUE)
    return next((pairs for pairs in values if len(pairs) > 1), [])


def compared_columns(observations: pd.DataFrame) -> set[str]:
    """Return the columns in which the candidates on one kind of device may differ."""
    held = {*_ONE_VALUE, *DEVICE_COLUMNS}
    return {*CONFIGURATION, *curve_columns(observations)} - held


def with_value(frame: pd.DataFrame, name: str, value: Scalar) -> pd.DataFrame:
    """Return the rows with a value in a column, or of an option; there must be some."""
    if name not in frame.columns:
        option = f"{OPTION_PREFIX}{name}"
        if option in frame.columns:
            return with_value(frame, option, value)

        options = [n for n in frame.columns if str(n).startswith(OPTION_PREFIX)]
        listed = ", ".join(["workload", "device_name", "world_size", *options])
        raise SpecError(
            f"{name!r} is no column of the observations, so nothing can be selected by "
            f"it. Select by {listed}, or any other stored column.",
            code="unknown_column",
        )

    counts = _counts(frame, name)
    if str(value) not in counts:
        listed = ", ".join(list(counts)[:_MAX_LISTED]) or "none"
        raise SpecError(
            f"No observation has {name}={value}. Measured: {listed}.",
            code="value_not_measured",
        )

    return frame[has_value(frame, name, value)]


def with_settings(rows: FitRows, select: Mapping[str, Scalar]) -> FitRows:
    """Return the rows of the selected curves, as far as the settings occur together.

    Allocations and batches that are selected leave no curve out.
    """
    found = rows
    for name, value in select.items():
        with_value(rows.observations.loc[rows.frame.index], name, value)
        if name not in CONFIGURATION:
            chosen = found.take(with_value(found.observations, name, value).index)
            found = chosen if len(chosen.frame) else found
    return found


def whole_run_law(
    frame: pd.DataFrame, select: Mapping[str, Scalar], need: SampleNeed
) -> WholeRunLaw | None:
    """Return the law of whole runs, if they alone tell the times.

    What was selected has a law of its own where nothing but its whole runs tells how
    fast it is: its training does not factorise, or no speed beside them was given.
    """
    if need.target is None or not need.uses_law:
        return None
    alone = frame.index[np.isnan(numbers(frame, "world_size"))]
    rows_of_need = frame
    for name, value in select.items():
        rows_of_need = rows_of_need.loc[
            with_value(rows_of_need, name, value).index.union(alone)
        ]

    names = ("throughput_samples_per_s", "samples_to_target", "time_to_target_s")
    speed, samples, seconds = (numbers(rows_of_need, name) for name in names)

    is_given = np.isfinite(speed) & (speed != samples / seconds)
    if is_given.any() and any(way.factorises for way in strategies(rows_of_need)):
        rows_of_need = frame

    return measured_whole_runs(rows_of_need, need.target)


def _counts(frame: pd.DataFrame, name: str) -> dict[str, int]:
    if name not in frame.columns:
        return {}
    counts = frame[name].dropna().astype("string").value_counts()
    return {str(value): int(count) for value, count in counts.items()}


def _only(frame: pd.DataFrame, name: str) -> str:
    return next(iter(_counts(frame, name)), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Other runs whose step times inform the prior of a run's curves.

    The question names them (``is_asked``), or they lie where runs are kept.
    """

    rows: FitRows
    is_asked: bool

    @classmethod
    def of(
        cls, runs: Sequence[tuple[str, pd.DataFrame]], *, is_asked: bool = True
    ) -> Self | None:
        """Join runs, each given by its name and its rows; None without any run."""
        if not runs:
            return None
        frames = []
        for name, frame in runs:
            # two runs may have had other devices without a name
            devices = [
                device if isinstance(device, str) else f"that of {name}"
                for device in cells(frame, "device_name")
            ]
            frames.append(frame.assign(device_name=devices, run=name))

        rows = step_time_rows(pd.concat(frames, ignore_index=True))
        return cls(rows=rows, is_asked=is_asked)

    def names(self, curves: Iterable[CurveKey] | None = None) -> list[str]:
        """Return the runs that these curves are of; of None, all."""
        runs = self.rows.observations["run"]
        if curves is not None:
            known = [self.rows.curves[key].index for key in curves]
            runs = runs[sorted(set().union(*known))]
        return [*map(str, runs.unique())]

    def informs(self, rows: FitRows) -> bool:
        """Tell whether a curve of these runs is related to a curve of the rows."""
        return any(
            are_related(other, key) for other in self.rows.curves for key in rows.curves
        )


def fit_step_times(
    law: type[StepTimeLaw],
    rows: FitRows,
    rest: FitRows | None = None,
    *,
    history: History | None = None,
    link: Link | None = None,
) -> tuple[StepTimeLaw, Fact | None]:
    """Fit a law, and note which other runs informed it; only the default law is."""
    if law is not StepTimeLaw:
        if history is not None and history.is_asked:
            raise SpecError(
                f"{Option('law', law.name)} learns from the asked rows alone.",
                "Leave out the law, or the runs to learn from.",
                code="law_learns_alone",
            )
        if link is not None:
            raise SpecError(
                f"The law {law.name!r} knows nothing of links between nodes.",
                f"Leave out {Option('law')}, or the link.",
                code="law_without_links",
            )
        return law.fit(rows), None

    asked, note = tuple(rows.curves), None
    prior = StepTimePrior.shipped().with_links(link)
    if rest is not None:
        others = {k: v for k, v in rest.curves.items() if k not in rows.curves}
        prior = prior.updated(others, asked)

    if history is not None and asked:
        known = len(prior.relatives)
        prior = prior.updated(history.rows.curves, asked)

        curves = [relative.key for relative in prior.relatives[known:]]
        if history.is_asked and not curves:
            raise SpecError(
                f"Nothing can be learned from {', '.join(history.names())}: no curve "
                "there that was timed has the same device_type, device_name, "
                "node_group and parallelism, or is the same workload in everything but "
                "the device. Name runs that share one.",
                code="nothing_to_learn",
            )

        if curves:
            runs = history.names(curves)
            note = Fact.of("learned_from", num_curves=len(curves), runs=runs)

    return law.fit(rows, prior), note


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The measurements that an answer rests on, and the laws fitted to them."""

    subject: AskedCurves
    law: StepTimeLaw
    # Which other runs informed the step-time law; None: none did
    learned: Fact | None
    need: SampleNeed
    # How well the product of both laws met measured times to the target; None: it is
    # not used or was not measured
    factorisation: Factorisation | None
    # The law of whole runs, where training does not factorise; else None
    whole_runs: WholeRunLaw | None
    # Of the rows that the laws were fitted to, those with the selected settings
    rows: FitRows
    # The curves of all of them, whatever is selected
    curves: Collection[CurveKey]
    rule: BatchRule
    memory: MemoryRoom
    accuracy: Accuracy
    # How well answers held for jobs that were followed
    calibration: Calibration
    # The mass of the answer's intervals
    interval: float

    @property
    def compares_counts(self) -> bool:
        """Several device counts were measured, here or in the runs learned from.

        Else nothing is known of doublings, of a knee or of extremes.
        """
        return bool(self.learned) or self.rows.frame["world_size"].nunique() > 1

    def has_tried(self, asked: pd.DataFrame) -> np.ndarray:
        """Tell whose allocation was measured on their curve, with whatever batch."""
        measured = self.rows.frame
        what = [*curve_columns(measured), "world_size", "num_nodes"]
        return is_among(asked, measured[what])

    @cached_property
    def contradicted(self) -> pd.DataFrame:
        """The configurations whose runs contradict one another."""
        return contradictions(self.rows)

    @cached_property
    def doubted(self) -> pd.DataFrame:
        """The rows that the other rows contradict, see :class:`StepTimeLaw`."""
        found = self.law.doubted
        return found[found.index.isin(self.rows.frame.index)]

    def is_doubted(self, asked: pd.DataFrame) -> np.ndarray:
        """Mark configurations whose rows are all doubted, or all of their allocation.

        Shape (n_rows,).
        """
        frame, found = self.rows.frame, self.doubted
        places = frame[[*curve_columns(frame), "world_size", "num_nodes"]]
        return np.asarray(
            self._are_all_among(asked, frame, found)
            | self._are_all_among(asked, places, found)
        )

    def is_contradicted(self, asked: pd.DataFrame) -> np.ndarray:
        """Mark configurations whose samples per step another source contradicts.

        Shape (n_rows,).
        """
        return self._rests_on(asked, contradicted_samples(self.rows, self.need.job))

    def marks(self, asked: pd.DataFrame) -> dict[str, np.ndarray]:
        """Mark configurations with a figure that is not sure, by figure of ``MARKS``.

        Shape (n_rows,).
        """
        return {
            name: self._rests_on(asked, having(self.rows, sign))
            for name, sign in MARKS.items()
        }

    def is_at_least(self, asked: pd.DataFrame) -> np.ndarray:
        """Mark configurations whose steps still slowed down, shape (n_rows,)."""
        slowing = having(self.rows, ("step_time_bound", AT_LEAST))
        return self._rests_on(asked, slowing)

    def _rests_on(self, asked: pd.DataFrame, found: pd.DataFrame) -> np.ndarray:
        """Mark configurations whose rows are all among those found.

        If all rows of a curve are, or all of several ranks, so are all configurations
        of the curve, or of several ranks.
        """
        if found.empty:
            return np.zeros(len(asked), dtype=bool)
        frame = self.rows.frame
        curves = frame[curve_columns(frame)]
        of_several = curves[frame["data_parallel_size"] > 1]
        asks_for_several = asked["data_parallel_size"].to_numpy() > 1
        return np.asarray(
            self._are_all_among(asked, frame, found)
            | self._are_all_among(asked, curves, found)
            | (asks_for_several & self._are_all_among(asked, of_several, found))
        )

    @staticmethod
    def _are_all_among(
        asked: pd.DataFrame, every: pd.DataFrame, found: pd.DataFrame
    ) -> np.ndarray:
        """Mark asked rows that have equal rows, all of which are among those found."""
        is_found = every.index.isin(found.index)
        are_found = is_among(asked, every[is_found])
        if not are_found.any():
            return are_found
        return np.asarray(are_found & ~is_among(asked, every[~is_found]))

    @cached_property
    def uneven(self) -> dict[Any, Fact]:
        """Notes of rows that do not fit between their neighbours, by their index."""
        return uneven(self.rows, self.doubted)

    @cached_property
    def overhead(self) -> Overhead:
        """What a job takes beside its steps; with declared times, nothing."""
        frame = self.subject.frame
        return Overhead.of(frame.iloc[:0] if self.subject.is_emulated else frame)

    def of_its_curve(self, config: Mapping[Any, Any]) -> pd.DataFrame:
        """Return the rows of a configuration's curve; empty where there are none."""
        asked = {n: None if pd.isna(config[n]) else config[n] for n in self.swept}
        for key, rows in self.rows.curves.items():
            curve = dict(key)
            if all(curve.get(column) == value for column, value in asked.items()):
                return rows
        return self.rows.frame.iloc[:0]

    def recorded(self, name: str, config: Mapping[Any, Any]) -> float | None:
        """Return what the rows of a configuration's curve record in a column."""
        recorded = self.subject.frame.filter(items=[name])
        measured = recorded.loc[self.of_its_curve(config).index]
        values = numbers(measured, name)
        found = np.unique(values[np.isfinite(values)])
        return float(found[0]) if len(found) == 1 else None

    def step_times(self, asked: pd.DataFrame) -> np.ndarray:
        """Draw the step time of one run on each configuration, (n_draws, n).

        Of whole runs that do not tell all it rests on, it is as unsure as a belief.
        """
        drawn = self.law.draws(asked, one_run=True)
        drawn = self.calibration.applied(drawn, self.interval)
        if self.whole_runs is None:
            return drawn
        is_belief = self.law.predict(asked)["support"] == Support.NOT_MEASURED
        unsure = np.where(is_belief, drawn / np.median(drawn, axis=0), 1.0)
        return np.asarray(unsure * self.whole_runs.step_times(asked))

    @property
    def held(self) -> dict[str, Scalar]:
        """The values of the columns in which the curves do not differ, by setting."""
        curves = [dict(key) for key in self.curves]
        common = set.intersection(*(set(curve.items()) for curve in curves))
        return {
            name.removeprefix(OPTION_PREFIX): value
            for name, value in sorted(common, key=str)
        }

    def settings(self, config: Mapping[Any, Any]) -> dict[str, Scalar]:
        """Return the values of a configuration in the swept columns, by setting."""
        known = {
            name: config[name] for name in self.swept if not pd.isna(config.get(name))
        }
        if "samples_curve" in config:
            rate = self.need.rate_settings(int(config["samples_curve"]))
            known |= {name: rate.get(name, "none") for name in self.need.compared_rates}
        return {name.removeprefix(OPTION_PREFIX): known[name] for name in known}

    @property
    def swept(self) -> list[str]:
        """The columns in which the curves differ."""
        curves = [dict(key) for key in self.curves]
        names = list(dict.fromkeys(name for curve in curves for name in curve))
        return [n for n in names if len({str(c.get(n)) for c in curves}) > 1]
