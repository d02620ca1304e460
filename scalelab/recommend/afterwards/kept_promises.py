"""Answers whose job script was printed: kept in the run's directory, until they ran."""

import json
import re
from contextlib import suppress
from pathlib import Path

from scalelab.errors import StoreError
from scalelab.inputs.plain_files import make_folder, parse_json, read_file
from scalelab.recommend.afterwards.promise import Promise
from scalelab.records.attempt import names_in, write_atomically

_JOBS, _ANSWER = "jobs", "answer.json"
_NUMBER = re.compile(r"\d+")


def keep_promise(run_directory: Path, promise: Promise) -> Path | None:
    """Keep what is said of a job, and return the folder where it may be recorded.

    None where the run's directory cannot be written.
    """
    folder = run_directory / _JOBS / promise.digest
    try:
        make_folder(folder, below=run_directory)
        content = json.dumps(promise.to_json(), indent=2).encode()
        write_atomically(folder / _ANSWER, content, below=run_directory)
    except (OSError, StoreError):
        return None
    return folder


def recording_of(run_directory: Path, job: str) -> Path | None:
    """Return the folder of what the probe has seen of a job; None: there is none."""
    jobs, found = run_directory / _JOBS, dict[Path, float]()
    if (number := _NUMBER.match(job)) is None:
        return None

    for digest in names_in(jobs, run_directory):
        with suppress(OSError):
            folder = jobs / digest / number[0]
            found[folder] = folder.stat().st_mtime
    return max(found, key=lambda folder: found[folder], default=None)


def promise_of(recording: Path) -> Promise | None:
    """Return what was said of a recorded job; None where it cannot be read."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        content = read_file(recording.parent / _ANSWER, below=recording.parents[2])
        return Promise.from_json(parse_json(content))
    return None
