"""Asynchronous training in virtual time: one process, real gradients.

The workload's own model learns from its own data, by the rules and the parameter server
of real trials. Only the times are declared. So the effects of staleness and of slow
workers are the same bit for bit whenever the same is asked.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from scalelab.errors import SpecError
from scalelab.training import feed
from scalelab.training.engines.training import NumberFormat
from scalelab.training.optimizers import optimizer_of
from scalelab.training.order import SampleOrder, Share
from scalelab.training.rank_options import RankOptions
from scalelab.training.seeds import MODEL_STREAM, rank_stream, seed_everything
from scalelab.training.servers.rules import Rule
from scalelab.training.servers.served import (
    Pace,
    ServedParameters,
    Staleness,
    fill,
    flat,
)
from scalelab.training.workloads.base import CONFUSION_MATRIX, Workload

CPU = torch.device("cpu")
EVALUATION_BATCH = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualWorkers:
    """The declared times of a machine."""

    step_times_s: tuple[float, ...]
    message_s: float = 0.0

    def __len__(self) -> int:
        return len(self.step_times_s)

    def synchronous_s(self, num_steps: int) -> float:
        """Return the time of so many steps of all workers and one exchange."""
        return num_steps * max(self.step_times_s) + 2 * self.message_s


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualJob:
    """What is trained, and how it is looked at."""

    workload: Workload
    local_batch_size: int
    learning_rate: float
    max_samples: int
    evaluate_every_samples: int
    seed: int = 0
    precision: str = "fp32"
    options: RankOptions = field(default_factory=RankOptions)

    def __post_init__(self) -> None:
        if self.workload.held_out_data() is None:
            raise SpecError(
                f"{type(self.workload).__name__} has no held-out data, so that a "
                "virtual training cannot be evaluated. Return a data set from "
                "held_out_data()."
            )


@dataclass(frozen=True, slots=True)
class VirtualEvaluation:
    """Held-out metrics after so many samples, at a virtual time in seconds."""

    t: float
    samples: int
    metrics: dict[str, float]


@dataclass(slots=True)
class Course:
    """The course of a training in virtual time."""

    evaluations: list[VirtualEvaluation] = field(default_factory=list)
    staleness: Staleness = field(default_factory=Staleness)  # empty: synchronous


def asynchronous(
    job: VirtualJob,
    workers: VirtualWorkers,
    rule: Rule,
    *,
    window: int,
    staleness_bound: int | None = None,
) -> Course:
    """Train with one parameter server, whose own work takes no time."""
    course, team = _Recorder(job), _team(job, len(workers))
    served = ServedParameters(flat(team[0].parameters), rule)
    pace = Pace(len(workers), staleness_bound)
    messages = [
        (window * workers.step_times_s[each.rank] + workers.message_s, each.rank)
        for each in team
    ]
    heapq.heapify(messages)
    waiting: set[int] = set()
    while not course.is_over:
        now, rank = heapq.heappop(messages)
        team[rank].train(window)
        team[rank].exchange(served, rule)
        pace.advance(rank, window)
        course.look(now, window, team[0], served.parameters)
        waiting.add(rank)
        for each in sorted(filter(pace.may_go_on, waiting)):
            waiting.remove(each)
            again = now + workers.synchronous_s(0) + window * workers.step_times_s[each]
            heapq.heappush(messages, (again, each))
    return Course(course.evaluations, served.staleness)


def untrained(job: VirtualJob) -> dict[str, float]:
    """Return the held-out metrics of the model before the first step."""
    (first,) = _team(job, 1)
    first.model.eval()
    return _Recorder(job).metrics_of(first.model)


def local_sgd(job: VirtualJob, workers: VirtualWorkers, *, period: int = 1) -> Course:
    """Train with workers that average parameters; a period of 1 with SGD is ``ddp``."""
    course, team = _Recorder(job), _team(job, len(workers))
    num_rounds = 0
    while not course.is_over:
        for worker in team:
            worker.train(period)
        mean = torch.stack([flat(each.parameters) for each in team]).mean(dim=0)
        for worker in team:
            fill(worker.parameters, mean)
        num_rounds += 1
        now = num_rounds * workers.synchronous_s(period)
        course.look(now, period * len(workers), team[0], mean)
    return Course(course.evaluations)


class _Worker:
    def __init__(self, job: VirtualJob, rank: int, num_workers: int) -> None:
        self.rank = rank
        self._workload = job.workload
        self._format = NumberFormat(job.precision, CPU.type)
        self._scaler = self._format.scaler()
        seed_everything(job.seed, MODEL_STREAM)
        self.model = job.workload.build_model()
        self.parameters = list(self.model.parameters())
        self._optimizer = optimizer_of(
            job.workload, self.model, job.learning_rate, job.options
        )
        self._batches = _batches(job, rank, num_workers)
        self._fetched, self._version = flat(self.parameters), 0

    def train(self, num_steps: int) -> None:
        self.model.train()
        for _ in range(num_steps):
            with self._format.autocast():
                loss = self._workload.loss(self.model, next(self._batches))
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self._optimizer.zero_grad(set_to_none=True)

    def exchange(self, served: ServedParameters, rule: Rule) -> None:
        own = flat(self.parameters)
        answer, self._version = served.exchange(
            rule.message(own, self._fetched), self._version
        )
        self._fetched = rule.adopt(own, answer)
        fill(self.parameters, self._fetched)


class _Recorder:
    """Counts samples and evaluates whenever enough of them were seen."""

    def __init__(self, job: VirtualJob) -> None:
        self._job = job
        self._held_out = job.workload.held_out_data()
        self._format = NumberFormat(job.precision, CPU.type)
        self._samples = 0
        self._is_finite = True
        self.evaluations: list[VirtualEvaluation] = []

    @property
    def is_over(self) -> bool:
        return self._samples >= self._job.max_samples or not self._is_finite

    def look(
        self, now: float, num_steps: int, first: _Worker, parameters: torch.Tensor
    ) -> None:
        interval = self._job.evaluate_every_samples
        num_due = self._samples // interval
        self._samples += num_steps * self._job.local_batch_size
        self._is_finite = bool(parameters.isfinite().all())
        if self._is_finite and (self._samples // interval > num_due or self.is_over):
            own = flat(first.parameters)
            fill(first.parameters, parameters)
            first.model.eval()
            metrics = self.metrics_of(first.model)
            fill(first.parameters, own)
            self.evaluations.append(VirtualEvaluation(now, self._samples, metrics))

    @torch.no_grad()
    def metrics_of(self, model: nn.Module) -> dict[str, float]:
        assert self._held_out is not None
        sums: dict[str, float] = {}
        for batch, _ in feed.held_out_batches(
            self._held_out,
            rank=0,
            world_size=1,
            batch_size=EVALUATION_BATCH,
            device=CPU,
        ):
            with self._format.autocast():
                of_batch = dict(self._job.workload.evaluate(model, batch))
            of_batch.pop(CONFUSION_MATRIX, None)
            for name, value in of_batch.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        num_samples = feed.num_samples_of(self._held_out)
        return {name: value / num_samples for name, value in sums.items()}


def _team(job: VirtualJob, num_workers: int) -> list[_Worker]:
    team = [_Worker(job, rank, num_workers) for rank in range(num_workers)]
    seed_everything(job.seed, rank_stream(0))
    return team


def _batches(job: VirtualJob, rank: int, num_workers: int) -> Iterator[feed.Batch]:
    data = job.workload.training_data()
    order = SampleOrder(
        num_samples=feed.num_samples_of(data),
        global_batch_size=num_workers * job.local_batch_size,
        seed=job.seed,
    )
    share = Share(
        rank=rank,
        data_parallel_size=num_workers,
        local_batch_size=job.local_batch_size,
        gradient_accumulation_steps=1,
    )
    return feed.training_batches(
        data,
        order,
        share,
        first_step=0,
        device=CPU,
        augment=job.workload.augment,
        num_random=job.workload.num_random,
    )
