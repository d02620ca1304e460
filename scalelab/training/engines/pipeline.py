"""Engine of ``pipeline``: layers are divided over ranks, batches into micro-batches."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import P2POp, ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.data import Dataset

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial
from scalelab.kinds.strategies import Pipeline
from scalelab.training import feed
from scalelab.training.context import RankContext
from scalelab.training.description import normalization_batch_size
from scalelab.training.engines.local_sgd import average
from scalelab.training.engines.spread import Observers, SpreadModel
from scalelab.training.engines.training import (
    MIN_EVALUATION_BATCH,
    TrainingEngine,
    compiling,
    unchanged,
)
from scalelab.training.feed import Batch
from scalelab.training.order import Share
from scalelab.training.pipeline.splitting import tied_parameters
from scalelab.training.probes.meter import Phase, StepClock, step_clock
from scalelab.training.step_plan import TrainingPlan
from scalelab.training.workloads.base import Workload


class TimedStage(PipelineStage):
    """A stage that marks when it computes, and when it waits for another."""

    def __init__(
        self,
        *arguments: Any,
        mark: Callable[[Phase], None],
        autocast: Callable[[], AbstractContextManager[Any]],
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._mark = mark
        self._autocast = autocast

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Compute a forward pass."""
        with self._timed(), self._autocast():
            return super().forward_one_chunk(*arguments, **named)

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Compute a backward pass."""
        with self._timed():
            return super().backward_one_chunk(*arguments, **named)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._mark(Phase.EXPOSED_SYNC)
        try:
            yield
        except RuntimeError as error:
            # torch hides what a forward pass raised, such as a lack of memory.
            raise error.__cause__ or error from None
        self._mark(Phase.COMPUTE)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[P2POp]:
        """Return what is sent to the next stage."""
        return _contiguous(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        """Return what is sent to the stage before."""
        return _contiguous(super().get_bwd_send_ops(bwd_chunk_id))


def _contiguous(operations: list[P2POp]) -> list[P2POp]:
    """Return the operations; neither gloo nor NCCL sends tensors with gaps."""
    for operation in operations:
        operation.tensor = operation.tensor.contiguous()
    return operations


OfModel = Callable[[nn.Module, Batch], Any]
"""What a workload computes of a model and a batch: a loss, or sums of metrics."""


class _Called(Exception):
    """The model was called."""


class _Recorder(nn.Module):
    """Stands for the model where only its input is wanted."""

    def forward(self, *inputs: Any, **named: Any) -> None:
        if len(inputs) != 1 or named or not isinstance(inputs[0], torch.Tensor):
            raise SpecError(
                f"parallelism=pipeline: the model is called with {len(inputs)} "
                f"positional and {len(named)} named values. Call it with one tensor "
                "in loss() and evaluate() of the workload, or train with ddp or fsdp.",
                code="bad_input_of_model",
            )
        raise _Called(inputs[0])


class _Computed(nn.Module):
    """Stands for the model that has computed its output already."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self.num_calls = 0
        self._output = output

    def forward(self, *inputs: Any) -> torch.Tensor:
        self.num_calls += 1
        return self._output


def input_of_model(compute: OfModel, batch: Batch) -> torch.Tensor:
    """Return the tensor with which a workload calls its model for a batch."""
    try:
        compute(_Recorder(), batch)
    except _Called as called:
        tensor: torch.Tensor = called.args[0]
        return tensor
    raise _not_called_once(0)


def of_output(compute: OfModel, output: torch.Tensor, batch: Batch) -> Any:
    """Return what a workload computes of the model's output for a batch."""
    model = _Computed(output)
    result = compute(model, batch)
    if model.num_calls != 1:
        raise _not_called_once(model.num_calls)
    return result


def _not_called_once(num_calls: int) -> SpecError:
    return SpecError(
        f"parallelism=pipeline: the workload calls its model {num_calls} times for a "
        "batch. Call it once in loss() and in evaluate(), or train with ddp or fsdp.",
        code="model_called_again",
    )


_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_MOST_DIMENSIONS = 8


