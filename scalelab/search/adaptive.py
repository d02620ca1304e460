"""The trial source ``adaptive``: measures what changes the answer most for its cost."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import ConfigDict, Field

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.fields import (
    Count,
    Fraction,
    Json,
    LinkText,
    OneOrMany,
    Section,
    Text,
)
from scalelab.inputs.money import parse_rate
from scalelab.inputs.numerals import counted, device_words
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import shown, validated
from scalelab.kinds.resources import read_limits
from scalelab.laws.rows import prepared
from scalelab.plan.budget import Account, Spent
from scalelab.plan.inquiry import Ending, Inquiry, NextProbe, Purpose, in_lines
from scalelab.plan.planned import PlannedTrials
from scalelab.plan.source import Observation, TrialSource
from scalelab.recommend.answer.kept import Question
from scalelab.recommend.by_device import limits_of
from scalelab.recommend.knowledge import History
from scalelab.recommend.money.prices import GIVEN, Quote, quotes_in
from scalelab.recommend.question.batches import AskedBatch
from scalelab.recommend.question.devices import DeviceKind
from scalelab.recommend.question.objective import Constraints, RunSite
from scalelab.records.observations import frame
from scalelab.records.store import HistoryFolder, RunReader
from scalelab.records.taken_over import IMPORTED, on_known_devices
from scalelab.search.candidates import CandidateTrials, settings
from scalelab.search.expected import Expected, expected
from scalelab.search.planner import Candidates, Step, next_step
from scalelab.site.choice import history_directory
from scalelab.site.prices import PriceEntry
from scalelab.site.profile import Site

_START_UP_S = 60.0  # of a trial, until one has shown it
_AT_ONCE = 4  # trials, where a site sets no limit on its nodes
_MOST_LIKELY, _LIKELY = 3, 0.1  # sizes that are named, and the share from which on


class AdaptiveQuestion(Section):
    """What an adaptive sweep is to answer: limits and beliefs, as ``recommend`` has.

    Every other key is an upper limit on a resource, such as ``max_time: 4h``.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Json]

    confidence: Fraction = Field(
        default=0.9, description="The probability with which all limits must hold."
    )
    batch: Count | None = Field(default=None, description="The job's global batch.")
    max_batch: Count | None = Field(
        default=None, description="The largest global batch; default: any that runs."
    )
    between_nodes: LinkText | None = Field(
        default=None, description="The link between nodes, such as 100Gbit/s 5us."
    )
    price: Text | None = Field(
        default=None, description="What an hour of a device costs; default: the site's."
    )
    learn_from: OneOrMany[Text] = Field(
        default=(), description="Directories of other runs to learn step times from."
    )

    @classmethod
    def read(cls, given: Mapping[str, Any] | None) -> Self:
        """Read what stands under ``source.question``."""
        asked = validated(cls, given or {}, source="source.question")
        asked.limits()  # that are wrong are refused at once
        return asked

    def __str__(self) -> str:
        given = {**self.__pydantic_extra__, **self._said}
        words = [f"{name} {value}" for name, value in given.items()]
        return ", ".join(words) or "up to which count more devices pay"

    @property
    def _said(self) -> dict[str, Any]:
        names = self.model_fields_set & type(self).model_fields.keys()
        return {name: getattr(self, name) for name in sorted(names)}

    def check(self, site: Site) -> None:
        """Refuse a limit that no site's profile gives a price for, before trials run.

        Raises
        ------
        SpecError
            A limit needs what nothing says. A price list is read once devices are
            known.
        """
        if site.prices is None:
            kind = DeviceKind(device_type=site.device_type.value)
            question = self.of(None, 1, site)
            limits = limits_of(question, kind, frame([]), site)
            limits.spending(np.ones((1, 1)), np.ones(1), np.ones(1))

    def check_batches(self, job: Job, totals: Collection[int]) -> None:
        """Refuse a batch that no candidate has.

        Raises
        ------
        SpecError
            The batch of the job, or the largest, is none of ``totals``; or a job in
            steps leaves open which it is.
        """
        wanted = self.batch or job.global_batch_size
        if job.steps and wanted is None and len(totals) > 1:
            raise SpecError(
                f"job.steps={job.steps:,} is as many samples as the batch says, and "
                "candidates have several. Add job.global_batch_size, or write the job "
                "in samples.",
                code="steps_of_several_batches",
            )
        if wanted is not None and wanted not in totals:
            raise SpecError(
                f"the job's global batch of {wanted:,} is that of no candidate: they "
                f"have {', '.join(map(str, sorted(totals)))}. Write global_batch_size: "
                f"{wanted} beside gpus, so that each shares it.",
                code="batch_of_no_candidate",
            )
        if self.max_batch is not None and self.max_batch < min(totals):
            raise SpecError(
                f"source.question: max_batch={self.max_batch} is less than the least "
                f"global batch of a candidate, {min(totals)}. Allow a larger one.",
                code="batch_limit_too_small",
            )

    def limits(self) -> dict[str, float]:
        """Return the limits by the resource's name."""
        return read_limits(self.__pydantic_extra__, others=type(self).model_fields)

    def of(self, job: Job | None, largest: int, site: Site) -> Question:
        """Return the question about a job, ``largest`` the largest global batch."""
        quotes = tuple(quotes_in(Path(site.prices))) if site.prices else ()
        if self.price is not None:
            rate = parse_rate(self.price)
            entry = PriceEntry(on_demand=rate.money, per=rate.per)
            quotes = (Quote(entry=entry, rank=GIVEN, said_by="as given"), *quotes)

        return Question(
            job=job,
            limits=Constraints(limits=self.limits(), confidence=self.confidence),
            batches=self._batches(job, largest),
            between_nodes=self.between_nodes,
            accept_unmeasured=True,
            quotes=quotes,
        )

    def _batches(self, job: Job | None, largest: int) -> AskedBatch:
        is_named = self.batch is not None or (job and job.global_batch_size)
        if is_named or self.max_batch is not None:
            return AskedBatch(global_batch_size=self.batch, largest=self.max_batch)
        return AskedBatch(largest=largest)


