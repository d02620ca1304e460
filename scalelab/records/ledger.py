"""The ledger of a run, which attempts began and how they ended, and its recovery.

Only the driver writes it, one line at a time. It is an index: the attempt directories
hold the facts, and a ledger that is lost or damaged is rebuilt from them.
"""

import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalelab.errors import StoreError
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import (
    harmless,
    open_to_append,
    parse_json,
    read_file,
)
from scalelab.inputs.target import Condition, hold
from scalelab.plan.source import Observation
from scalelab.records.attempt import (
    AttemptFiles,
    AttemptResult,
    AttemptSpec,
    TornRecordError,
    append_all,
    decode_json,
    encode_json,
    names_in,
    read_result,
    read_spec,
    reading,
    storing,
    write_atomically,
    write_result,
)
from scalelab.records.control.job_list import CLUSTER_DIRECTORY
from scalelab.records.control.lease import LEASE
from scalelab.records.observations import check_row, check_types, row

# The names that write_atomically and snapshot_code give to what is not whole yet.
_HALF = re.compile(r"\.(.+\.)?[0-9a-f]{32}")
_HALF_LIFE_S = 60.0
_ABANDONED = AttemptResult(
    outcome=Outcome.NODE_FAIL,
    reason="The driver of the sweep ended before the attempt did.",
)

# Trial id and attempt number.
AttemptKey = tuple[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerContent:
    """The content of a ledger."""

    begun: Mapping[AttemptKey, str] = field(default_factory=dict)
    ended: Mapping[AttemptKey, Observation] = field(default_factory=dict)
    is_whole: bool = True
    is_torn: bool = False


class Ledger:
    """Appends to and reads ``ledger.jsonl``; the file is opened at the first append."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def append_begin(self, key: AttemptKey) -> None:
        """Note that an attempt begins now."""
        self._append(_begin_line(key, datetime.now(UTC).isoformat()))

    def append_end(self, observation: Observation) -> None:
        """Note how an attempt ended."""
        self._append(_end_line(observation))

    def _append(self, line: bytes) -> None:
        with storing(self.path):
            if self._descriptor is None:
                self._descriptor = open_to_append(self.path)
            append_all(self._descriptor, line)

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def replace(
        self, begun: Mapping[AttemptKey, str], ended: Mapping[AttemptKey, Observation]
    ) -> None:
        """Write the whole ledger anew."""
        self.close()
        lines = [_begin_line(key, at) for key, at in begun.items()]
        lines += [_end_line(observation) for observation in ended.values()]
        write_atomically(self.path, b"".join(lines))

    def read(self) -> LedgerContent:
        """Read the ledger; half a line at its end is left out."""
        try:
            with reading(self.path):
                content = read_file(self.path)
        except FileNotFoundError:
            return LedgerContent(is_whole=False)

        *lines, rest = content.split(b"\n")
        begun: dict[AttemptKey, str] = {}
        ended: dict[AttemptKey, Observation] = {}

        is_whole = True
        for line in lines:
            try:
                event = decode_json(line)
                if event["event"] == "begin":
                    begun[_key(event)] = event["at"]
                else:
                    observation = check_types(check_row(event["row"]))
                    ended[_key(observation)] = observation
            except (KeyError, TypeError, ValueError):
                is_whole = False

        return LedgerContent(
            begun=begun, ended=ended, is_whole=is_whole, is_torn=bool(rest)
        )


def _key(values: Mapping[str, Any]) -> AttemptKey:
    trial_id, number = values["trial_id"], values["attempt"]
    # They name a directory; nothing else may.
    if type(number) is not int or not re.fullmatch(r"\w{1,99}", trial_id, re.ASCII):
        raise ValueError(f"trial_id={trial_id!r}, attempt={number!r}")
    return trial_id, number


def _begin_line(key: AttemptKey, at: str) -> bytes:
    trial_id, number = key
    event = {"event": "begin", "trial_id": trial_id, "attempt": number, "at": at}
    return encode_json(event) + b"\n"


def _end_line(observation: Observation) -> bytes:
    present = {name: value for name, value in observation.items() if value is not None}
    return encode_json({"event": "end", "row": present}) + b"\n"


def attempt_directory(trials: Path, trial_id: str, number: int) -> Path:
    """Return where an attempt's files are."""
    return trials / trial_id / f"{number:03d}"


def attempts_on_disk(trials: Path) -> Iterator[tuple[AttemptKey, AttemptFiles]]:
    """Yield every attempt that has a directory, by trial id and number."""
    run = trials.parent
    for trial_id in names_in(trials, run):
        for number in sorted(names_in(trials / trial_id, run)):
            if number.isdecimal():
                files = AttemptFiles(trials / trial_id / number)
                yield (trial_id, int(number)), files


def last_number(trial_directory: Path) -> int:
    """Return the highest attempt number of a trial; 0 if it was never tried."""
    run = trial_directory.parent.parent
    numbers = [name for name in names_in(trial_directory, run) if name.isdecimal()]
    return max(map(int, numbers), default=0)


def recover(ledger: Ledger, trials: Path) -> list[Observation]:
    """End attempts that a dead driver left open; make ledger and disk agree.

    What it, or a node that died with it, had only half written is deleted.
    """
    run = trials.parent
    with suppress(OSError, StoreError):  # the folder may be somebody else's
        discard_halves(run.parent, run.parent, run.name, may_be_written=True)

    for directory in (run, run / "experiments", run / "code", run / "cache"):
        discard_halves(directory, run)

    discard_halves(run / CLUSTER_DIRECTORY, run, "jobs.json")
    discard_halves(run / CLUSTER_DIRECTORY, run, may_be_written=True)
    content = ledger.read()
    on_disk = dict(attempts_on_disk(trials))
    known = {key: content.ended[key] for key in content.ended if key in on_disk}
    settled = {
        key: observation
        for key, files in on_disk.items()
        if key not in known and (observation := _settled(key, files))
    }

    ended = {**known, **settled}
    if content.is_whole and not content.is_torn and len(known) == len(content.ended):
        for observation in settled.values():
            ledger.append_end(observation)
    else:
        begun = {key: content.begun[key] for key in content.begun if key in on_disk}
        ledger.replace(begun, ended)

    return list(ended.values())


def discard_halves(
    directory: Path, run: Path, mark: str = "", *, may_be_written: bool = False
) -> None:
    """Delete what killed processes left half-written in a folder of a run."""
    for name in names_in(directory, run, skips_links=True):
        if mark and not name.startswith(f".{mark}."):
            continue
        if may_be_written and not _is_old(directory / name):
            continue

        path = directory / name
        # A lease that was moved aside may still be put back.
        if _HALF.fullmatch(name) and (
            not name.startswith(f".{LEASE}.") or _is_old(path)
        ):
            with storing(path):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)


