"""The trial source of a sweep: which trials are left, and how long they will take."""

import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalelab.errors import ScaleLabError, SpecError
from scalelab.experiment.checks import check_kinds
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import LONG, PROGRAM, Trial
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import one_of, shown
from scalelab.kinds.registry import imported
from scalelab.kinds.sources import SOURCES
from scalelab.plan.budget import Account
from scalelab.plan.expand import Plan
from scalelab.plan.inquiry import Inquiry
from scalelab.plan.source import (
    Decision,
    Observation,
    TrialSource,
    found_no_place,
)
from scalelab.site.profile import Site

# Seconds that every trial is taken to last until the first one has ended.
UNKNOWN_S = 30.0
_CORRECT = (
    "Correct the source, then run the same command again: what has ended is recorded "
    "and does not run again."
)
# What tells the work of two trials apart: the kind, sizes, then settings.
_WORK = (
    *("kind", "world_size", "num_nodes"),
    *("local_batch_size", "gradient_accumulation_steps"),
    *("precision", "parallelism", "node_group", f"options.{PROGRAM}"),
)
_SETTINGS = _WORK.index("precision")


class Durations:
    """Estimates how many seconds a trial holds its devices.

    Trials that differ in nothing but seed and repeat take equally long.
    """

    def __init__(self, rows: Iterable[Observation] = ()) -> None:
        self._seconds: dict[tuple[Any, ...], float] = {}
        for row in rows:
            self.learn(row)

    def learn(self, row: Observation) -> None:
        """Remember how long a trial held its devices, if it measured something.

        A trial that its source ended early says nothing about those that run on, nor
        does a long trial.
        """
        held, outcome = row.get("allocated_gpu_s"), Outcome(row["outcome"])
        is_told = outcome.is_measurement and outcome is not Outcome.PRUNED
        if held is None or row.get("repeat") == LONG or not is_told:
            return
        work = tuple(row.get(name) for name in _WORK)
        self._seconds[work] = held / row["world_size"]

    def estimate(self, trial: Trial) -> float | None:
        """Return the seconds of an equal trial, else of the most similar of its kind.

        None where no trial of the kind has ended.
        """
        work = (
            trial.kind.value,
            trial.world_size,
            trial.allocation.num_nodes,
            trial.local_batch_size,
            trial.gradient_accumulation_steps,
            trial.precision,
            trial.parallelism,
            trial.node_group,
            trial.program,
        )
        longer_s = trial.measurement.least_s or 0.0
        if work in self._seconds:
            return self._seconds[work] + longer_s

        alike = [known for known in self._seconds if known[0] == work[0]]

        def distance(known: tuple[Any, ...]) -> tuple[int, float]:
            # By settings first, then by doublings in size.
            pairs = list(zip(known, work, strict=True))
            sizes, settings = pairs[1:_SETTINGS], pairs[_SETTINGS:]
            doublings = sum(abs(math.log2(a / b)) for a, b in sizes)
            return sum(a != b for a, b in settings), doublings

        return self._seconds[min(alike, key=distance)] + longer_s if alike else None

    def times(self, trials: Iterable[Trial]) -> list[tuple[Trial, float]] | None:
        """Return trials with their seconds; None where a kind is unknown."""
        known = []
        for trial in trials:
            if (seconds := self.estimate(trial)) is None:
                return None
            known.append((trial, seconds))
        return known


