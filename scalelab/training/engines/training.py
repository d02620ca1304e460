"""Trains a model step by step: feed, forward, backward, exchange, optimiser.

Where it is asked for, the model is compiled by ``torch.compile`` before the first step.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from scalelab.errors import LaunchError, SpecError
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.kinds.strategies import slow_rank_factor
from scalelab.training import evaluation, feed
from scalelab.training.context import RankContext
from scalelab.training.description import describe
from scalelab.training.engines.spread import Observers, SpreadModel
from scalelab.training.feeding.node_copy import CopiedData, copy_to_node
from scalelab.training.optimizers import optimizer_of
from scalelab.training.order import Share
from scalelab.training.probes.meter import Phase, StepClock
from scalelab.training.probes.noise_scale import NoiseProbe
from scalelab.training.seeds import (
    MODEL_STREAM,
    random_state,
    rank_stream,
    restore_random_state,
    seed_everything,
)
from scalelab.training.step_plan import TrainingPlan
from scalelab.training.workloads.base import Workload

REPORT_INTERVAL_S = 5.0
LONGEST_COMPILATION_S = 1800.0
"""Beyond it a rank is no longer reported alive, and counts as stalled if it hangs."""


class SlowRank:
    """Lets a rank sleep in proportion to what it has just computed.

    Before each step it sleeps as many times as long as its last step has computed, so
    that it takes ``factor`` times as long, whatever it computes. Waits for data and for
    other ranks are not computation. The first step is as fast as it is. With a factor
    of 1 nothing is measured and nothing slept.
    """

    def __init__(self, factor: float, device: torch.device) -> None:
        self._factor = factor
        self._device = device
        self._computed_s = 0.0
        self._began: float | None = None

    @classmethod
    def of(cls, trial: Trial, context: RankContext) -> Self:
        """Return that of a rank: the last one of several is slow, if the trial says."""
        is_last = context.rank == context.world_size - 1 > 0
        factor = slow_rank_factor(trial.options) if is_last else 1.0
        return cls(factor, context.device)

    def wait(self) -> None:
        """Sleep for what the last step has computed, at the beginning of a step."""
        if self._computed_s:
            time.sleep((self._factor - 1) * self._computed_s)
            self._computed_s = 0.0

    def begin(self) -> None:
        """Begin to compute."""
        if self._factor > 1:
            self._began = self._now()

    def end(self) -> None:
        """End what was begun; once is enough."""
        if self._began is not None:
            self._computed_s += self._now() - self._began
            self._began = None

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def compiled(model: nn.Module) -> nn.Module:
    """Return a module that trains as ``torch.compile`` translates it.

    It has the parameters of the module that is given, which evaluates as it is.
    """
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # a rank starts no processes that might outlive it
    translated: nn.Module = torch.compile(model)  # type: ignore[assignment]
    return translated


@contextmanager
def compiling(model: nn.Module, context: RankContext) -> Iterator[None]:
    """Run a first pass in which the model is compiled, and undo what it changes.

    The supervisor hears that the rank is alive, though the compiler takes minutes.
    """
    from torch._dynamo.exc import TorchDynamoException

    try:
        with unchanged(model, context.device), _reporting(context):
            yield
    except TorchDynamoException as error:
        root = getattr(error, "inner_exception", error)
        line = next(iter(str(root).strip().splitlines()), type(root).__name__)
        raise LaunchError(
            f"compile=True, but torch.compile fails here: {line.rstrip('. ')}. It "
            "needs a C++ compiler such as g++ on every node, on GPUs also Triton. "
            "Install what is missing, or leave compile out."
        ) from error


@contextmanager
def unchanged(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Run a first pass and undo what it changes.

    That is the state of random generators and of buffers such as batch-norm statistics.
    """
    random = random_state(device)
    with kept(model.buffers()):
        yield
    restore_random_state(random, device)


