"""Jobs that were followed: what was predicted of each, and what was true.

They stand in one file of the history's folder, a line of JSON for each; of several
lines of one job the last counts.
"""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from scalelab.inputs.plain_files import checked, open_to_append, parse_json, read_file
from scalelab.records.attempt import storing

STEP_TIME = "step_time_s"  # the quantity without which a job teaches nothing
_FILE = "followed.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptValue:
    """A predicted value with its interval, and the true one; all are positive."""

    predicted: float
    lo: float
    hi: float | None  # None: there was no upper end
    true: float

    @property
    def is_sound(self) -> bool:
        """Whether they are what they should be."""
        is_positive = min(self.lo, self.true) > 0
        return is_positive and self.lo <= self.predicted <= (self.hi or math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptJob:
    """A job and its answer, in numbers.

    Parameters
    ----------
    configuration
        What jobs of the same allocation, batch and settings have in common.
    mass
        The mass of the intervals.
    widened_by
        What their ends were moved outwards when the answer was given, in logarithms.
    was_as_asked
        Whether the job was the one that the answer was about.
    values
        By quantity, such as ``step_time_s``.
    causes
        Kinds of causes why it was not as predicted.
    """

    job: str
    run: str
    workload: str
    device_name: str
    configuration: str
    mass: float
    widened_by: float
    was_as_asked: bool
    values: Mapping[str, KeptValue]
    causes: tuple[str, ...] = ()


def followed_jobs(folder: str | Path) -> tuple[KeptJob, ...]:
    """Return the jobs that a history holds; lines that cannot be read are none."""
    found: dict[tuple[str, str], KeptJob] = {}
    with suppress(OSError):
        for line in read_file(Path(folder, _FILE)).splitlines():
            with suppress(ValueError):
                job = checked(parse_json(line), KeptJob)
                is_sound = all(value.is_sound for value in job.values.values())
                if is_sound and STEP_TIME in job.values:
                    found[job.run, job.job] = job
    return tuple(found.values())


def keep_followed(folder: str | Path, job: KeptJob) -> Path:
    """Add a job to a history, and return its file.

    Raises
    ------
    StoreError
        It cannot be written.
    """
    path = Path(folder, _FILE)
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_to_append(path)
        try:
            os.write(descriptor, json.dumps(asdict(job)).encode() + b"\n")
        finally:
            os.close(descriptor)
    return path