class TrackedSource(TrialSource):
    """A trial source that knows which trials are left and how long they take.

    What goes wrong in the source is said with its name. ``programs`` are the names of
    the experiment's programs; None alone: it has only one.
    """

    def __init__(
        self,
        name: str,
        source: TrialSource,
        durations: Durations | None = None,
        *,
        programs: Collection[str | None] = (None,),
    ) -> None:
        self._name = name
        self.wants_progress = source.wants_progress
        self._source = source
        self._durations = durations or Durations()
        self._programs = programs
        self._told: set[str] = set()
        self._refused: set[str] = set()
        self._next: Trial | None = None
        self._further: Trial | None = None

    @property
    def name(self) -> str:
        """Name of the source in the experiment."""
        return self._name

    def propose(self, trial: Trial) -> None:
        """Propose one trial more, that is none of the source's, before those."""
        self._further = self._next = trial

    def begin(self, directory: Path) -> None:
        """Tell the source the run's directory."""
        with self._named("begin"):
            self._source.begin(directory)

    def allow(self, account: Account) -> None:
        """Tell the source what the sweep may spend."""
        with self._named("allow"):
            self._source.allow(account)

    def describe(self) -> Iterable[str]:
        """Return what the source says it decides."""
        return self._source.describe()

    def ask(self) -> Trial | None:
        """Return the source's next trial."""
        if (trial := self._next) is not None:
            self._next = None
            return trial
        with self._named("ask"):
            trial = self._source.ask()
            if trial is not None and trial.program not in self._programs:
                raise self._no_program(trial)
            return trial

    def tell(self, observation: Observation) -> None:
        """Learn how long a trial took and tell the source its outcome, once."""
        if observation["trial_id"] not in self._told:
            self._durations.learn(observation)
            self.tell_again(observation)

    def tell_again(self, observation: Observation) -> None:
        """Tell the source the outcome of a trial whose duration is known already."""
        self._told.add(observation["trial_id"])
        with self._named("tell"):
            self._source.tell(observation)

    def resume(self, observation: Observation) -> None:
        """Tell the source what an earlier sweep finished.

        A trial that did not fit the nodes of that sweep does not count as left, but
        may fit these: it is proposed again.
        """
        if found_no_place(observation):
            self._refused.add(observation["trial_id"])
        else:
            self.tell_again(observation)

    def tell_progress(
        self, trial: Trial, step: int, metrics: Mapping[str, float]
    ) -> Decision:
        """Ask the source whether a trial that runs goes on."""
        if trial == self._further:
            return Decision.KEEP
        with self._named("tell_progress"):
            return Decision(self._source.tell_progress(trial, step, metrics))

    @property
    def inquiry(self) -> Inquiry | None:
        """What the source is to find out, and how far that is."""
        return self._source.inquiry

    @property
    def plan(self) -> Plan | None:
        """The trials, where they are known beforehand; None: not known."""
        planned = self._source.plan
        if planned is None or self._further is None:
            return planned
        return replace(planned, trials=(self._further, *planned.trials))

    @property
    def known_ids(self) -> set[str]:
        """Identifiers of the trials that are planned or have ended."""
        planned = (trial.trial_id for trial in (self.plan or Plan()).trials)
        return {*planned, *self._told, *self._refused}

    @property
    def total(self) -> int | None:
        """Trials in all; None: not known."""
        total = self._source.total
        return None if total is None else total + (self._further is not None)

    @property
    def remaining(self) -> int | None:
        """Trials that have not ended; None: not known."""
        left, further = self._source.remaining, self._further
        is_open = further is not None and further.trial_id not in self._told
        return None if left is None else left + is_open

    @property
    def left(self) -> list[Trial] | None:
        """The trials that have not ended; None where they are not known beforehand.

        Where ``local_batch_size: auto`` is still looked for, those of the largest size
        that will be tried.
        """
        if (known := self.plan) is None:
            return None
        ended = self._told | self._refused
        return [trial for trial in known.trials if trial.trial_id not in ended]

    @property
    def times_left(self) -> list[tuple[Trial, float]] | None:
        """The trials left, and the seconds that each will take; None: not known."""
        left = self.left
        return None if left is None else self._durations.times(left)

    @property
    def gpu_hours(self) -> float | None:
        """Device-hours that the trials left will take; None: not known."""
        times = self.times_left
        if times is None:
            return None
        return sum(seconds * trial.world_size for trial, seconds in times) / 3600

    def is_exhausted(self) -> bool:
        """Tell whether the source proposes nothing now."""
        self._next = self.ask()
        return self._next is None

    def estimate(self, trial: Trial, allocation: Allocation) -> float:
        """Return seconds a trial will hold its devices, for reservations only."""
        seconds = self.expected_s(trial)
        return UNKNOWN_S if seconds is None else seconds

    def expected_s(self, trial: Trial) -> float | None:
        """Return seconds a trial is expected to take; None where none like it ended."""
        seconds = self._source.expected_s(trial)
        return self._durations.estimate(trial) if seconds is None else seconds

    def _no_program(self, trial: Trial) -> SpecError:
        names = [name for name in self._programs if name is not None]
        if not names:
            rule = "The experiment has only one program, so it must be None."
        elif trial.program is None:
            rule = f"It must name one of the experiment's. Valid: {', '.join(names)}."
        else:
            valid = one_of(names, str(trial.program))
            rule = f"The experiment has none of that name. {valid}"

        return SpecError(
            f"source={self._name} proposed a trial with program="
            f"{shown(trial.program)}. {rule} {_CORRECT}",
            code="trial_without_program",
        )

    @contextmanager
    def _named(self, method: str) -> Iterator[None]:
        try:
            yield
        except ScaleLabError:
            raise
        except Exception as error:
            raise SpecError(
                f"source={self._name} failed in {method}: {type(error).__name__}: "
                f"{error}. {_CORRECT}",
                code="source_failed",
            ) from error


def source_of(
    experiment: Experiment,
    site: Site,
    finished: Iterable[Observation] = (),
    *,
    rows: Iterable[Observation] = (),
) -> TrackedSource:
    """Return the trial source that an experiment names, after the trials that ended."""
    check_kinds(experiment)
    name, parameters = experiment.source.name, experiment.source.parameters

    path = SOURCES[name].factory
    try:
        factory = imported(path)
        try:
            inspect.signature(factory).bind(None, None, **parameters)
        except TypeError as error:
            raise SpecError(
                f"source={name} cannot be made with {sorted(parameters)}: {error}. "
                "Give it the parameters it takes, as source: {name: ..., ...}.",
                code="source_not_made",
            ) from error
        source = factory(experiment, site, **parameters)
    except ScaleLabError:
        raise
    except Exception as error:
        raise SpecError(
            f"source={name} cannot be made by {path}: {type(error).__name__}: {error}. "
            "Correct the source, or choose another.",
            code="source_not_made",
        ) from error

    if not isinstance(source, TrialSource):
        raise SpecError(
            f"source={name}: {path} returned {type(source).__name__}, which is no "
            "TrialSource. Derive it from scalelab.plan.source.TrialSource.",
            code="not_a_source",
        )

    tracked = TrackedSource(
        name, source, Durations(rows), programs=[*experiment.by_program()]
    )
    for row in finished:
        tracked.tell_again(row)

    return tracked