@dataclass(frozen=True, slots=True)
class _Decision:
    inquiry: Inquiry
    place: int | None = None  # of the candidate to run next
    expected_s: float | None = None  # that its trial takes


class AdaptiveTrials(TrialSource):
    """Proposes the throughput trial that changes the answer most for what it costs.

    Candidates are what the lists and ranges of the experiment combine to. What is next
    depends on nothing but the rows and the budget, so that a sweep that is resumed goes
    on alike.

    Parameters
    ----------
    question
        What is asked, see :class:`~.question.AdaptiveQuestion`; without limits, up to
        where more devices pay.
    jobs
        How many such jobs the answer is for: a trial that costs more than all knowledge
        could save them is not worth it.
    """

    def __init__(
        self,
        experiment: Experiment,
        site: Site,
        question: Mapping[str, Any] | None = None,
        jobs: int = 1,
    ) -> None:
        if {*experiment.measure.kind} != {TrialKind.THROUGHPUT}:
            raise SpecError(
                "source=adaptive chooses throughput trials, and measure.kind is "
                f"{', '.join(experiment.measure.kind)}. Write measure: {{kind: "
                "throughput}, and measure the rest in a run of its own.",
                code="adaptive_kinds",
            )
        job = experiment.job
        if job is None or job.num_samples(1) is None:
            raise SpecError(
                "source=adaptive decides for a job, and nothing says how long that is. "
                "Add job: {epochs: 90, samples_per_epoch: 50000}, or samples, steps or "
                "tokens.",
                code="no_job",
            )
        if not isinstance(jobs, int) or jobs < 1:
            raise SpecError(
                f"source.jobs={shown(jobs)} must be a whole number of at least 1: how "
                "many such jobs the answer is for.",
                code="not_a_count",
            )
        self._experiment, self._jobs = experiment, jobs
        self._asked = AdaptiveQuestion.read(question)
        self._planned = PlannedTrials(experiment, site)
        first, *others = self._planned.plan.trials
        if any(trial.node_group != first.node_group for trial in others):
            raise SpecError(
                "source=adaptive compares nodes of one group. Make a run for each "
                "node_group.",
                code="several_node_groups",
            )
        self._site = site.in_group(first.node_group)
        self._words = device_words(
            self._site.device_type.value, is_emulated=first.is_emulated
        )
        self._asked.check(self._site)
        for run in self._asked.learn_from:
            RunReader.open(Path(run))  # what is none is refused at once

        if not self._planned.plan.assumes_local_batch:
            totals = {trial.global_batch_size for trial in self._candidates.trials}
            self._asked.check_batches(job, totals)

        self._account = Account()
        self._directory: Path | None = None
        self._rows: dict[str, Observation] = {}
        self._taken_over: list[Observation] = []  # measured in another run
        self._pending: dict[str, tuple[int | None, Trial]] = {}
        self._expected_s: dict[str, float] = {}
        self._decided: _Decision | None = None
        self._latest: Inquiry | None = None
        self._following: NextProbe | None = None

    def begin(self, directory: Path) -> None:
        """Learn from the history, too, where a sweep runs."""
        self._directory = directory

    def allow(self, account: Account) -> None:
        """Learn what the sweep may spend."""
        self._account, self._decided = account, None

    def ask(self) -> Trial | None:
        """Return the next trial, or None when nothing can be proposed now."""
        place, trial = None, None
        if self._planned.plan.assumes_local_batch:
            trial = self._planned.ask()
        elif (place := self._decision.place) is not None:
            known = self._rows.keys() | self._pending.keys()
            trial = self._candidates.further(place, known)
            if (expected_s := self._decision.expected_s) is not None:
                self._expected_s[trial.trial_id] = expected_s

        if trial is not None:
            self._pending[trial.trial_id] = place, trial
            self._decided = None
        return trial

    def tell(self, observation: Observation) -> None:
        """Learn how a trial ended, or what was measured in another run."""
        self._decided = None
        if observation.get("kind") == IMPORTED:
            self._taken_over.append(observation)
            return
        self._planned.tell(observation)
        self._rows[observation["trial_id"]] = observation
        self._pending.pop(observation["trial_id"], None)

    def expected_s(self, trial: Trial) -> float | None:
        """Return how many seconds a proposed trial is expected to take."""
        return self._expected_s.get(trial.trial_id)

    @property
    def inquiry(self) -> Inquiry:
        """What was decided last: what is open, how sure it is, and what is next."""
        return self._latest or self._decision.inquiry

    @property
    def remaining(self) -> int | None:
        """Trials that have not ended: none where the plan has; else not known."""
        return None if self._decision.inquiry.ending is None else 0

    def describe(self) -> Iterator[str]:
        """Yield what is decided, among how many candidates, and what is next."""
        count = counted(len(self._candidates), "candidate")
        yield f"Question: {self._asked}. Of {count}, what would change the answer most"
        yield "for its cost is measured, until that is known or the budget is spent."
        yield from in_lines(self._decision.inquiry, self._words)

    @cached_property
    def _candidates(self) -> CandidateTrials:
        return CandidateTrials(self._planned.plan.trials)

    @property
    def _decision(self) -> _Decision:
        if self._decided is None:
            is_searching = self._planned.plan.assumes_local_batch
            self._decided = _Decision(Inquiry()) if is_searching else self._decide()
            self._latest = self._decided.inquiry
        return self._decided

    def _decide(self) -> _Decision:
        here = sorted(self._rows.values(), key=lambda row: str(row["trial_id"]))
        rows = prepared(frame([*here, *on_known_devices(self._taken_over, here)]))
        curves = self._candidates.curves(rows, here)
        spent_s = sum(row.get("allocated_gpu_s") or 0.0 for row in here)
        inquiry = Inquiry(spent_gpu_hours=spent_s / 3600)

        corners = self._candidates.corners(curves, self._tried)
        if corners:
            also = tuple(self._probe(place, Purpose.FIRST) for place in corners[1:])
            return self._next(replace(inquiry, also=also), corners[0], Purpose.FIRST)
        if not curves:
            following = self._following if self._pending else None
            return _Decision(inquiry=replace(inquiry, following=following))

        group = self._candidates.trials[0].node_group
        found = expected(
            rows,
            self._candidates.trials,
            curves,
            self._question,
            RunSite.by_group(self._experiment).get(group),
            self._history,
            broken=self._broken,
        )
        if found is None:
            return _Decision(replace(inquiry, ending=Ending.EXHAUSTED))

        seconds = self._seconds(found)
        step = self._step(found, seconds, self._candidates.num_runs(rows, curves, here))
        return self._after(step, found, seconds, inquiry)

    @property
    def _tried(self) -> set[int | None]:
        """Candidates that cannot be the first of their settings any more.

        They failed, or a trial of the same settings runs.
        """
        running = {settings(trial) for _, trial in self._pending.values()}
        waited = {
            place
            for place, trial in enumerate(self._candidates.trials)
            if settings(trial) in running
        }
        return {*map(self._candidates.place, self._rows.values())} | waited

    @property
    def _broken(self) -> set[int]:
        """Candidates of which a trial failed, or did not fit into memory."""
        return {
            place
            for row in self._rows.values()
            if (place := self._candidates.place(row)) is not None
            and (
                row["outcome"] == Outcome.OUT_OF_MEMORY
                or not Outcome(row["outcome"]).is_measurement
            )
        }

    @property
    def _question(self) -> Question:
        totals = [trial.global_batch_size for trial in self._candidates.trials]
        return self._asked.of(self._experiment.job, max(totals), self._site)

    @cached_property
    def _learned(self) -> History | None:
        """The runs that the question names."""
        named = [RunReader.open(Path(run)) for run in self._asked.learn_from]
        return History.of([(run.name, run.observations()) for run in named])

    @property
    def _history(self) -> History | None:
        """The runs that teach about these rows; of a plan, those that are named."""
        if self._asked.learn_from or self._directory is None:
            return self._learned
        folder = Path(self._site.history or history_directory()).expanduser()
        known, _ = HistoryFolder(str(folder)).runs(RunReader.open(self._directory))
        named = [(name, frame(rows)) for name, rows in known.items()]
        return History.of(named, is_asked=False)

    def _seconds(self, found: Expected) -> np.ndarray:
        """Return the seconds that a trial of each takes, with its start-up."""
        asked = self._candidates.trials[0].measurement
        beside = [
            row["allocated_gpu_s"] / row["world_size"]
            - (asked.warmup_steps + (row.get("num_steps") or 0)) * row["step_time_s"]
            for row in self._rows.values()
            if row.get("allocated_gpu_s") and row.get("step_time_s")
        ]
        start_up_s = max(0.0, float(np.median(beside))) if beside else _START_UP_S
        return start_up_s + (asked.warmup_steps + asked.steps) * found.step_s

    def _step(
        self, found: Expected, seconds: np.ndarray, num_runs: Mapping[int, int]
    ) -> Step:
        trials = [self._candidates.trials[place] for place in found.places]
        account = self._account
        left = account.left - sum(
            account.needed(trial, self._expected_s.get(trial.trial_id, 0.0))
            for _, trial in self._pending.values()
        )
        needed = [account.needed(*pair) for pair in zip(trials, seconds, strict=True)]
        running = {place for place, _ in self._pending.values()}
        job = found.job.get(account.unit)

        return next_step(
            Candidates(
                sizes=np.array([trial.world_size for trial in trials], float),
                costs=np.array(
                    [self._cost(*pair) for pair in zip(trials, seconds, strict=True)]
                ),
                num_runs=np.array([num_runs[place] for place in found.places]),
                pending=[i for i, p in enumerate(found.places) if p in running],
                is_affordable=(np.array(needed) < left),
                is_broken=np.isin(found.places, [*self._broken]),
            ),
            found.prospects,
            None if job is None else self._jobs * job,
        )

    def _cost(self, trial: Trial, seconds: float) -> float:
        """Return what a trial costs, whole nodes where nobody else may use the rest."""
        cost = self._account.cost(trial, seconds)
        if self._account.unit is Spent.DEVICE_TIME and self._site.exclusive:
            whole = trial.allocation.num_nodes * self._site.devices_per_node
            cost *= whole / trial.world_size
        return cost

    def _after(
        self, step: Step, found: Expected, seconds: np.ndarray, inquiry: Inquiry
    ) -> _Decision:
        """Return the decision of a step of the planner."""
        trials = [self._candidates.trials[place] for place in found.places]
        sizes = np.array([trial.world_size for trial in trials])
        shares = {
            int(size): float(found.prospects.share_best[sizes == size].sum())
            for size in np.unique(sizes)
        }
        likely = sorted(shares, key=lambda size: -shares[size])[:_MOST_LIKELY]
        repeats = self._experiment.measure.repeats
        inquiry = replace(
            inquiry,
            likely=tuple(n for n in likely if shares[n] >= _LIKELY) or (likely[0],),
            pick=int(sizes[step.pick]),
            surety=step.surety,
            ending=step.ending,
            grid_gpu_hours=repeats * float(sizes @ seconds) / 3600,
        )

        if step.candidate is None:
            following = None if step.ending else self._following
            return _Decision(inquiry=replace(inquiry, following=following))

        trial = trials[step.candidate]
        crosses = trial.allocation.num_nodes > 1 and not found.knows_link
        return self._next(
            replace(inquiry, asks_for_link=crosses),
            found.places[step.candidate],
            step.purpose,
            float(seconds[step.candidate]),
            step.settles,
        )

    def _next(
        self,
        inquiry: Inquiry,
        place: int,
        purpose: Purpose | None,
        expected_s: float | None = None,
        settles: float | None = None,
    ) -> _Decision:
        """Return the decision to run a candidate, as soon as there is room for it."""
        trial = self._candidates.trials[place]
        following = self._probe(place, purpose or Purpose.DECIDES, expected_s, settles)
        found = replace(inquiry, following=following)
        if inquiry.ending is not None or not self._has_room(trial):
            return _Decision(inquiry=found)

        self._following = following
        return _Decision(inquiry=found, place=place, expected_s=expected_s)

    def _probe(
        self,
        place: int,
        purpose: Purpose,
        expected_s: float | None = None,
        settles: float | None = None,
    ) -> NextProbe:
        trial = self._candidates.trials[place]
        devices_s = None if expected_s is None else expected_s * trial.world_size
        return NextProbe(
            allocation=str(trial.allocation),
            world_size=trial.world_size,
            local_batch_size=trial.local_batch_size,
            num_steps=trial.max_steps,
            gpu_hours=None if devices_s is None else devices_s / 3600,
            purpose=purpose,
            settles=settles,
            settings=self._candidates.named(place),
        )

    def _has_room(self, trial: Trial) -> bool:
        """Tell whether a trial may run beside those that run."""
        if not self._pending:
            return True
        devices = self._site.num_devices
        if devices is None:
            return len(self._pending) < _AT_ONCE
        held = sum(running.world_size for _, running in self._pending.values())
        return held + trial.world_size <= devices
