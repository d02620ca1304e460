"""Two runs beside each other, or two values of a setting within one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from scalelab.errors import FitError, SpecError
from scalelab.inputs.guessed import Guided, by_guess
from scalelab.inputs.lines import aligned
from scalelab.inputs.numerals import (
    Interval,
    counted,
    duration,
    percent,
)
from scalelab.inputs.problems import Command, Option, one_of, shown
from scalelab.laws.paired import MASS, Paired, paired
from scalelab.laws.rows import FitRows, curve_columns
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import allocated, sentences, texts
from scalelab.records.columns import OPTION_PREFIX
from scalelab.report.tables import provenance
from scalelab.session.recommending import RecommendingRun

_MAX_SHOWN = 20
_TITLES = {
    "world_size": "devices",
    "num_nodes": "nodes",
    "local_batch_size": "local batch",
    "gradient_accumulation_steps": "passes",
    "data_parallel_size": "replicas",
}
_ALWAYS = ("world_size", "local_batch_size")
_PROVENANCE = ("hosts", "code", "data", "versions")


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two: its name, its rows, and its answer or why it has none."""

    name: str
    rows: FitRows
    answer: Recommendation | Exception


class Comparison(Guided):
    """How much longer a step takes after than before, and the two answers.

    Parameters
    ----------
    before, after
        The sides that are compared.
    difference
        The difference over the configurations that both have.
    """

    _instead: ClassVar[Mapping[str, str]] = by_guess(
        {
            "comparison.change": "difference ratio speedup slowdown delta mean",
            "comparison.table, a frame": "df frame to_frame data rows",
            "comparison.is_slower_by(0.05)": "slower is_slower regressed regression",
            "comparison.differences": "diff differs what_differs provenance",
        }
    )

    def __init__(self, before: Side, after: Side, difference: Paired) -> None:
        self.before, self.after = before, after
        self._paired = difference

    @property
    def change(self) -> Interval:
        """The change of the step time, 0.15 for 15% longer, with its 90% interval."""
        return self._paired.change

    @property
    def table(self) -> pd.DataFrame:
        """A row per configuration that both have, with its own change."""
        return self._paired.table

    def chance_above(self, share: float) -> float:
        """Return the chance that a step takes longer by more than a share."""
        return self._paired.chance_above(share)

    def is_slower_by(self, share: float) -> bool:
        """Tell whether the whole interval lies above a share, such as 0.05."""
        return self.change.lo > share

    @property
    def differences(self) -> tuple[str, ...]:
        """In what else the two differ: devices, hosts, code, data, versions."""
        return tuple(self._differences())

    def _differences(self) -> Iterator[str]:
        before, after = (_known(side.rows) for side in (self.before, self.after))
        for name in dict.fromkeys([*before, *after]):
            old, new = before.get(name, ()), after.get(name, ())
            gone = ", ".join(value for value in old if value not in new)
            come = ", ".join(value for value in new if value not in old)
            if gone or come:
                yield f"{name}: {gone or 'none'} -> {come or 'none'}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the comparison says: the change, what differs, and both answers."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        table, change = self.table, self.change
        num_before, num_after = table["runs_before"].sum(), table["runs_after"].sum()
        yield (
            f"A step of {self.after.name} takes {_words(change.value)} than one of "
            f"{self.before.name} [{_ends(change)}] ({percent(MASS)} interval), in "
            f"{counted(len(table), 'configuration')} that both measured, {num_before} "
            f"and {num_after} runs."
        )

        sentences = self.differences
        yield (
            f"They differ in {'; '.join(sentences)}."
            if sentences
            else "Nothing else differs."
        )

        for side in (self.before, self.after):
            yield f"{side.name}: {_answer(side.answer)}"

    def __repr__(self) -> str:
        shown = self.table.head(_MAX_SHOWN)
        is_split = shown["data_parallel_size"].ne(shown["world_size"]).any()
        settings = [
            name
            for name in shown.columns[: shown.columns.get_loc("before_s")]
            if name in _ALWAYS or shown[name].nunique() > 1
            if name != "data_parallel_size" or is_split
        ]

        titles = [_TITLES.get(n, n.removeprefix(OPTION_PREFIX)) for n in settings]

        rows = [[*titles, "before", "after", "change", percent(MASS), "runs"]]
        for row in shown.to_dict("records"):
            ends = Interval(
                value=row["change"], lo=row["change_lo"], hi=row["change_hi"]
            )
            times = [duration(row["before_s"]), duration(row["after_s"])]
            runs = f"{row['runs_before']} and {row['runs_after']}"
            change = [f"{ends.value:+.1%}", _ends(ends), runs]
            rows.append([*(str(row[name]) for name in settings), *times, *change])

        left = len(self.table) - len(shown)
        more = [f"... and {counted(left, 'configuration')} more."] if left else []
        lines = aligned(rows, left=[False] * len(rows[0]))
        return "\n".join([*self.sentences, "", *lines, *more])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        change = self.change
        return {
            "change": {"value": change.value, "lo": change.lo, "hi": change.hi},
            "interval": MASS,
            "differences": [*self.differences],
            "configurations": self.table.to_dict("records"),
            "answers": {
                side.name: str(side.answer)
                if isinstance(side.answer, Exception)
                else side.answer.chosen.to_json(side.answer.currency)
                for side in (self.before, self.after)
            },
        }


