"""An attempt, one launch of a trial: specification, placement, result and files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from scalelab.experiment.program import Program, program_from_json, program_to_json
from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.trainers import facts_of


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeShare:
    """The devices of one node that an attempt holds."""

    node: str
    device_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where an attempt runs: one share per node, rank 0's node first."""

    shares: tuple[NodeShare, ...]

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return sum(len(share.device_ids) for share in self.shares)

    def first_rank(self, node_rank: int) -> int:
        """Return the global rank of local rank 0 on the node of this index."""
        return sum(len(share.device_ids) for share in self.shares[:node_rank])


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownWorkload:
    """What the row of an attempt needs to know of its workload; see ``WorkloadFacts``.

    An attempt holds it, so that it can be read where its trainer is not installed.
    """

    declares_times: bool = False
    has_batch_norm: bool | None = None
    tokens_axis: str | None = None
    counts_flops: bool | None = None

    @classmethod
    def named(cls, workload: str) -> KnownWorkload:
        """Return what the trainer of a workload knows of it."""
        facts = facts_of(workload)
        if facts is None:
            return cls()
        return cls(**{field.name: getattr(facts, field.name) for field in fields(cls)})


# The workloads of attempts that do not say it themselves; none is added here.
_UNTOLD: Mapping[str, KnownWorkload] = {
    "digits_mlp": KnownWorkload(has_batch_norm=False, counts_flops=False),
    "resnet_cifar": KnownWorkload(has_batch_norm=True, counts_flops=False),
    "transformer_lm": KnownWorkload(
        has_batch_norm=False, tokens_axis="sequence_length", counts_flops=True
    ),
    "image_folder": KnownWorkload(has_batch_norm=True, counts_flops=False),
    "synthetic_images": KnownWorkload(has_batch_norm=True, counts_flops=False),
    "emulated": KnownWorkload(
        declares_times=True, has_batch_norm=False, counts_flops=False
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptSpec:
    """Everything a node needs to run its part of an attempt."""

    run: str
    trial: Trial
    program: Program
    number: int  # from 1; the launches of the trial
    directory: str
    placement: Placement
    device_type: str
    threads_per_rank: int = 1
    stall_factor: float = 20.0  # median steps without progress after which it stalls
    validity: tuple[str, ...] = ()
    # Seconds after which ranks end early, with a checkpoint, because the walltime of a
    # node is up soon after, counted by the driver; and that moment on the monotonic
    # clock of its node, set there. None: not known.
    stop_after_s: float | None = None
    deadline_s: float | None = None
    # How long the batch system kept the nodes waiting, and whether nobody else can use
    # them; None: not known.
    queue_wait_s: float | None = None
    exclusive_node: bool | None = None
    known: KnownWorkload = KnownWorkload()

    @property
    def attempt_id(self) -> str:
        """Unique name of the attempt within its run; also its Dask task key."""
        return f"{self.trial.trial_id}-{self.number}"

    @property
    def files(self) -> AttemptFiles:
        """The attempt's files."""
        return AttemptFiles(Path(self.directory))

    def arrived(self) -> AttemptSpec:
        """Return the attempt as its node starts it: what start-up takes counts."""
        if self.stop_after_s is None:
            return self
        return replace(self, deadline_s=time.monotonic() + self.stop_after_s)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` reads them back."""
        return {**asdict(self), "program": program_to_json(self.program)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> AttemptSpec:
        """Rebuild a specification from :meth:`to_json`."""
        given = dict(values)
        given.pop("stall_floor_s", None)  # of older runs; the measurement says it, too
        trial = given["trial"] = Trial.from_json(given["trial"])
        untold = _UNTOLD.get(trial.workload, KnownWorkload())
        given |= {
            "program": program_from_json(given["program"]),
            "placement": Placement(
                shares=tuple(
                    NodeShare(node=share["node"], device_ids=tuple(share["device_ids"]))
                    for share in given["placement"]["shares"]
                )
            ),
            "validity": tuple(given["validity"]),
            "known": KnownWorkload(**given["known"]) if "known" in given else untold,
        }
        return cls(**given)


class SpecText(str):
    """An :class:`AttemptSpec` as JSON; logs that show the text show no values."""

    def __repr__(self) -> str:
        return "<specification of an attempt>"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptResult:
    """How an attempt ended and what it measured."""

    outcome: Outcome
    reason: str = ""  # one sentence; empty only for ``completed``
    rank: int | None = None
    traceback: str | None = None
    log: str | None = None
    input_error: str | None = None  # what the user must correct, if that is why
    measurements: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> AttemptResult:
        """Rebuild a result from :meth:`to_json`."""
        return cls(**{**values, "outcome": Outcome(values["outcome"])})


class AttemptFiles:
    """The names of an attempt's files, in one place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # An AttemptSpec as JSON, written by the driver before the launch.
        self.spec = directory / "attempt.json"
        # JSON lines that rank 0 appends: steps and evaluations as they happen.
        self.stream = directory / "stream.jsonl"
        # The last evaluation, with figures of each class; replaced whole by rank 0.
        self.evaluation = directory / "evaluation.json"
        # An AttemptResult as JSON, of the first node's supervisor.
        self.result = directory / "result.json"
        # Asks the ranks to end early, as the source wants; holds the reason.
        self.prune = directory / "prune"
        self.checkpoint = directory / "checkpoint"
        # What the first node sees while no step of a command comes, in a sentence.
        self.notice = directory / "notice.txt"
        # Streams of the probe, by node: of each process of a command whose optimizer
        # steps.
        self.probe = directory / "probe"

    @property
    def run(self) -> Path:
        """The directory of the run; outside of a run, the folder above the attempt."""
        trials = self.directory.parent.parent
        return trials.parent if trials.name == "trials" else self.directory.parent

    def log(self, rank: int) -> Path:
        """Return the file of a rank's standard output and error."""
        return self.directory / f"rank-{rank}.log"
