"""First trials: the smallest of each program runs alone, and is checked.

A sweep of a program that cannot be measured, or is read wrongly, would only find that
out after paying for its widest trial. No figure of a program is believed because it
could be read: its row is held against the rate that the program prints, the batch
arithmetic, and what showed that its ranks met.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from statistics import fmean

from scalelab.experiment.trial import PROGRAM, Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.plan.source import (
    Decision,
    Observation,
    TrialSource,
    found_no_place,
)
from scalelab.plan.tracked import TrackedSource

# Factor between two rates of one program from which on they disagree.
DOUBTED_BEYOND = 1.1
# Validity reason of a row whose two step times differ by a factor of the batch.
RATE_DISAGREES = "rate_disagrees"
# The ranks_witness of a row whose ranks may each have trained alone.
NOT_WITNESSED = "not_witnessed"
# The ranks_witness of a row whose ranks are equal, as their first batches were.
SAME_DATA = "same_data"
# The ranks_witness of one plain process on a CPU: more slots would not speed it up.
ONE_PROCESS = "one_process"
# What measured the steps of a row: the probe, where the optimizer steps; or the log.
INSIDE, LOG = "inside", "log"
# The ranks_witness of a row whose ranks share no parameters and no gradients.
ALONE = "alone"
# The samples_witness of a row whose samples are those that its loaders drew, or that
# entered the model.
LOADER, MODEL = "loader", "model"
# Why a step has other samples than were asked for: the samples_differ of a row.
BATCH_SIZES, PASSES, LOADERS, UNEXPLAINED = (
    "batch_sizes",
    "passes",
    "loaders",
    "unexplained",
)
WHY_OTHERS = {
    BATCH_SIZES: "batches differ in size",
    PASSES: "steps differ in the batches they take",
    LOADERS: "several loaders are drawn from",
    MODEL: "the model is given a part of each batch",
    UNEXPLAINED: "no reason was seen",
}
# What an unsettled step time says of later steps: the step_time_bound of a row.
AT_MOST, AT_LEAST = "at_most", "at_least"
BOUNDS = {AT_MOST: "at most", AT_LEAST: "at least"}
# Other programs took cores that a trial waited for, where its threads ran less than
# this share of the time in which they could, and others took so many cores, at least
# this share of all.
_RAN_LITTLE, _CORES_TAKEN, _SHARE_TAKEN = 0.9, 0.25, 0.01
# Validity reason of a row of which a rank makes far fewer steps than the first.
RANKS_APART = "ranks_apart"
# The factor from which on no clock explains it: something else was counted.
WRONG_BEYOND = 1.5
# Share of a step that is worth a word when the step waits for input so long.
MUCH_WAITING = 0.25
FEWEST_LOSSES = 4
# The reason of a failure in the user's own code, which one process would meet as well.
_RAISED_IN = re.compile(r"raised \S+ at \S+:\d+")


class Sign(StrEnum):
    """What a first trial shows that is wrong, or doubtful."""

    NOT_MEASURED = "not_measured"
    LOST = "lost"
    TOO_SILENT = "too_silent"
    DOES_NOT_FIT = "does_not_fit"
    SEVERAL_RANKS_FAIL = "several_ranks_fail"
    RATES_DISAGREE = "rates_disagree"
    LOG_DISAGREES = "log_disagrees"
    SAMPLES_NOT_WITNESSED = "samples_not_witnessed"
    SAMPLES_DIFFER = "samples_differ"
    RANKS_NOT_WITNESSED = "not_witnessed"
    RANKS_ALONE = "ranks_alone"
    SAME_DATA = "same_data"
    NOT_SETTLED = "not_settled"
    EQUAL_LOSSES = "equal_losses"
    UNLIKELY_SPEEDUP = "unlikely_speedup"
    BUSY_MACHINE = "busy_machine"
    GPU_THROTTLED = "gpu_throttled"
    LOSS_NOT_FALLING = "loss_not_falling"
    WAITS_FOR_INPUT = "waits_for_input"
    MARKED = "marked"


# What nothing has confirmed of a row, by the column and its value that say so.
UNCONFIRMED: Sequence[tuple[Sign, str, str]] = (
    (Sign.RANKS_NOT_WITNESSED, "ranks_witness", NOT_WITNESSED),
    (Sign.SAME_DATA, "ranks_witness", SAME_DATA),
    (Sign.RANKS_ALONE, "ranks_witness", ALONE),
    (Sign.SAMPLES_NOT_WITNESSED, "samples_witness", NOT_WITNESSED),
)


# What makes a step time another than that of a long job, likewise.
UNSURE_TIMES: Sequence[tuple[Sign, str, bool]] = (
    (Sign.BUSY_MACHINE, "busy_machine", True),
    (Sign.GPU_THROTTLED, "gpu_throttled", True),
    (Sign.NOT_SETTLED, "settled", False),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that the check of a first trial found."""

    sign: Sign
    stops: bool
    figures: Mapping[str, float | str | Sequence[str]] = field(default_factory=dict)
    advice: Mapping[str, object] = field(default_factory=dict)


