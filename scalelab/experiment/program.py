"""The program that a trial runs: a workload class, or any command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scalelab.inputs.document import Scalar
from scalelab.kinds.trainers import trainer_of

if TYPE_CHECKING:
    from scalelab.kinds.launchers import Launcher

# The probe, which is no part of this program: processes of commands import it.
INSIDE = Path(__file__).parents[1] / "inside"
# Path template of the file that $SCALELAB_METRICS names inside a trial.
METRICS_FILE = "{trial_dir}/metrics.jsonl"

# Values that a program may report. Counted in each epoch anew, and how many an epoch
# has: the forward passes of one rank, optimiser steps, the samples of all ranks.
BATCH_OF_EPOCH, BATCHES_OF_EPOCH = "batch_of_epoch", "batches_of_epoch"
STEP_OF_EPOCH, STEPS_OF_EPOCH = "step_of_epoch", "steps_of_epoch"
SAMPLES_OF_EPOCH, SAMPLES_IN_EPOCH = "samples_of_epoch", "samples_in_epoch"
# Of an epoch: the samples of one rank, and the share of it that is done.
SAMPLES_OF_RANK, PERCENT_OF_EPOCH = "samples_of_rank", "percent_of_epoch"
# What tells two epochs apart that report at the same count; steps of the training.
EPOCH, STEPS_IN_ALL = "epoch", "steps_in_all"


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsSource:
    """Where a command reports its steps: in one kind of file, or in its output."""

    jsonl: str | None = None  # a path template, as are csv and tensorboard
    regex: tuple[str, ...] = ()  # matched against each line that rank 0 prints
    evaluation: tuple[str, ...] = ()
    csv: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    tensorboard: str | None = None

    @property
    def path(self) -> str | None:
        """Path template of what is read; None: the output is."""
        return self.jsonl or self.csv or self.tensorboard


# A signal that asks a command to save what it has.
StopSignalName = Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRequest:
    """How processes are asked to save what they have before they are ended."""

    signal: str
    grace_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadProgram:
    """A workload class, built in or the user's own, run in forked ranks."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    code_directory: str | None = None  # first on sys.path of the ranks; None: built in


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandProgram:
    """Any command line, started as it is, in the environment its launcher sets.

    Name, stop and what the job says of its data change nothing of what runs.
    """

    command: str
    launcher: str  # name of its row in LAUNCHERS
    env: Mapping[str, str]
    metrics: MetricsSource
    code_directory: str  # snapshot of the user's code, its working directory
    name: str = ""  # what records call it: the experiment's name
    inherited: Mapping[str, str] = field(default_factory=dict)
    stop: StopRequest | None = None  # how it is asked to save what it has
    launcher_options: Mapping[str, Scalar] = field(default_factory=dict)
    # What the job says of its data, to hold against what the command prints.
    tokens_per_sample: int | None = None
    # Its steps are read from what it reports alone, not seen where its optimizer steps.
    without_probe: bool = False

    def launcher_row(self) -> Launcher:
        """Return the row of the launcher."""
        # The models of launchers' options need pydantic, which analysis does without.
        from scalelab.kinds.launchers import LAUNCHERS

        return LAUNCHERS[self.launcher].with_options(self.launcher_options)


Program = WorkloadProgram | CommandProgram


def saving_s(program: Program) -> float:
    """Return the seconds that a command has asked for to save what it has."""
    stop = program.stop if isinstance(program, CommandProgram) else None
    return stop.grace_s if stop else 0.0


def framework_of(program: Program) -> str:
    """Return the package that a node imports to start the processes of a program.

    It does so once for all of them: to fork the ranks of a workload, or to serve the
    store where those of a command meet. Empty: it imports none.
    """
    if isinstance(program, WorkloadProgram):
        return trainer_of(program.name)[0].framework
    return "torch" if program.launcher_row().serves_store else ""


def program_to_json(program: Program) -> dict[str, Any]:
    """Return plain JSON values; :func:`program_from_json` reads them back."""
    if isinstance(program, WorkloadProgram):
        return {"kind": "workload", **asdict(program)}
    values = {"kind": "command", **asdict(program)}
    # What is not used is left out, as hashes of older programs have it.
    always = ("kind", "command", "launcher", "env", "metrics", "code_directory", "name")
    values["metrics"] = {
        name: value
        for name, value in values["metrics"].items()
        if value or name in ("jsonl", "regex")
    }
    return {key: value for key, value in values.items() if value or key in always}


def program_from_json(values: Mapping[str, Any]) -> Program:
    """Rebuild a program from :func:`program_to_json`."""
    fields = dict(values)
    fields.pop("samples_per_epoch", None)  # which older specifications hold
    if fields.pop("kind") == "workload":
        return WorkloadProgram(**fields)
    metrics = dict(fields["metrics"])
    metrics |= {name: tuple(metrics.get(name, ())) for name in ("regex", "evaluation")}
    fields["metrics"] = MetricsSource(**metrics)
    fields["stop"] = StopRequest(**fields["stop"]) if "stop" in fields else None
    return CommandProgram(**fields)
