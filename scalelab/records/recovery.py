"""Recovery of a run whose driver was killed: reconcile the ledger with the files."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from scalelab.errors import StoreError
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.target import Condition, hold
from scalelab.plan.source import Observation
from scalelab.records.attempt import AttemptFiles, AttemptResult, AttemptSpec
from scalelab.records.attempt_io import (
    TornRecordError,
    read_result,
    read_spec,
    storing,
    write_result,
)
from scalelab.records.control.job_list import CLUSTER_DIRECTORY
from scalelab.records.control.lease import LEASE
from scalelab.records.ledger import AttemptKey, Ledger
from scalelab.records.observations import check_types, row
from scalelab.records.plain_files import harmless, parse_json

# The names that write_atomically and snapshot_code give to what is not whole yet.
_HALF = re.compile(r"\.(.+\.)?[0-9a-f]{32}")
_HALF_LIFE_S = 60.0
_ABANDONED = AttemptResult(
    outcome=Outcome.NODE_FAIL,
    reason="The driver of the sweep ended before the attempt did.",
)


def attempt_directory(trials: Path, trial_id: str, number: int) -> Path:
    """Return where an attempt's files are."""
    return trials / trial_id / f"{number:03d}"


def attempts_on_disk(trials: Path) -> Iterator[tuple[AttemptKey, AttemptFiles]]:
    """Yield every attempt that has a directory, by trial id and number."""
    for trial_id in _entries(trials):
        for number in sorted(_entries(trials / trial_id)):
            if number.isdecimal():
                yield (
                    (trial_id, int(number)),
                    AttemptFiles(trials / trial_id / number),
                )


def _entries(directory: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(directory)
    return []


def last_number(trial_directory: Path) -> int:
    """Return the highest attempt number of a trial; 0 if it was never tried."""
    numbers = [name for name in _entries(trial_directory) if name.isdecimal()]
    return max(map(int, numbers), default=0)


def recover(ledger: Ledger, trials: Path) -> list[Observation]:
    """End attempts that a dead driver left open; make ledger and disk agree.

    What it, or a node that died with it, had only half written is deleted.
    """
    run = trials.parent
    with suppress(OSError, StoreError):  # the folder may be somebody else's
        discard_halves(run.parent, run.name, may_be_written=True)
    for directory in (run, run / "experiments", run / "code", run / "cache"):
        discard_halves(directory)
    discard_halves(run / CLUSTER_DIRECTORY, "jobs.json")
    discard_halves(run / CLUSTER_DIRECTORY, may_be_written=True)
    content = ledger.read()
    on_disk = dict(attempts_on_disk(trials))
    known = {key: content.ended[key] for key in content.ended if key in on_disk}
    settled = {
        key: observation
        for key, files in on_disk.items()
        if key not in known and (observation := settle(key, files))
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
    directory: Path, of: str = "", *, may_be_written: bool = False
) -> None:
    """Delete what killed processes left half-written in a directory."""
    for name in [] if directory.is_symlink() else _entries(directory):
        if of and not name.startswith(f".{of}."):
            continue
        if may_be_written and not _is_old(directory / name):
            continue
        path = directory / name
        # A lease that was moved aside may still be put back.
        if _HALF.fullmatch(name) and (
            not name.startswith(f".{LEASE}.") or _is_old(path)
        ):
            with storing(path):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)


def _is_old(path: Path) -> bool:
    """Tell whether a path was last changed more than a minute ago."""
    with suppress(FileNotFoundError):
        status = path.lstat()
        # A file that is renamed keeps the time of its last writing.
        return time.time() - max(status.st_mtime, status.st_ctime) > _HALF_LIFE_S
    return False


def ended_rows(ledger: Ledger, trials: Path) -> tuple[list[Observation], bool]:
    """Read the rows of all attempts that have ended, writing nothing."""
    content = ledger.read()
    attempts = (
        {key: AttemptFiles(attempt_directory(trials, *key)) for key in content.begun}
        if content.is_whole
        else dict(attempts_on_disk(trials))
    )
    pending = [key for key in attempts if key not in content.ended]
    rows = [*content.ended.values()]
    for key in pending:
        with suppress(TornRecordError):
            spec, result = read_spec(attempts[key]), read_result(attempts[key])
            if spec is not None and result is not None:
                rows.append(_row_at(key, spec, result))
    # an imported run has no ledger, and nothing that one would speak of
    return rows, not pending and (content.is_whole or not attempts)


def settle(key: AttemptKey, files: AttemptFiles) -> Observation | None:
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
        discard_halves(files.directory)
        result = read_result(files)
        if result is not None:
            return _row_at(key, spec, result)
        result = _ABANDONED
    except TornRecordError as error:
        result = _set_aside(files, error)
    write_result(files, result)
    return _row_at(key, spec, result)


def _set_aside(files: AttemptFiles, error: StoreError) -> AttemptResult:
    aside = files.result.with_name(files.result.name + ".torn")
    with storing(aside):
        files.result.rename(aside)
    return AttemptResult(
        outcome=Outcome.NODE_FAIL,
        reason=f"The result could not be read and was kept as {aside.name}. {error}",
    )


def _row_at(key: AttemptKey, spec: AttemptSpec, result: AttemptResult) -> Observation:
    """Return the row, with trial id and number as its directory is called."""
    trial_id, number = key
    try:
        observation = harmless(check_types(row(spec, result)))
    except (StoreError, ValueError) as error:
        raise TornRecordError(str(error)) from error
    return {**observation, "trial_id": trial_id, "attempt": number}


def marked(
    rows: list[Observation], superseded: Collection[AttemptKey]
) -> list[Observation]:
    """Return the rows, superseded attempts marked ``code_changed``."""
    found = []
    for each in rows:
        if superseded and (each["trial_id"], each["attempt"]) in superseded:
            validity = {*(each.get("validity") or ()), "code_changed"}
            each = {**each, "validity": sorted(validity)}
        found.append(each)
    return found


def judged(
    rows: list[Observation], conditions: Sequence[Condition]
) -> list[Observation]:
    """Return the rows with ``accepted``, by the conditions of the latest experiment."""
    if not conditions:
        return rows
    return [
        {
            **each,
            "accepted": hold(conditions, _final_metrics(each))
            if Outcome(each["outcome"]).is_measurement
            else None,
        }
        for each in rows
    ]


def _final_metrics(observation: Observation) -> dict[str, float | None]:
    """Return the last metrics; rows of older versions know that of the target alone."""
    if text := observation.get("final_metrics"):
        with suppress(ValueError, TypeError):
            return dict(parse_json(text.encode()))
    name, value = observation.get("target_metric"), observation.get("final_metric")
    return {} if name is None or value is None else {name: value}


def measured_meanwhile(
    files: AttemptFiles, result: AttemptResult, replace: bool
) -> AttemptResult | None:
    """Return the measurement on disk that counts more than a declared node loss."""
    if replace or not result.outcome.is_retried:
        return None
    with suppress(TornRecordError):
        written = read_result(files)
        if written is not None and written.outcome.is_measurement:
            return written
    return None