def findings(
    row: Observation,
    *,
    losses: Sequence[float] = (),
    others: Collection[Observation] = (),
) -> list[Finding]:
    """Return what the row of a first trial shows to be wrong or doubtful.

    ``others`` are rows of the same experiment.
    """
    outcome = Outcome(row["outcome"])
    if not outcome.is_measurement:
        return [_of_no_measurement(row, outcome)]
    if outcome is Outcome.OUT_OF_MEMORY:
        return [Finding(sign=Sign.DOES_NOT_FIT, stops=False, advice=_halved(row))]
    return [
        *_of_rates(row),
        *_doubts(row, losses),
        *_of_losses(row, others),
        *_of_speedup(row, others),
    ]


def samples_of_step(row: Observation) -> float:
    """Return the samples of a step: those seen, or else those asked for."""
    return float(row["samples_per_step"] or row["global_batch_size"])


def is_measurement(row: Observation) -> bool:
    """Tell whether a row is a measurement."""
    return Outcome(row["outcome"]).is_measurement


def is_sound(row: Observation) -> bool:
    """Tell whether a row is a measurement in which the check finds nothing wrong."""
    return is_measurement(row) and not any(finding.stops for finding in findings(row))


def _of_no_measurement(row: Observation, outcome: Outcome) -> Finding:
    if outcome.is_retried or found_no_place(row):
        return Finding(sign=Sign.LOST, stops=False)
    sign, advice = Sign.NOT_MEASURED, dict[str, object]()
    if outcome is Outcome.STALLED:
        sign, advice = Sign.TOO_SILENT, {"measure": {"stall_timeout": "10min"}}
    elif outcome is Outcome.HOST_OUT_OF_MEMORY:
        sign, advice = Sign.DOES_NOT_FIT, _halved(row)
    elif (
        row["world_size"] > 1
        and outcome is not Outcome.REFUSED  # then its reason says what to change
        and not _RAISED_IN.search(row["reason"] or "")
    ):
        sign, advice = Sign.SEVERAL_RANKS_FAIL, {"gpus": [1], "launcher": "none"}

    return Finding(sign=sign, stops=True, advice=advice)