def compare_runs(
    before: RecommendingRun, after: RecommendingRun, question: Mapping[str, Any]
) -> Comparison:
    """Compare two runs; the question is asked of both.

    Raises
    ------
    SpecError
        If they have no configuration in common, or the question is wrong.
    """
    names = [before.name, after.name]
    if before.name == after.name:
        names = [before.hashed_name, after.hashed_name]
    if len({*names}) == 1:
        names = [str(before.path), str(after.path)]

    first, second = (
        Side(
            name=name,
            rows=run.fit_rows,
            answer=_asked(run, question, is_asked=bool(question)),
        )
        for name, run in zip(names, (before, after), strict=True)
    )
    return Comparison(first, second, paired(first.rows, second.rows))


def compare_values(
    run: RecommendingRun, axis: str, question: Mapping[str, Any]
) -> tuple[Comparison, ...]:
    """Compare each value of a setting with the one whose answer is fastest.

    Raises
    ------
    SpecError
        If nothing varies in the setting, or the question is wrong.
    """
    if not isinstance(axis, str):
        raise SpecError(
            f"compare: {shown(axis)} is no setting. Write its name, such as "
            "'parallelism'; two runs are compared by scalelab.compare(before, after).",
            code="no_setting",
        )

    frame = run.fit_rows.frame
    varying = [n for n in curve_columns(frame) if frame[n].astype(str).nunique() > 1]

    name = axis if axis in varying else OPTION_PREFIX + axis
    if axis in (*_TITLES, "global_batch_size"):
        raise SpecError(
            f"{Option('axis', axis)}: step times are compared at the same devices and "
            f"batch. {Command('recommend', (str(run.path),), {})} weighs those that "
            "differ.",
            code="compared_at_same_batch",
        )
    if name not in varying:
        known = [axis.removeprefix(OPTION_PREFIX) for axis in varying]
        valid = one_of(known, axis) if known else "No setting does."
        raise SpecError(
            f"{Option('axis', axis)} does not vary in {run.name}. {valid}",
            code="axis_does_not_vary",
        )

    sides = []
    for value in frame[name].dropna().drop_duplicates().tolist():
        select = {**(question.get("select") or {}), axis: value}
        rows = run.fit_rows.take(frame.index[frame[name].eq(value).fillna(False)])
        answer = _asked(run, {**question, "select": select}, is_asked=bool(question))
        sides.append(Side(name=f"{axis}={value}", rows=rows, answer=answer))

    first, *others = sorted(sides, key=_time_s)
    return tuple(
        Comparison(first, other, paired(first.rows, other.rows)) for other in others
    )


def _asked(
    run: RecommendingRun, question: Mapping[str, Any], *, is_asked: bool
) -> Recommendation | Exception:
    try:
        return run.recommend(**question)
    except (FitError, SpecError) as error:
        if is_asked and isinstance(error, SpecError):
            raise
        return error


def _time_s(side: Side) -> float:
    answer = side.answer
    return float("inf") if isinstance(answer, Exception) else answer.chosen.time_s.value


def _answer(answer: Recommendation | Exception) -> str:
    if isinstance(answer, Exception):
        return f"no recommendation. {answer}"
    takes = texts(sentences(answer), "takes")
    return f"{', '.join([allocated(answer, answer.chosen), *takes])}."


def _known(rows: FitRows) -> dict[str, tuple[str, ...]]:
    """Return what was measured, on what and with what: distinct values by name."""
    observations = rows.observations
    settings = {
        name.removeprefix(OPTION_PREFIX): tuple(
            sorted(map(str, observations[name].dropna().unique()))
        )
        for name in curve_columns(observations)
        if name != "dataset"
    }

    origin = provenance(observations)
    return {**settings, **{name: origin[name] for name in _PROVENANCE}}


def _ends(change: Interval) -> str:
    return f"{change.lo:+.1%} to {change.hi:+.1%}"


def _words(change: float) -> str:
    return f"{abs(change):.1%} {'longer' if change > 0 else 'less'}"
