"""What is measured: families of trials, how long each runs, and where it reports."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic.json_schema import JsonSchemaValue

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.experiment.presets import PRESETS, expanded
from scalelab.experiment.program import (
    BATCH_OF_EPOCH,
    METRICS_FILE,
    SAMPLES_OF_EPOCH,
    SAMPLES_OF_RANK,
    STEP_OF_EPOCH,
    MetricsSource,
)
from scalelab.experiment.trial import FIRST_CANARY, Measurement, TrialKind
from scalelab.inputs.fields import (
    Count,
    CountOrZero,
    DeviceCount,
    Duration,
    Flag,
    Fraction,
    LongTrial,
    OneOrMany,
    Positive,
    Section,
    Text,
)
from scalelab.inputs.problems import shown

# A long trial of ``auto`` takes at least and at most so long.
_SHORTEST_S, _LONGEST_S = 20.0, 120.0

Repeats = Annotated[int, Field(strict=True, ge=1, le=FIRST_CANARY)]


class Measure(Section):
    """The families of trials that are run, and when a trial is complete."""

    kind: OneOrMany[TrialKind] = Field(
        default=(TrialKind.THROUGHPUT,),
        description="throughput (default), convergence, end_to_end, or a list.",
    )
    warmup_steps: CountOrZero = Field(
        default=5, description="Optimiser steps left out of every statistic."
    )
    steps: Count = Field(
        default=50, description="Measured steps of a throughput trial, at most."
    )
    repeats: Repeats = Field(
        default=3, description="Runs of each throughput trial, interleaved."
    )
    canary_every: CountOrZero = Field(
        default=20,
        description=(
            "Trials after which the cheapest throughput trial is run once more, to see "
            "drift and slow nodes; also first and last. 20 costs a twentieth more "
            "trials, of the cheapest kind; a sweep of fewer trials has none. 0: none."
        ),
    )
    relative_precision: Fraction = Field(
        default=0.02,
        description="A throughput trial ends early at this relative half-width.",
    )
    long_trial: LongTrial = Field(
        default="auto",
        validate_default=True,
        description=(
            "Time of steps of one more trial of each program, last of all, which shows "
            "whether later steps take another time: a duration, none, or auto. auto is "
            "1% of the job's shortest time, at most 2min and a tenth of the step time "
            "that other trials measured, at least 20s. Adaptive sweeps have no such "
            "trial."
        ),
    )
    evaluate_every_samples: Count | None = Field(
        default=None,
        description="Training samples between evaluations; default: an epoch.",
    )
    max_samples: Count | None = Field(
        default=None, description="Samples after which a convergence trial gives up."
    )
    max_epochs: Positive | None = Field(
        default=None, description="The same in epochs of job.samples_per_epoch."
    )
    convergence_gpus: DeviceCount | None = Field(
        default=None,
        description=(
            "Devices a convergence trial runs on, at most; default: the fewest listed. "
            "Gradient accumulation makes up for the rest."
        ),
    )
    batch_norm: Flag | None = Field(
        default=None,
        description=(
            "false: the model has no batch normalisation, so convergence depends on "
            "the global batch alone; default: known for built-in workloads, else true."
        ),
    )
    timeout: Duration | None = Field(
        default=None, description="Time after which an attempt is ended, such as 30min."
    )
    stall_timeout: Duration | None = Field(
        default=None,
        description=(
            "Silence after which an attempt counts as stalled, unless its steps take "
            "longer; default: 30s, for commands 1min, or 5min where they evaluate."
        ),
    )
    start_up_timeout: Duration | None = Field(
        default=None,
        description=(
            "Silence before the first step after which an attempt counts as stalled; "
            "default: 10min, or measure.stall_timeout if longer."
        ),
    )

    def check(self, job: Job | None, *, needs_target: bool = True) -> None:
        """Refuse families of trials that would never end, given the job."""
        if self.max_samples and self.max_epochs:
            raise SpecError(
                "measure: max_samples and max_epochs both cap a trial. Keep one.",
                code="two_caps",
            )

        if self.max_epochs and not (job and job.samples_per_epoch):
            raise SpecError(
                "measure.max_epochs needs job.samples_per_epoch. Add it.",
                code="epochs_without_samples",
            )

        for kind in self.kind:
            if kind is TrialKind.THROUGHPUT:
                continue
            found = self.measurement(kind, job, global_batch_size=1)
            is_aimless = kind is TrialKind.CONVERGENCE and found.target is None
            if is_aimless and needs_target:
                raise SpecError(
                    "measure.kind=convergence needs a metric to reach. Add, for "
                    "example, job.target: 'val_acc >= 0.75'.",
                    code="no_metric_to_reach",
                )

            if found.max_samples is None:
                raise SpecError(
                    f"measure.kind={kind} needs an end. Add measure.max_samples, or an "
                    "amount such as samples to the job.",
                    code="no_end",
                )

            if found.target and found.evaluate_every_samples is None:
                raise SpecError(
                    f"measure.kind={kind} needs evaluations to see the target reached. "
                    "Add measure.evaluate_every_samples or job.samples_per_epoch.",
                    code="no_evaluations",
                )

    def long_trial_s(self, *, measured_s: float, job_s: float) -> float:
        """Return the seconds of steps that a long trial takes.

        Half of ``timeout`` is left to the start-up, and to step times that settle late.

        Parameters
        ----------
        measured_s
            Seconds of steps that the other trials of the sweep measured.
        job_s
            The shortest time of the job as these trials show it; infinite: not known.

        """
        of_others_s = min(_LONGEST_S, 0.1 * measured_s)
        asked_s = min(job_s, max(_SHORTEST_S, min(of_others_s, 0.01 * job_s)))
        if math.isfinite(self.long_trial):
            asked_s = self.long_trial
        return min(asked_s, (self.timeout or math.inf) / 2)

    def measurement(
        self, kind: TrialKind, job: Job | None, *, global_batch_size: int
    ) -> Measurement:
        """Return how long a trial of this family runs."""
        shared = Measurement(
            warmup_steps=self.warmup_steps,
            steps=self.steps,
            relative_precision=self.relative_precision,
            timeout_s=self.timeout,
            stall_timeout_s=self.stall_timeout,
            start_up_timeout_s=self.start_up_timeout,
        )
        if kind is TrialKind.THROUGHPUT or job is None:
            return shared

        cap = self.max_samples
        if self.max_epochs and job.samples_per_epoch:
            cap = math.ceil(self.max_epochs * job.samples_per_epoch)

        return replace(
            shared,
            target=job.target,
            max_samples=cap or job.num_samples(global_batch_size),
            evaluate_every_samples=self.evaluate_every_samples or job.samples_per_epoch,
        )


def _compiling(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise SpecError(
                f"{shown(pattern)} is no regular expression: {error}.",
                code="bad_expression",
            ) from error
    return patterns


Expressions = Annotated[OneOrMany[Text], AfterValidator(_compiling)]


class Metrics(Section):
    """Where a command reports its steps: in a file, or in its output."""

    shorthand: ClassVar[JsonSchemaValue | None] = {"enum": list(PRESETS)}

    preset: Text | None = Field(
        default=None,
        # What it stands for is under regex and evaluation, where fingerprints have it.
        exclude=True,
        json_schema_extra={"enum": [*PRESETS, None]},
        description=(
            "Framework whose output is known: "
            f"{', '.join(PRESETS)}. Or metrics: NAME alone."
        ),
    )
    jsonl: Text | None = Field(
        default=None, description="JSON-lines file, such as $SCALELAB_METRICS."
    )
    regex: Expressions | None = Field(
        default=None, description="Regular expressions with named groups."
    )
    csv: Text | None = Field(
        default=None,
        description="CSV file with a header, such as '{trial_dir}/metrics.csv'.",
    )
    columns: dict[Text, Text] = Field(
        default={},
        description=(
            "Columns of the CSV file with other names than usual, such as "
            "{step: updates}: of step, samples, t or a metric."
        ),
    )
    tensorboard: Text | None = Field(
        default=None,
        description="Folder of TensorBoard event files, such as '{trial_dir}'.",
    )
    evaluation: Expressions | None = Field(
        default=None,
        description=(
            "Regular expressions of lines that an evaluation writes: its time is set "
            "apart from that of the steps around it."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, value: Any) -> Any:
        values = {"preset": value} if isinstance(value, str) else value
        if isinstance(values, Mapping) and values.get("preset") is not None:
            return expanded(values)
        return values

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        places = (self.jsonl, self.regex, self.csv, self.tensorboard)
        if sum(place is not None for place in places) != 1:
            raise SpecError(
                "must have exactly one of jsonl, regex, csv and tensorboard.",
                code="not_one_place",
            )

        if self.jsonl is not None and self.jsonl.endswith(".csv"):
            raise SpecError(
                f"jsonl={shown(self.jsonl)} names a CSV file. Write csv in place of "
                "jsonl.",
                code="csv_as_jsonl",
            )

        if self.columns and self.csv is None:
            raise SpecError(
                "columns names columns of metrics.csv. Add that file.",
                code="columns_without_file",
            )

        return self

    def check_counts(self, *, is_probed: bool) -> None:
        """Refuse expressions that count no steps where nothing else shows them."""
        of_epoch = {BATCH_OF_EPOCH, STEP_OF_EPOCH, SAMPLES_OF_EPOCH, SAMPLES_OF_RANK}
        counts = {"step", "samples", *of_epoch}

        wanted = self.groups if is_probed else self.groups & counts
        if self.regex and not wanted:
            raise SpecError(
                f"metrics.regex={', '.join(self.regex)} has no group named step. Add "
                r"one, such as step (?P<step>\d+): intervals are measured between "
                "steps. Where "
                f"batches are counted in each epoch anew, name it {BATCH_OF_EPOCH}, "
                f"where optimiser steps are, {STEP_OF_EPOCH}, where samples are, "
                f"{SAMPLES_OF_EPOCH}.",
                code="no_group_of_step",
            )

    @property
    def groups(self) -> set[str]:
        """Names of the groups of the expressions under regex."""
        return {
            name
            for pattern in self.regex or ()
            for name in re.compile(pattern).groupindex
        }

    def source(self) -> MetricsSource:
        """Return what the launch side reads."""
        variable = r"\$(SCALELAB_METRICS|\{SCALELAB_METRICS\})"
        jsonl = re.sub(variable, METRICS_FILE, self.jsonl or METRICS_FILE)
        return MetricsSource(
            jsonl=None if self.regex or self.csv or self.tensorboard else jsonl,
            regex=self.regex or (),
            evaluation=self.evaluation or (),
            csv=self.csv,
            columns=self.columns,
            tensorboard=self.tensorboard,
        )


# What holds without the key: the command writes the file that $SCALELAB_METRICS names.
DEFAULT_METRICS = Metrics.model_construct()
