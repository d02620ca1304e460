"""The base class of workloads, from which users derive their own."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from scalelab.errors import SpecError
from scalelab.training.feed import Batch
from scalelab.training.pipeline.splitting import split

CONFUSION_MATRIX = "confusion_matrix"
"""Under which :meth:`Workload.evaluate` may count samples by class and prediction."""

SCHEDULES = ("constant", "cosine")
"""Shapes of the learning rate over training that built-in workloads offer."""


def check_schedule(schedule: str) -> None:
    """Refuse a schedule that does not exist."""
    if schedule not in SCHEDULES:
        raise SpecError(
            f"schedule={schedule!r} must be one of {SCHEDULES}.",
            code="unknown_schedule",
        )


def schedule_factor(schedule: str, fraction: float) -> float:
    """Return the factor on the learning rate: 1, or half a cosine from 1 to 0."""
    if schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * fraction)) / 2


def confusion_matrix(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return how many samples of each class were taken for which class.

    Returns
    -------
    Tensor, shape (classes, classes)
        Whole numbers: true classes by row, predicted ones by column.

    Examples
    --------
    >>> import torch
    >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> confusion_matrix(scores, torch.tensor([0, 1, 1])).tolist()
    [[1, 0], [1, 1]]
    """
    num_classes = outputs.shape[1]
    counted = (labels >= 0) & (labels < num_classes)
    pairs = labels[counted] * num_classes + outputs.argmax(dim=1)[counted]
    counts = torch.bincount(pairs, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


class Workload:
    """A training job: a model, its data, and how to train it.

    Only :meth:`build_model` and :meth:`training_data` must be written; the other
    methods have the defaults of a classifier. The constructor's keyword arguments are
    the parameters an experiment may set.

    Attributes
    ----------
    default_learning_rate
        Used where the experiment sets none.
    default_metric
        What ``final_metric`` reports for a trial without a target.
    class_names
        Names of the classes that a classifier tells apart, in the order of their
        numbers; empty: the numbers name them.
    dataset_name
        Name of the training data in the observations.
    schedule
        Shape of the learning rate over training; say here what
        :meth:`learning_rate_factor` does.
    is_sharded
        Every rank draws samples from a part of the data of its own.
    num_random
        Random numbers per sample that :meth:`augment` gets; 0: it is not called.
    engine
        Path, ``module:attribute``, of an engine of its own; None: the strategy's.
    tokens_per_sample
        Tokens of a sample, from which throughput in tokens follows; None: samples are
        no sequences.
    flops_per_sample
        Floating-point operations of the model per training sample, forward and
        backward, from which model FLOPs utilisation follows; None: not known.

    Examples
    --------
    In ``lines.py`` next to the experiment, which says ``workload: lines:Lines``:

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> class Lines(Workload):
    ...     dataset_name = "lines"
    ...
    ...     def __init__(self, width: int = 8) -> None:
    ...         self.width = width
    ...
    ...     def build_model(self):
    ...         return torch.nn.Linear(self.width, 2)
    ...
    ...     def training_data(self):
    ...         points = torch.randn(512, self.width)
    ...         return TensorDataset(points, (points.sum(dim=1) > 0).long())
    >>> workload = Lines(width=4)
    >>> points, labels = workload.training_data()[:16]
    >>> workload.loss(workload.build_model(), (points, labels)).shape
    torch.Size([])
    """

    default_learning_rate: ClassVar[float] = 0.01
    default_metric: ClassVar[str] = "val_acc"
    class_names: Sequence[str] = ()
    dataset_name: str = "custom"
    is_sharded: bool = False
    num_random: int = 0
    schedule: str = "constant"
    emulated: ClassVar[bool] = False
    engine: ClassVar[str | None] = None
    tokens_per_sample: int | None = None
    flops_per_sample: float | None = None

    def build_model(self) -> nn.Module:
        """Return a new model on the CPU; torch is seeded alike on every rank."""
        raise NotImplementedError(f"{type(self).__name__} has no build_model().")

    def training_data(self) -> Dataset[Any]:
        """Return the training data, map-style.

        A ``TensorDataset`` is kept on the device and is by far the fastest feed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no training_data().")

    def held_out_data(self) -> Dataset[Any] | None:
        """Return the data metrics are measured on; None: throughput only."""
        return None

    def blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        """Return the parts of the model that ``fsdp`` gathers one at a time.

        Each runs as a whole in the forward pass. The default is the items of the model
        if it is a ``Sequential``, else those of its children that are a ``Sequential``
        or a ``ModuleList``.
        """
        lists = (nn.Sequential, nn.ModuleList)
        if isinstance(model, lists):
            return list(model)
        return [
            block
            for child in model.children()
            if isinstance(child, lists)
            for block in child
        ]

    def stages(self, model: nn.Module, num_stages: int) -> Sequence[nn.Module]:
        """Return the parts of the model that the ranks of a ``pipeline`` compute.

        Each computes one tensor from that of the one before, with the samples in its
        first dimension; the first is called with what :meth:`loss` calls the model
        with. A parameter that several of them hold stays one: its gradients are added
        up. The default divides a ``Sequential`` such that the largest number of
        parameters of a stage is as small as can be.

        Parameters
        ----------
        model
            A new one.
        num_stages
            Parts to return, at least 2, each with parameters to train.

        Raises
        ------
        SpecError
            If the model cannot be divided so.
        """
        if not isinstance(model, nn.Sequential):
            raise SpecError(
                f"parallelism=pipeline: {type(model).__name__}, the model of "
                f"{type(self).__name__}, is no nn.Sequential, so that its stages are "
                "not known. Return them from stages(model, num_stages), or train with "
                "ddp or fsdp.",
                code="stages_unknown",
            )
        return split(model, num_stages)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean loss over a batch; cross entropy of ``(inputs, labels)``."""
        inputs, labels = batch
        return F.cross_entropy(model(inputs), labels)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        """Return each metric *summed* over the samples of a batch.

        The sums of all batches and ranks are divided by the number of samples. What is
        under ``confusion_matrix``, see :func:`confusion_matrix`, is summed and no
        metric: figures of each class are made of it. The default gives ``val_loss`` and
        ``val_acc`` of a classifier, and its confusion matrix.
        """
        inputs, labels = batch
        outputs = model(inputs)
        sums = {
            "val_loss": F.cross_entropy(outputs, labels, reduction="sum"),
            "val_acc": (outputs.argmax(dim=1) == labels).sum(),
        }
        if outputs.dim() > 2:  # a class for each pixel or token: there are no samples
            return sums
        return {**sums, CONFUSION_MATRIX: confusion_matrix(outputs, labels)}

    def build_optimizer(
        self, model: nn.Module, learning_rate: float
    ) -> torch.optim.Optimizer:
        """Return the optimiser; SGD with momentum 0.9.

        Parameters
        ----------
        model
            On the rank's device.
        learning_rate
            After the scaling rule; warm-up and schedule are applied at every step.
        """
        return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)

    def learning_rate_factor(self, fraction: float) -> float:
        """Return the factor on the learning rate; 1 by default.

        Parameters
        ----------
        fraction
            Part of the planned steps that are done, in [0, 1).
        """
        return 1.0

    def augment(
        self, batch: tuple[torch.Tensor, ...], uniform: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return a training batch of a ``TensorDataset`` changed at random.

        Parameters
        ----------
        batch
            Tensors of the batch, on the device.
        uniform : Tensor, shape (samples, num_random)
            Numbers in [0, 1). Use no other source of randomness: these are the same for
            a sample whichever rank it is on.
        """
        return batch
