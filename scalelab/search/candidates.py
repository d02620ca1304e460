"""The candidates of an adaptive sweep: what may run, and on which curve it lies."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalelab.experiment.trial import Trial
from scalelab.inputs.document import Scalar
from scalelab.laws.rows import CONFIGURATION, CurveKey, FitRows, agreeing
from scalelab.plan.source import Observation
from scalelab.records.columns import OPTION_PREFIX

Configuration = tuple[int, ...]
"""The values of ``CONFIGURATION``."""


def configuration(trial: Trial) -> Configuration:
    """Return where on its curve a trial lies."""
    return (
        trial.world_size,
        trial.allocation.num_nodes,
        trial.local_batch_size,
        trial.gradient_accumulation_steps,
        trial.data_parallel_size,
    )


class CandidateTrials:
    """The configurations that may run, each as its first repeat, by their place."""

    def __init__(self, planned: Iterable[Trial]) -> None:
        self.trials = [trial for trial in planned if trial.repeat == 0]
        self._places: dict[int, dict[str, int]] = {}  # by repeat, then by trial id

    def __len__(self) -> int:
        return len(self.trials)

    def place(self, row: Observation) -> int | None:
        """Return the place of the candidate that a row is a trial of."""
        repeat = row.get("repeat") or 0
        if repeat not in self._places:
            self._places[repeat] = {
                replace(trial, repeat=repeat).trial_id: place
                for place, trial in enumerate(self.trials)
            }
        return self._places[repeat].get(row["trial_id"])

    def named(self, place: int) -> str:
        """Return the settings of a candidate; empty where all have the same."""
        if len({settings(trial) for trial in self.trials}) == 1:
            return ""
        trial = self.trials[place]
        axes = [f"{name}={value}" for name, value in trial.further_axes.items()]
        return " ".join([trial.precision, trial.parallelism, *axes])

    def further(self, place: int, known: Collection[str]) -> Trial:
        """Return a candidate as the first repeat whose trial is not known."""
        repeat, trial = 0, self.trials[place]
        while trial.trial_id in known:
            repeat += 1
            trial = replace(trial, repeat=repeat)
        return trial

    def curves(
        self, rows: FitRows, measured_here: Sequence[Observation]
    ) -> dict[int, CurveKey]:
        """Return the measured curve of each candidate that has one, by its place.

        ``measured_here`` are the first of the rows, in the same order. Settings that
        none of these has have the curve, measured elsewhere, that agrees with them.
        """
        key_of = {i: key for key, part in rows.curves.items() for i in part.index}
        known: dict[Any, CurveKey] = {}
        for index, row in enumerate(measured_here):
            place = self.place(row)
            if place is not None and index in key_of:
                known[settings(self.trials[place])] = key_of[index]

        found = {}
        for place, trial in enumerate(self.trials):
            key = known.get(settings(trial)) or self._elsewhere(trial, rows, known)
            if key is not None:
                found[place] = key
        return found

    def _elsewhere(
        self, trial: Trial, rows: FitRows, known: Mapping[Any, CurveKey]
    ) -> CurveKey | None:
        asked = {
            "precision": trial.precision,
            "parallelism": trial.parallelism,
            **{OPTION_PREFIX + n: value for n, value in trial.further_axes.items()},
        }
        free = [key for key in rows.curves if key not in known.values()]
        return next(iter(agreeing(free, asked)), None)

    def num_runs(
        self,
        rows: FitRows,
        curves: Mapping[int, CurveKey],
        measured_here: Iterable[Observation],
    ) -> Counter[int]:
        """Return how many runs of each candidate have ended, here or elsewhere.

        What ended here counts although the laws leave it out: it would again.
        """
        counts = Counter(
            (key, tuple(at))
            for key, part in rows.curves.items()
            for at in part[list(CONFIGURATION)].astype(int).to_numpy().tolist()
        )
        ended = Counter(map(self.place, measured_here))
        return Counter(
            {
                at: max(counts[key, configuration(self.trials[at])], ended[at])
                for at, key in curves.items()
            }
        )

    def corners(
        self, curves: Collection[int], tried: Collection[int | None]
    ) -> list[int]:
        """Return the first candidate of all settings of which no curve was measured.

        It has the fewest devices and, of what has not failed, the largest local batch.
        Settings that are being tried are waited for.
        """
        unknown = [
            (trial.world_size, trial.allocation.num_nodes, -trial.local_batch_size, at)
            for at, trial in enumerate(self.trials)
            if at not in curves and at not in tried
        ]
        first: dict[Any, int] = {}
        for *_, at in sorted(unknown):
            first.setdefault(settings(self.trials[at]), at)
        return [*first.values()]


def settings(trial: Trial) -> tuple[Any, ...]:
    """Return what tells the curve of a trial from others."""
    axes: Mapping[str, Scalar] = trial.further_axes
    return (trial.precision, trial.parallelism, *sorted(axes.items()))