def _is_old(path: Path) -> bool:
    with suppress(FileNotFoundError):
        status = path.lstat()
        # A file that is renamed keeps the time of its last writing.
        return time.time() - max(status.st_mtime, status.st_ctime) > _HALF_LIFE_S
    return False


def ended_rows(ledger: Ledger, trials: Path) -> tuple[list[Observation], bool]:
    """Read the rows of all attempts that have ended, writing nothing."""
    content = ledger.read()
    attempts = content.begun if content.is_whole else dict(attempts_on_disk(trials))
    pending = [key for key in attempts if key not in content.ended]

    rows = [*content.ended.values()]
    for key in pending:
        files = AttemptFiles(attempt_directory(trials, *key))
        with suppress(TornRecordError):
            spec, result = read_spec(files), read_result(files)
            if spec is not None and result is not None:
                rows.append(_row_at(key, spec, result))

    # an imported run has no ledger, and nothing that one would speak of
    return rows, not pending and (content.is_whole or not attempts)


def _settled(key: AttemptKey, files: AttemptFiles) -> Observation | None:
    """End an attempt that no living driver will end, and return its row.

    A result that is there counts. One that is torn is set aside as
    ``result.json.torn``, and a missing one is written: both are ``node_fail``.
    """
    try:
        spec = read_spec(files)
    except TornRecordError:
        return None

    if spec is None:
        return None

    try:
        discard_halves(files.directory, files.run)
        if (result := read_result(files)) is not None:
            return _row_at(key, spec, result)
        result = _ABANDONED
    except TornRecordError as error:
        aside = files.result.with_name(files.result.name + ".torn")
        with storing(aside):
            files.result.rename(aside)
        sentence = f"The result could not be read and was kept as {aside.name}. {error}"
        result = AttemptResult(outcome=Outcome.NODE_FAIL, reason=sentence)

    write_result(files, result)
    return _row_at(key, spec, result)


def _row_at(key: AttemptKey, spec: AttemptSpec, result: AttemptResult) -> Observation:
    try:
        observation = harmless(check_types(row(spec, result)))
    except (StoreError, ValueError) as error:
        raise TornRecordError(str(error)) from error
    # trial id and number as the directory is called
    return {**observation, "trial_id": key[0], "attempt": key[1]}


def judged(
    rows: Iterable[Observation],
    superseded: Collection[AttemptKey],
    conditions: Sequence[Condition],
) -> Iterator[Observation]:
    """Yield the rows with ``accepted``, by the conditions of the latest experiment.

    Superseded attempts are marked ``code_changed``.
    """
    for observation in rows:
        judged_row = dict(observation)
        if (judged_row["trial_id"], judged_row["attempt"]) in superseded:
            validity = {*(judged_row.get("validity") or ()), "code_changed"}
            judged_row["validity"] = sorted(validity)

        if conditions:
            is_measured = Outcome(judged_row["outcome"]).is_measurement
            metrics = final_metrics(judged_row)
            judged_row["accepted"] = hold(conditions, metrics) if is_measured else None

        yield judged_row


def final_metrics(observation: Observation) -> dict[str, float | None]:
    """Return the metrics of a row's last evaluation, as far as they are known."""
    if text := observation.get("final_metrics"):
        with suppress(ValueError, TypeError):
            return dict(parse_json(text.encode()))
    # rows of older versions know the metric of the target alone
    name, value = observation.get("target_metric"), observation.get("final_metric")
    return {} if name is None or value is None else {name: value}


def measured_meanwhile(
    files: AttemptFiles, result: AttemptResult
) -> AttemptResult | None:
    """Return the measurement on disk that counts more than a declared node loss."""
    with suppress(TornRecordError):
        written = read_result(files) if result.outcome.is_retried else None
        if written is not None and written.outcome.is_measurement:
            return written
    return None