def passed_between_stages(
    stage: nn.Module, inputs: torch.Tensor, group: ProcessGroup, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return examples of what enters and what leaves this rank's stage.

    All ranks of the group take part, each in its turn. Between stages, both require a
    gradient. torch can find it out as well, but sends objects that the receiving rank
    executes.
    """
    rank, received = dist.get_rank(group), inputs
    for index in range(dist.get_world_size(group)):
        written = torch.zeros(_MOST_DIMENSIONS + 2, dtype=torch.int64, device=device)
        if index == rank:
            output = stage(received)
            _check(output, len(received), index)
            shape = [*output.shape] + [0] * (_MOST_DIMENSIONS - output.dim())
            kind = _DTYPES.index(output.dtype)
            written.copy_(torch.tensor([kind, output.dim(), *shape]))

        dist.broadcast(written, dist.get_global_rank(group, index), group)
        if index + 1 == rank:
            kind, num_dimensions, *shape = written.tolist()
            received = torch.zeros(
                shape[:num_dimensions],
                dtype=_DTYPES[kind],
                device=device,
                requires_grad=True,
            )
    return received, output.detach().requires_grad_()


def _check(output: object, num_samples: int, index: int) -> None:
    if (
        not isinstance(output, torch.Tensor)
        or output.dtype not in _DTYPES
        or output.dim() > _MOST_DIMENSIONS
        or output.shape[:1] != (num_samples,)
    ):
        shape = tuple(getattr(output, "shape", ()))
        raise SpecError(
            f"parallelism=pipeline: stage {index} returns {type(output).__name__} "
            f"{shape} for {num_samples} samples. Return one floating-point tensor "
            "whose first dimension is the samples.",
            code="bad_output_of_stage",
        )


SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
"""torch's schedules, by value of the option ``schedule``."""
# Nobody reads the outputs of a step; older torch joins them all the same.
_JOINS_NOTHING: dict[str, Any] = (
    {"return_outputs": False}
    if "return_outputs" in inspect.signature(ScheduleGPipe.step).parameters
    else {}
)


class PipelineEngine(TrainingEngine):
    """Trains with torch's pipelines: each rank computes one stage of the model.

    ``stages`` neighbouring ranks form a pipeline, and pipelines average their
    gradients after each step. The first stage is fed, the last one computes the loss. A
    local batch is that of a pipeline. What the workload computes of its model,
    ``loss`` and ``evaluate``, is called at both ends: at the first to learn what enters
    the model, at the last with what has come out of it.

    ``bubble_share`` is one less the time that all stages compute over the time that all
    have, which is for each the first stage's time from its first forward to its last
    backward pass. An optimiser works on each stage alone.

    References
    ----------
    Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using
    Pipeline Parallelism". Narayanan et al. 2019, "PipeDream: Generalized Pipeline
    Parallelism for DNN Training", section 3.2, for 1F1B, here with a flush each step.
    """

    is_replicated = False

    def __init__(
        self,
        workload: Workload,
        trial: Trial,
        context: RankContext,
        clock: StepClock,
        loader_workers: int = 0,
    ) -> None:
        options = Pipeline.Options.of(trial.options)
        self._split_size = options.split_size or 1
        self._new_schedule = SCHEDULES[options.schedule]
        self._num_stages = options.stages or context.world_size
        self._pipeline, self._stage = divmod(context.rank, self._num_stages)
        self._is_first = self._stage == 0
        self._is_last = self._stage == self._num_stages - 1
        self._num_micro_batches = trial.local_batch_size // self._split_size
        self._warmup_steps = TrainingPlan.of(trial).warmup_steps
        self._clocks: tuple[StepClock, ...] = ()
        super().__init__(workload, trial, context, clock, loader_workers)
        # It tells the time of the schedules from that of everything around them.
        self._schedule_clock = step_clock(context.device)
        self._clocks = (clock, self._schedule_clock)
        self._is_measured = False
        self._computed_s = self._offered_s = 0.0

    def share(self) -> Share:
        """Return the micro-batches of this rank's pipeline."""
        passes = self.trial.gradient_accumulation_steps
        return Share(
            rank=self._pipeline,
            data_parallel_size=self.trial.data_parallel_size,
            local_batch_size=self._split_size,
            gradient_accumulation_steps=passes * self._num_micro_batches,
        )

    def observes_gradients(self) -> bool:
        """Tell that no rank has a whole gradient."""
        return False

    def build_model(self) -> nn.Module:
        """Return this rank's stage of the model, on its device."""
        whole = self.workload.build_model()
        if any(isinstance(layer, nn.SyncBatchNorm) for layer in whole.modules()):
            raise SpecError(
                "parallelism=pipeline does not go with SyncBatchNorm, whose ranks must "
                "all compute the same layer. Leave sync_batch_norm out.",
                code="pipeline_with_batch_norm",
            )

        stages = self._stages(whole)
        trained = [p for p in whole.parameters() if p.requires_grad]
        has_norm = normalization_batch_size(whole, self.trial) is not None
        self._columns = {
            "num_parameters": sum(p.numel() for p in trained),
            "gradient_bytes": max(map(_gradient_bytes, stages)),
            "normalization_batch_size": (self._split_size if has_norm else None),
        }
        self._connect(stages)
        return stages[self._stage].to(self.context.device)

    def _stages(self, whole: nn.Module) -> list[nn.Module]:
        if self._num_stages == 1:
            return [whole]
        stages = list(self.workload.stages(whole, self._num_stages))
        if len(stages) != self._num_stages or not all(map(_gradient_bytes, stages)):
            raise SpecError(
                f"parallelism=pipeline: stages() of {self.trial.workload} returned "
                f"{len(stages)} stages. Return {self._num_stages}, each with "
                "parameters to train.",
                code="bad_stages",
            )

        return stages

    def _connect(self, stages: list[nn.Module]) -> None:
        """Form the groups of ranks that talk to each other; all ranks take part."""
        num_pipelines = self.trial.data_parallel_size
        shape = (num_pipelines, self._num_stages)
        names = ("pipelines", "stages")
        mesh = init_device_mesh(self.context.device.type, shape, mesh_dim_names=names)
        self._buffer_group, self._along = (mesh.get_group(name) for name in names)
        tied = tied_parameters(stages)

        groups: dict[tuple[int, ...], ProcessGroup] = {}
        for pipeline in range(num_pipelines):
            for holders in dict.fromkeys(holders for _, holders in tied):
                ranks = [pipeline * self._num_stages + stage for stage in holders]
                group = dist.new_group(ranks)
                if self.context.rank in ranks:
                    groups[holders] = group

        self._tied = [
            (parameter, groups[holders])
            for parameter, holders in tied
            if self._stage in holders
        ]

    def spread(self, model: nn.Module, observers: Observers) -> SpreadModel:
        """Return the rank's stage; the schedule is given it once its input is known."""
        return SpreadModel(model)

    def _prepare(self) -> None:
        """Learn what stages exchange, and run one schedule that changes nothing.

        The first schedule is slow: links between ranks are made, and a model may be
        compiled. So it runs before any clock does.
        """
        context = self.context
        with (
            compiling(self._model, context)
            if context.options.compile
            else unchanged(self._model, context.device)
        ):
            self._scaler.scale(torch.zeros((), device=context.device))
            batches = self._micro_batches(self._feed(0))

            inputs = self._inputs(batches)
            with self._autocast():
                received, output = passed_between_stages(
                    self._spread.model,
                    inputs[: self._split_size],
                    self._along,
                    context.device,
                )

            self._hidden_shape, self._hidden_dtype = received.shape[1:], received.dtype
            stage = TimedStage(
                self._spread.model,
                self._stage,
                self._num_stages,
                context.device,
                input_args=received,
                output_args=output,
                group=self._along,
                mark=self._mark,
                autocast=self._autocast,
            )

            self._schedule = self._new_schedule(
                stage, self._num_micro_batches, loss_fn=self._loss, scale_grads=False
            )
            self._run_schedule(batches, inputs)

        self._optimizer.zero_grad(set_to_none=True)

    def begin(self, step: int, num_steps: int) -> None:
        """Prepare a series of steps; all ranks call it, and no clock runs."""
        super().begin(step, num_steps)
        self._series_end = step + num_steps
        self._is_measured = step >= self._warmup_steps
        self._schedule_clock.start()

    def step(self, step: int) -> None:
        """Take one optimiser step, marking its phases on the clock."""
        self._losses.append(self._optimiser_step(step))
        if step + 1 == self._series_end:  # so that the clocks of all ranks agree
            self.context.sum([0])
            self._mark_around(Phase.EXPOSED_SYNC)
        for clock in self._clocks:
            clock.end_step()

    def _optimiser_step(self, step: int) -> torch.Tensor:
        loss = torch.zeros((), device=self.context.device)
        for _ in range(self.trial.gradient_accumulation_steps):
            batches = self._micro_batches(self._batches)
            self._mark(Phase.DATA_WAIT)
            inputs = self._inputs(batches)
            self._mark(Phase.COMPUTE)
            loss += self._run_schedule(batches, inputs)
            self._mark(Phase.EXPOSED_SYNC)

        self._exchange_gradients()
        self._mark_around(Phase.EXPOSED_SYNC)
        self._update(step)
        self._mark(Phase.OPTIMIZER)
        return loss

    def _mark(self, phase: Phase) -> None:
        for clock in self._clocks:
            clock.mark(phase)

    def _mark_around(self, phase: Phase) -> None:
        """Mark a phase that is no part of the schedules."""
        self._clock.mark(phase)
        self._schedule_clock.mark(Phase.OPTIMIZER)

    def _micro_batches(self, batches: Iterator[feed.Batch]) -> list[feed.Batch]:
        if self._is_first or self._is_last:
            return list(islice(batches, self._num_micro_batches))
        return []

    def _inputs(self, batches: list[feed.Batch]) -> torch.Tensor:
        if not self._is_first:
            return torch.empty(0)
        with self._autocast():
            return torch.cat(
                [input_of_model(self.workload.loss, batch) for batch in batches]
            )

    def _run_schedule(
        self, batches: list[feed.Batch], inputs: torch.Tensor
    ) -> torch.Tensor:
        self._in_schedule = batches
        self._loss_sum = torch.zeros((), device=self.context.device)
        self._schedule.step(
            *([inputs] if self._is_first else []),
            target=torch.arange(len(batches)) if self._is_last else None,
            **_JOINS_NOTHING,
        )
        return self._loss_sum

    def _loss(self, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        """Return the loss of a micro-batch, such that those of a step add up to it."""
        self._mark(Phase.EXPOSED_SYNC)
        batch = self._in_schedule[int(number)]
        with self._autocast():
            loss = of_output(self.workload.loss, output, batch)
        loss = loss / self._share.gradient_accumulation_steps
        self._loss_sum += loss.detach()
        scaled: torch.Tensor = self._scaler.scale(loss)
        self._mark(Phase.COMPUTE)
        return scaled

    def _exchange_gradients(self) -> None:
        for parameter, group in self._tied:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)

        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        if self.trial.data_parallel_size > 1:
            average(gradients, self._buffer_group)

        if self._scaler.is_enabled():
            overflows = any(
                not bool(gradient.isfinite().all()) for gradient in gradients
            )
            if any(self.context.sum([overflows])):
                # Every rank skips the step that one skips, and lowers its loss scale.
                gradients[0].fill_(torch.inf)

    def drain_losses(self) -> list[float]:
        """Return the losses since the last call, one per step; all ranks take part."""
        losses = super().drain_losses()
        if not (self._is_last and self._pipeline == 0):
            losses = [0.0] * len(losses)

        *phases, _ = self._schedule_clock.drain().sum(axis=0)
        computed_s = phases[Phase.COMPUTE]
        offered_s = (computed_s + phases[Phase.EXPOSED_SYNC]) * self._num_stages

        *losses, computed_s, offered_s = self.context.sum(
            [*losses, computed_s, offered_s if self._is_first else 0.0]
        )
        if self._is_measured:
            self._computed_s += computed_s
            self._offered_s += offered_s

        return losses

    def _evaluation_batches(
        self, held_out: Dataset[Any]
    ) -> Iterator[tuple[feed.Batch, int]]:
        """Yield the batches of the rank's pipeline; they count on its last rank."""
        for batch, size in feed.held_out_batches(
            held_out,
            rank=self._pipeline,
            world_size=self.trial.data_parallel_size,
            batch_size=max(self._split_size, MIN_EVALUATION_BATCH),
            device=self.context.device,
        ):
            yield (batch, size), size if self._is_last else 0

    def _evaluated(self, batch: feed.Batch) -> Any:
        samples, size = batch
        rank = self.context.rank
        if self._is_first:
            hidden = input_of_model(self.workload.evaluate, samples)
        else:
            hidden = torch.empty(
                (size, *self._hidden_shape),
                dtype=self._hidden_dtype,
                device=self.context.device,
            )
            dist.recv(hidden, rank - 1, group=self._along)

        output = self._model(hidden)
        if self._is_last:
            return of_output(self.workload.evaluate, output, samples)

        dist.send(output.contiguous(), rank + 1, group=self._along)
        return {}

    def description(self) -> dict[str, Any]:
        """Return the columns of the whole model, and how long stages stood idle."""
        columns = super().description() | self._columns
        if self._offered_s:
            # one stage waits for no other
            is_alone = self._num_stages == 1
            share = 0.0 if is_alone else 1 - self._computed_s / self._offered_s
            columns["bubble_share"] = share
        return columns


def _gradient_bytes(stage: nn.Module) -> int:
    trained = (p for p in stage.parameters() if p.requires_grad)
    return sum(p.numel() * p.element_size() for p in trained)
