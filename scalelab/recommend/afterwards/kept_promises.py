"""Answers whose job script was printed: kept in the run's directory, until they ran."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

from scalelab.errors import StoreError
from scalelab.recommend.afterwards.promise import Promise
from scalelab.records.attempt_io import write_atomically
from scalelab.records.plain_files import parse_json, read_file

_JOBS, _ANSWER = "jobs", "answer.json"
_NUMBER = re.compile(r"\d+")


def keep_promise(run_directory: Path, promise: Promise) -> Path | None:
    """Keep what is said of a job, and return the folder where it may be recorded.

    None where the run's directory cannot be written.
    """
    folder = run_directory / _JOBS / promise.digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(promise.to_json(), indent=2).encode()
        write_atomically(folder / _ANSWER, content)
    except (OSError, StoreError):
        return None
    return folder


def recording_of(run_directory: Path, job: str) -> Path | None:
    """Return the folder of what the probe has seen of a job; None: there is none."""
    number = _NUMBER.match(job)
    places = (run_directory / _JOBS).glob(f"*/{number[0]}") if number else ()
    return max(places, key=lambda place: place.stat().st_mtime, default=None)


def promise_of(recording: Path) -> Promise | None:
    """Return what was said of a recorded job; None where it cannot be read."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return Promise.from_json(parse_json(read_file(recording.parent / _ANSWER)))
    return None
