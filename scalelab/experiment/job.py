"""The training job that the recommendation is for: its length or its target."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from scalelab.errors import SpecError
from scalelab.inputs.fields import Count, Positive, Section, TargetText
from scalelab.inputs.problems import key

_AMOUNTS = ("epochs", "steps", "samples", "tokens")


class Job(Section):
    """An amount of training, a target to reach, or both: then the amount is a cap."""

    epochs: Positive | None = Field(
        default=None,
        description="Passes over the data. An epoch has samples_per_epoch; without it, "
        "the samples of a pass over the data loader, as trials of a command show them.",
    )
    samples_per_epoch: Count | None = Field(
        default=None, description="Samples in one pass over the training data."
    )
    steps: Count | None = Field(default=None, description="Optimiser steps.")
    samples: Count | None = Field(default=None, description="Training samples.")
    tokens: Count | None = Field(
        default=None, description="Training tokens; needs sequence_length."
    )
    sequence_length: Count | None = Field(
        default=None, description="Tokens per sample."
    )
    flops_per_sample: Positive | None = Field(
        default=None,
        description="Floating-point operations of a training step per sample, forward "
        "and backward; needs device_peak_flops. transformer_lm tells its own.",
    )
    device_peak_flops: Positive | None = Field(
        default=None,
        description="Peak floating-point operations per second of one device, at the "
        "precision that is trained with; needs flops_per_sample, of the job or the "
        "workload.",
    )
    global_batch_size: Count | None = Field(
        default=None,
        description="Samples per optimiser step; without it, any measured batch.",
    )
    target: TargetText | None = Field(
        default=None, description="Metric to reach, such as 'val_loss <= 2.9'."
    )

    @model_validator(mode="after")
    def _says_how_much(self) -> Self:
        given = [name for name in _AMOUNTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise SpecError(
                f"{' and '.join(map(key, given))} both say how long the job is.",
                "Keep one.",
                code="job_said_twice",
            )

        if not given and self.target is None:
            raise SpecError(
                "does not say how long the job is. Add one of epochs, steps, samples "
                "and tokens, or a target such as 'val_loss <= 2.9'.",
                code="no_length",
            )

        if self.tokens and not self.sequence_length:
            raise SpecError(
                "tokens needs sequence_length, tokens per sample. Add it.",
                code="no_sequence_length",
            )

        if self.flops_per_sample and self.device_peak_flops is None:
            raise SpecError(
                "flops_per_sample and device_peak_flops together say how much of a "
                "device is used. Give both, or neither.",
                code="operations_without_peak",
            )

        return self

    @property
    def lacks_epoch(self) -> bool:
        """Whether the job counts epochs of an unknown length."""
        return self.epochs is not None and self.samples_per_epoch is None

    def with_epoch_of(self, rows: Iterable[Mapping[str, Any]]) -> Self:
        """Return the job with the samples of an epoch that rows of trials show.

        An epoch is a pass over the data loader on the fewest ranks. Samples that pad
        the last batch do not count. Rows whose ranks each walk a data set of their own,
        or a data set of unknown length, do not count.
        """
        passes = [
            (row["world_size"], -min(samples, length))
            for row in rows
            if (samples := row.get("samples_of_pass"))
            and (length := row.get("samples_of_dataset"))
            and samples < 2 * length
        ]
        if not (self.lacks_epoch and passes):
            return self
        _, samples = min(passes)  # the longest pass on the fewest ranks
        return self.model_copy(update={"samples_per_epoch": round(-samples)})

    def num_samples(self, samples_per_step: float) -> int | None:
        """Return the job's length, or its cap where it has a target; None: unknown."""
        if self.epochs and self.samples_per_epoch:
            return math.ceil(self.epochs * self.samples_per_epoch)
        if self.tokens and self.sequence_length:
            return math.ceil(self.tokens / self.sequence_length)
        return math.ceil(self.steps * samples_per_step) if self.steps else self.samples

    def __str__(self) -> str:
        amounts = [
            f"{value:,.10g} {name}"
            for name in _AMOUNTS
            if (value := getattr(self, name)) is not None
        ]
        until = [f"until {self.target}"] if self.target else []
        return " within ".join([*until, *amounts])