def _halved(row: Observation) -> dict[str, object]:
    local = row["local_batch_size"]
    return {"local_batch_size": local // 2} if local > 1 else {}


def _of_rates(row: Observation) -> Iterator[Finding]:
    ours, printed = row["step_time_s"], row["reported_step_time_s"]
    if not (ours and printed) or factor(ours, printed) <= DOUBTED_BEYOND:
        return

    is_confirmed = row["samples_witness"] in (LOADER, MODEL)
    yield Finding(
        sign=Sign.LOG_DISAGREES if is_confirmed else Sign.RATES_DISAGREE,
        stops=factor(ours, printed) > WRONG_BEYOND and not is_confirmed,
        figures={
            "step_time_s": ours,
            "reported_step_time_s": printed,
            "throughput_samples_per_s": samples_of_step(row) / ours,
            "reported_samples_per_s": samples_of_step(row) / printed,
        },
    )


def loss_ends(losses: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean of the first and of the last third; None: too few to tell."""
    if len(losses) < FEWEST_LOSSES:
        return None
    third = max(1, len(losses) // 3)
    return fmean(losses[:third]), fmean(losses[-third:])


def is_taken(other_cpu_share: float, num_cores: float) -> bool:
    """Tell whether other programs took more than daemons do of the cores at hand."""
    least = max(_CORES_TAKEN, _SHARE_TAKEN * num_cores)
    return other_cpu_share * num_cores >= least


def was_busy(row: Observation) -> bool | None:
    """Tell whether other programs took cores for which a trial's threads waited.

    None where it was not watched.
    """
    names = ("cpu_share", "other_cpu_share", "cores_at_hand")
    got, others, cores = (row.get(name) for name in names)
    if got is None or others is None or cores is None:
        return None
    if row["exclusive_node"]:
        return False
    return got < _RAN_LITTLE and is_taken(others, cores)


def _doubts(row: Observation, losses: Sequence[float]) -> Iterator[Finding]:
    def doubt(sign: Sign, **figures: float | str | Sequence[str]) -> Finding:
        return Finding(sign=sign, stops=False, figures=figures)

    for sign, column, value in (*UNCONFIRMED, *UNSURE_TIMES):
        if row[column] == value:
            yield doubt(sign)

    if why := row["samples_differ"]:
        yield doubt(Sign.SAMPLES_DIFFER, why=WHY_OTHERS[why])

    ends = loss_ends(losses)
    if ends is not None and not ends[1] < ends[0]:
        yield doubt(Sign.LOSS_NOT_FALLING, first=ends[0], last=ends[1])

    wait, step = row["data_wait_s"], row["step_time_s"]
    if wait and step and wait >= MUCH_WAITING * step:
        yield doubt(Sign.WAITS_FOR_INPUT, share=wait / step)
    if marks := [mark for mark in row["validity"] or () if mark != RATE_DISAGREES]:
        yield doubt(Sign.MARKED, marks=marks)


def _of_losses(row: Observation, others: Iterable[Observation]) -> Iterator[Finding]:
    """Doubt the largest of the batches whose trials print the same losses."""
    losses = row["first_losses"]
    alike = {o["global_batch_size"] for o in others if o["first_losses"] == losses}
    if losses and row["global_batch_size"] == max(alike, default=0) > min(alike):
        yield Finding(
            sign=Sign.EQUAL_LOSSES,
            stops=False,
            figures={"batches": " and ".join(f"{batch:,}" for batch in sorted(alike))},
        )


def _of_speedup(row: Observation, others: Iterable[Observation]) -> Iterator[Finding]:
    """Doubt ranks that are no faster than one rank, or faster than so many can be.

    Their lines alone are read, and may count the samples of one rank or of all.
    """
    program = f"options.{PROGRAM}"
    alone = [
        samples_of_step(other) / other["step_time_s"]
        for other in others
        if other["world_size"] == 1 < row["data_parallel_size"]
        and other["step_time_s"]
        and other.get(program) == row.get(program)
    ]
    if not alone or row["measured_by"] != LOG or not row["step_time_s"]:
        return

    speedup = samples_of_step(row) / row["step_time_s"] / max(alone)
    if not DOUBTED_BEYOND < speedup < row["world_size"] * DOUBTED_BEYOND:
        yield Finding(
            sign=Sign.UNLIKELY_SPEEDUP, stops=False, figures={"speedup": speedup}
        )


def factor(one: float, other: float) -> float:
    """Return how many times the larger of two positive numbers is the smaller."""
    return math.exp(abs(math.log(one / other)))


_Group = tuple[bool, str | None]  # several ranks or one, and the program


def _group_of(trial: Trial) -> _Group:
    return trial.world_size > 1, trial.program


def _smallest(trials: Iterable[Trial]) -> Trial | None:
    """Return the trial that tells soonest and cheapest whether a program works.

    A throughput trial, since others run until a target is reached; of those the one on
    the fewest devices and nodes, with the smallest batch; of repeats the canary that is
    due first, then the first.
    """
    return min(
        trials,
        key=lambda trial: (
            trial.kind is not TrialKind.THROUGHPUT,
            trial.world_size,
            trial.allocation.num_nodes,
            trial.global_batch_size,
            -1 if trial.canary_after == 0 else trial.repeat,
        ),
        default=None,
    )


def first_trials(
    trials: Collection[Trial], programs: Iterable[str | None]
) -> list[Trial]:
    """Return the smallest trial of each program, then the smallest of several ranks."""
    groups = product((False, True), programs)
    found = (_smallest(t for t in trials if _group_of(t) == group) for group in groups)
    return [trial for trial in found if trial is not None]


class FirstTrials(TrialSource):
    """Holds a source's trials back until the first of each program has ended well.

    For each program that is the smallest trial, and then the smallest of several ranks.
    A trial that runs until a target is reached holds the others back until its first
    step only. What an earlier sweep has measured well is not checked again. Where a
    first trial is unsound no further trial of its program is proposed.

    Where the source does not know its trials, or looks for a local batch, its own first
    trial is the first one. ``failures`` are rows of unsound first trials, by program.
    """

    def __init__(
        self, source: TrackedSource, programs: Iterable[str | None] = (None,)
    ) -> None:
        self._source = source
        self._programs = frozenset(programs)
        self._unchecked = {*product((False, True), self._programs)}
        self._first: dict[str, Trial] = {}
        self._held: str | None = None
        self.wants_progress = source.wants_progress
        self.failures: dict[str | None, Observation] = {}

    @property
    def name(self) -> str:
        """Name of the source in the experiment."""
        return self._source.name

    def ask(self) -> Trial | None:
        """Return the next first trial, or the source's next where all were checked."""
        if self._held is not None or self.has_stopped:
            return None
        if first := self._next_first():
            return self._begin(first)

        while (trial := self._source.ask()) is not None:
            if trial.trial_id in self._first or trial.program in self.failures:
                continue
            is_unchecked = _group_of(trial) in self._unchecked
            return self._begin(trial) if is_unchecked else trial

        return None

    def tell(self, observation: Observation) -> None:
        """Learn how a trial ended; check it if it was a first one."""
        self._source.tell(observation)
        trial = self._first.get(observation["trial_id"])
        if trial is None:
            if self._unchecked and is_sound(observation):
                program = observation.get(f"options.{PROGRAM}")
                self._pass((observation["world_size"] > 1, program))
            return

        self._release(trial)
        found = findings(observation)
        if any(finding.sign is Sign.LOST for finding in found):
            self._unchecked.add(_group_of(trial))
        elif any(finding.stops for finding in found):
            self.failures[trial.program] = observation
        else:
            self._pass(_group_of(trial))

    def tell_progress(
        self, trial: Trial, step: int, metrics: Mapping[str, float]
    ) -> Decision:
        """Let other trials start beside a long one that steps; ask the source."""
        if trial.kind is not TrialKind.THROUGHPUT:
            self._release(trial)
        if self._source.wants_progress:
            return self._source.tell_progress(trial, step, metrics)
        return Decision.KEEP

    @property
    def has_stopped(self) -> bool:
        """No trial is proposed any more, since the first ones were unsound."""
        return bool(self.failures) and (
            self.failures.keys() == self._programs or not self._knows_trials
        )

    def includes(self, trial_id: str) -> bool:
        """Tell whether a trial is one of the first, which are checked."""
        return trial_id in self._first

    def withheld(self) -> list[Trial]:
        """Return the trials that were not proposed because a first one was unsound."""
        return [t for t in self._source.left or [] if t.program in self.failures]

    @property
    def _knows_trials(self) -> bool:
        plan = self._source.plan
        return plan is not None and not plan.assumes_local_batch

    def _next_first(self) -> Trial | None:
        if not self._unchecked or not self._knows_trials:
            return None
        left = [t for t in self._source.left or [] if t.trial_id not in self._first]
        for group in sorted(self._unchecked, key=str):
            ours = [trial for trial in left if _group_of(trial) == group]
            if group[1] not in self.failures and (found := _smallest(ours)):
                return found
            self._unchecked.discard(group)
        return None

    def _begin(self, trial: Trial) -> Trial:
        self._unchecked.discard(_group_of(trial))
        self._first[trial.trial_id] = trial
        self._held = trial.trial_id
        is_long = trial.kind is not TrialKind.THROUGHPUT
        self.wants_progress = is_long or self._source.wants_progress
        return trial

    def _release(self, trial: Trial) -> None:
        if self._held == trial.trial_id:
            self._held = None
            self.wants_progress = self._source.wants_progress

    def _pass(self, group: _Group) -> None:
        # Who works with several ranks does with one.
        self._unchecked -= {group, (False, group[1])}