@contextmanager
def kept(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Give the tensors back, after the block, the values that they have before it."""
    copies = [(tensor.detach(), tensor.detach().clone()) for tensor in tensors]
    yield
    for tensor, value in copies:
        tensor.copy_(value)


@contextmanager
def _reporting(context: RankContext) -> Iterator[None]:
    ended = threading.Event()

    def report() -> None:
        for _ in range(round(LONGEST_COMPILATION_S / REPORT_INTERVAL_S)):
            if ended.wait(REPORT_INTERVAL_S):
                return
            context.progress(0)

    context.progress(0)
    thread = threading.Thread(target=report)
    thread.start()

    try:
        yield
    finally:
        ended.set()
        thread.join()


MIN_EVALUATION_BATCH = 32
"""Evaluation keeps no activations, so it never needs batches as small as training."""
AUTOCAST_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class NumberFormat:
    """The number format of forward passes; parameters and their updates stay fp32."""

    def __init__(self, precision: str, device_type: str) -> None:
        if precision not in AUTOCAST_DTYPES:
            raise SpecError(
                f"precision={precision!r} does not exist. Choose from: "
                f"{', '.join(sorted(AUTOCAST_DTYPES))}.",
                code="unknown_precision",
            )
        self._dtype = AUTOCAST_DTYPES[precision]
        self._device_type = device_type

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which forward passes use the format."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, self._dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """Return a scaler of losses, which does something for fp16 alone."""
        return torch.amp.GradScaler(
            self._device_type, enabled=self._dtype is torch.float16
        )


class TrainingEngine:
    """Trains a workload's model; a strategy derives its engine from this one.

    It says how the model is spread over ranks (:meth:`spread`) and, where not every
    rank sees samples of its own, which share of a batch is this rank's
    (:meth:`share`).

    Attributes
    ----------
    is_replicated
        All ranks hold the same model, and the average of their gradients. Otherwise
        each rank has its own, and the state of its own in checkpoints.
    """

    is_replicated: ClassVar[bool] = True

    def __init__(
        self,
        workload: Workload,
        trial: Trial,
        context: RankContext,
        clock: StepClock,
        loader_workers: int = 0,
    ) -> None:
        self.workload = workload
        self.trial = trial
        self.context = context
        self._clock = clock
        self._loader_workers = loader_workers
        self._slow_rank = SlowRank.of(trial, context)
        self._num_planned_steps = TrainingPlan.of(trial).num_steps
        number_format = NumberFormat(trial.precision, context.device.type)
        self._autocast = number_format.autocast
        self._scaler = number_format.scaler()
        self._buffer_group: dist.ProcessGroup | None = None
        self._evaluation_batch_size = max(trial.local_batch_size, MIN_EVALUATION_BATCH)
        seed_everything(trial.seed, MODEL_STREAM)
        self._load_data()
        self._build_model()
        self._losses: list[torch.Tensor] = []
        seed_everything(trial.seed, rank_stream(context.rank))
        self._prepare()
        self._start_feed(0)

    def build_model(self) -> nn.Module:
        """Return the model that is trained, on the rank's device."""
        return self.workload.build_model().to(self.context.device)

    def spread(self, model: nn.Module, observers: Observers) -> SpreadModel:
        """Return the model spread over the ranks of the process group."""
        raise NotImplementedError(f"{type(self).__name__} has no spread().")

    def share(self) -> Share:
        """Return the part of every global batch that this rank computes."""
        return Share(
            rank=self.context.rank,
            data_parallel_size=self.trial.data_parallel_size,
            local_batch_size=self.trial.local_batch_size,
            gradient_accumulation_steps=self.trial.gradient_accumulation_steps,
        )

    def observes_gradients(self) -> bool:
        """Tell whether observers see what the noise scale is computed from.

        That is each rank's whole gradient at every step, and then the average of all.
        """
        return self.is_replicated or self.context.world_size == 1

    def _load_data(self) -> None:
        trial = self.trial
        self.context.progress(0)
        self._training_data = self.workload.training_data()
        self._held_out_data = (
            self.workload.held_out_data()
            if trial.kind is not TrialKind.THROUGHPUT
            else None
        )

        num_samples = feed.num_samples_of(self._training_data)
        if (
            trial.kind is not TrialKind.THROUGHPUT
            and trial.global_batch_size > num_samples
        ):
            raise SpecError(
                f"global_batch_size={trial.global_batch_size} is larger than the "
                f"{num_samples} training samples of {trial.workload}. Use at most "
                f"{num_samples} in a {trial.kind} trial.",
                code="too_few_samples",
            )

        self._share = self.share()
        self._order = feed.order_of(
            self._training_data,
            self._share,
            seed=trial.seed,
            is_sharded=self.workload.is_sharded,
        )
        if isinstance(self._training_data, CopiedData):
            copy_to_node(
                self._training_data,
                self.context,
                self._share,
                is_sharded=self.workload.is_sharded,
            )

    def _build_model(self) -> None:
        trial = self.trial
        self.context.progress(0)
        self._model = self.build_model()
        self._probe = NoiseProbe(
            self._share,
            enabled=self.observes_gradients()
            and trial.kind is not TrialKind.THROUGHPUT,
        )
        observers = Observers(
            on_own_gradients=(
                self._probe.observe_bucket if self._probe.takes_buckets else None
            ),
            on_own_gradients_ready=self._begin_exchange,
        )

        # Inside what spreads it: there torch splits the graph where gradients are
        # exchanged, and evaluation takes the model as it is.
        trained = compiled(self._model) if self.context.options.compile else self._model
        self._spread = self.spread(trained, observers)
        self._exchanging = False
        rate = trial.learning_rate
        self._rate = rate.value if rate else self.workload.default_learning_rate
        self._optimizer = optimizer_of(
            self.workload, self._model, self._rate, self.context.options
        )
        # Groups keep their relation to the trial's rate whatever that becomes.
        self._rate_ratios = [
            group["lr"] / self._rate for group in self._optimizer.param_groups
        ]

    def _prepare(self) -> None:
        """Do what takes long once, before any clock runs; nothing of the state changes.

        That is a pass in which the model is compiled.
        """
        if not self.context.options.compile:
            return
        batch = next(self._feed(0))
        with compiling(self._model, self.context):
            with self._autocast():
                loss = self.workload.loss(self._spread.model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.zero_grad(set_to_none=True)

    def _start_feed(self, step: int) -> None:
        prefetch = self.context.options.prefetch or 0
        self._batches = self._feed(step, self._loader_workers, prefetch)

    def _feed(
        self, step: int, loader_workers: int = 0, prefetch: int = 0
    ) -> Iterator[feed.Batch]:
        return feed.training_batches(
            self._training_data,
            self._order,
            self._share,
            first_step=step,
            device=self.context.device,
            augment=self.workload.augment,
            num_random=self.workload.num_random,
            loader_workers=loader_workers,
            prefetch=prefetch,
            pins_memory=self.context.pins_memory,
        )

    def begin(self, step: int, num_steps: int) -> None:
        """Prepare a series of steps; all ranks call it, and no clock runs."""
        self._model.train()

    def step(self, step: int) -> None:
        """Take one optimiser step, marking its phases on the clock."""
        self._losses.append(self._optimiser_step(step))
        self._clock.end_step()

    def _optimiser_step(self, step: int) -> torch.Tensor:
        num_micro_steps = self.trial.gradient_accumulation_steps
        loss = torch.zeros((), device=self.context.device)
        self._probe.begin_step(step)

        for micro_step in range(num_micro_steps):
            batch = next(self._batches)
            self._clock.mark(Phase.DATA_WAIT)
            if micro_step == 0:
                self._slow_rank.wait()

            self._slow_rank.begin()
            is_last = micro_step == num_micro_steps - 1
            with nullcontext() if is_last else self._spread.no_sync():
                loss += self._backward(batch)

            self._slow_rank.end()
            if self._exchanging:
                self._clock.mark(Phase.EXPOSED_SYNC)
                self._exchanging = False
            else:
                self._clock.mark(Phase.COMPUTE)
                self._probe.observe_micro_step(self._model)

        self._slow_rank.begin()
        self._update(step)
        self._slow_rank.end()
        self._clock.mark(Phase.OPTIMIZER)
        return loss

    def _backward(self, batch: feed.Batch) -> torch.Tensor:
        with self._autocast():
            loss = self.workload.loss(self._spread.model, batch)
        loss = loss / self.trial.gradient_accumulation_steps
        self._spread.watch(loss)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _begin_exchange(self) -> None:
        self._slow_rank.end()
        self._clock.mark(Phase.COMPUTE)
        self._exchanging = True

    def _update(self, step: int) -> None:
        if self._probe.is_watching:
            self._probe.end_step(self._model, self._scaler.get_scale())
        rate = self._rate
        if self.trial.learning_rate is not None:
            samples = (step + 1) * self.trial.global_batch_size
            rate = self.trial.learning_rate.at(samples)

        rate *= self.workload.learning_rate_factor(step / self._num_planned_steps)
        for group, ratio in zip(
            self._optimizer.param_groups, self._rate_ratios, strict=True
        ):
            group["lr"] = rate * ratio

        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)

    def drain_losses(self) -> list[float]:
        """Return this rank's training losses since the last call, one per step."""
        losses, self._losses = self._losses, []
        return list[float](torch.stack(losses).tolist()) if losses else []

    def evaluate(self, step: int) -> dict[str, Any]:
        """Return held-out metrics on rank 0, {} elsewhere; all ranks take part."""
        if self._held_out_data is None:
            raise SpecError(
                f"Workload {self.trial.workload} has no held-out data, so a "
                f"{self.trial.kind} trial cannot evaluate it. Return a data set from "
                "held_out_data() or measure throughput.",
                code="no_held_out_data",
            )

        evaluation.share_buffers(self._model, self._buffer_group)
        self._model.eval()

        batches = self._evaluation_batches(self._held_out_data)
        with self._autocast():
            return evaluation.evaluate(self.context, step, batches, self._evaluated)

    def _evaluated(self, batch: feed.Batch) -> Mapping[str, Any]:
        return self.workload.evaluate(self._model, batch)

    def _evaluation_batches(
        self, held_out: Dataset[Any]
    ) -> Iterator[tuple[feed.Batch, int]]:
        return feed.held_out_batches(
            held_out,
            rank=self.context.rank,
            world_size=self.context.world_size,
            batch_size=self._evaluation_batch_size,
            device=self.context.device,
        )

    def state(self) -> tuple[dict[str, Any], Any]:
        """Return the state for a checkpoint: the shared part and this rank's own."""
        trained = self._trained_state() | {"scaler": self._scaler.state_dict()}
        noise = self._probe.average().state
        return (trained, noise) if self.is_replicated else ({}, (trained, noise))

    def _trained_state(self) -> dict[str, Any]:
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, step: int, state: dict[str, Any], rank_state: Any) -> None:
        """Restore a state, to continue after a step."""
        if not self.is_replicated:
            state, rank_state = rank_state
        self._restore_trained(state)
        self._scaler.load_state_dict(state["scaler"])
        self._probe.average().state = tuple(rank_state)
        self._start_feed(step)

    def _restore_trained(self, state: dict[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def description(self) -> dict[str, Any]:
        """Return the columns that are known without measuring."""
        return describe(
            self.workload,
            self.trial,
            self._model,
            self._optimizer,
            self._training_data,
        ) | {"planned_steps": self._num_planned_steps}

    def validity(self) -> tuple[str, ...]:
        """Return no reason: nothing makes this rank's times unfit for a law."""
        return ()

    def gradient_noise_scale(self) -> float | None:
        """Return the gradient noise scale on rank 0; all ranks take part."""
        world_size = self.context.world_size
        return self._probe.value(
            lambda local_value: self.context.sum([local_value])[0] / world_size
        )

    def peak_memory_bytes(self) -> int | None:
        """Return the peak memory that torch held on the device; None on CPU."""
        if self.context.device.type == "cpu":
            return None
        return torch.cuda.max_memory_allocated(self.context.device)

    def device_memory_bytes(self) -> int | None:
        """Return what torch holds on the device plus what is free; None on CPU.

        That is less than the device has: CUDA and NCCL take their own.
        """
        device = self.context.device
        if device.type == "cpu":
            return None
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return int(free_bytes) + torch.cuda.memory_reserved(device)
