"""An attempt, one launch of a trial: specification, placement, result and files.

Files are read and written atomically: no reader sees half of one.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from scalelab.errors import DiskFullError, StoreError
from scalelab.experiment.program import Program, program_from_json, program_to_json
from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import make_folder, parse_json, plain_folder, read_file
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


T = TypeVar("T")


class TornRecordError(StoreError):
    """A file of an attempt exists but cannot be parsed."""


_FULL = "Free space (or raise the quota) and run the same command again: it resumes."
_FORBIDDEN = "Give yourself write permission there or choose another directory."
# What an operating system calls a disk, a quota or a limit that leaves no space.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMEDIES = {
    **dict.fromkeys(NO_SPACE, _FULL),
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.ENOTEMPTY: "Another process works there. One driver writes a run at a time. "
    "Rerun once that has ended.",
}


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal to write ``path`` into a `StoreError`."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        remedy = _REMEDIES.get(code, "Check the file system and the path, then rerun.")
        kind = DiskFullError if code in NO_SPACE else StoreError
        raise kind(
            f"{path} cannot be written: {error.strerror or error}. {remedy}"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a refusal to read ``path`` into a `StoreError`; absence passes through."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read: {error.strerror or error}. Give yourself read "
            "permission or check the file system."
        ) from error


def names_in(directory: Path, run: Path, *, skips_links: bool = False) -> list[str]:
    """Return the names in a folder of a run; a file has no names.

    Raises
    ------
    StoreError
        The folder cannot be read, or is a link that is not to be skipped.
    """
    with suppress(FileNotFoundError), reading(directory):
        try:
            with plain_folder(directory, below=run) as folder:
                return os.listdir(folder)
        except OSError as error:
            is_link = directory.is_symlink() and not skips_links
            if is_link or error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
    return []


def existing_place(path: Path) -> Path:
    """Return an absolute path, or its nearest parent that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


def is_taken(directory: Path) -> bool:
    """Tell whether the directory of a run exists and is not empty."""
    try:
        place = existing_place(directory)
        if place != directory:
            if not place.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            return False
        return not directory.is_dir() or any(directory.iterdir())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(
            f"{directory} cannot hold a run: {reason}. Choose another directory with "
            "--run."
        ) from error


def encode_json(values: Any) -> bytes:
    """Encode plain values as one line of JSON; NaN and infinities become null.

    Examples
    --------
    >>> encode_json({"loss": float("nan"), "step": 3})
    b'{"loss":null,"step":3}'
    """
    try:
        return json.dumps(values, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return encode_json(_without_non_finite(values))
    except TypeError as error:
        raise StoreError(
            f"A value cannot be recorded: {error}. Records hold text, numbers, flags, "
            "lists and mappings; convert it first, e.g. with .item() or .tolist()."
        ) from error


def _without_non_finite(values: Any) -> Any:
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {name: _without_non_finite(value) for name, value in values.items()}
    if isinstance(values, Sequence) and not isinstance(values, str):
        return [_without_non_finite(value) for value in values]
    return values


def decode_json(content: bytes, *, is_compared: bool = False) -> Any:
    """Decode JSON of a record, refusing NaN and Infinity; see :func:`parse_json`."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return parse_json(content, refuse, is_compared=is_compared)


def write_atomically(
    path: Path,
    content: bytes,
    *,
    below: Path | None = None,
    durable: bool = True,
    permissions: int = 0o644,
) -> None:
    """Write a whole file or none: a hidden sibling first, then a rename.

    ``below`` is the directory of the run, as in :func:`opened`.

    If ``durable``, the bytes are on the disk before the rename, so that after a power
    cut the file is old or new, never empty. The directory is not flushed as well: that
    would be a second journal commit, and all it saves is the newest name.
    """
    sibling = f".{path.name}.{uuid.uuid4().hex}"
    below = below or path.parent
    with storing(path), plain_folder(path.parent, below=below) as folder:
        try:
            write_new(
                sibling,
                content,
                folder=folder,
                durable=durable,
                permissions=permissions,
            )
            os.replace(sibling, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(sibling, dir_fd=folder)
            raise


def write_new(
    path: str | Path,
    content: bytes,
    *,
    folder: int | None = None,
    durable: bool = False,
    permissions: int = 0o644,
) -> None:
    """Write a file that must not exist yet; ``OSError`` passes through.

    ``folder`` is the descriptor of the folder that ``path`` is relative to.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = os.open(path, flags, permissions, dir_fd=folder)
    try:
        write_all(descriptor, content)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte; a full disk may take a few of them before it refuses."""
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, content[written:])


def append_all(descriptor: int, content: bytes) -> None:
    """Append all bytes or none to a file open for appending.

    For one writer. ``OSError`` passes through.
    """
    size = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        write_all(descriptor, content)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)  # a full disk took a part
        raise


def write_spec(files: AttemptFiles, content: bytes) -> None:
    """Make an attempt's directory and write its specification, without flushing."""
    directory = files.directory
    with storing(directory):
        try:
            make_folder(directory.parent, below=files.run)
            directory.mkdir()
        except FileExistsError:
            raise StoreError(
                f"{directory} exists: this attempt was begun before. Take the number "
                "from next_attempt_number."
            ) from None
        try:
            write_new(files.spec, content)
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def write_result(
    files: AttemptFiles, result: AttemptResult, *, replace: bool = False
) -> None:
    """Record how an attempt ended, on disk before the function returns.

    The first result of an attempt stands: a node that comes back late, or a task that
    runs twice, changes nothing.
    """
    with storing(files.result):
        content, present = encode_json(result.to_json()), None
        with suppress(FileNotFoundError):
            present = read_file(files.result, below=files.run)
        if present is None or (replace and present != content):
            write_atomically(files.result, content, below=files.run)


def read_result(files: AttemptFiles) -> AttemptResult | None:
    """Read the result of an attempt; None while there is none."""
    return _read(files, files.result, AttemptResult.from_json)


def read_spec(files: AttemptFiles) -> AttemptSpec | None:
    """Read the specification of an attempt; None where it was never written."""
    return _read(files, files.spec, AttemptSpec.from_json, is_compared=True)


def _read(
    files: AttemptFiles,
    path: Path,
    made_of: Callable[[Any], T],
    *,
    is_compared: bool = False,
) -> T | None:
    try:
        with reading(path):
            content = read_file(path, below=files.run)
            return made_of(decode_json(content, is_compared=is_compared))
    except FileNotFoundError:
        return None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TornRecordError(
            f"{path} is torn or was changed: {error!r}. Continuing the sweep sets it "
            "aside and runs the trial again."
        ) from error
