"""What an answer says of one job, kept until the job has run."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from scalelab.errors import StoreError
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import Interval
from scalelab.inputs.plain_files import make_folder, parse_json, read_file
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow, plain_values
from scalelab.records.attempt import names_in, write_atomically

_JOBS, _ANSWER = "jobs", "answer.json"
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """What an answer says of the job on one of its allocations.

    Parameters
    ----------
    mass
        The mass of the intervals, in (0, 1).
    num_steps
        Optimiser steps of the whole job.
    start_up_s
        What of the time is no training: from the start of the ranks to their first
        step; 0 where that was not measured, and so is not in the time.
    widened_by
        What the ends of the intervals of step times were moved outwards for earlier
        jobs, in logarithms.
    """

    run: str
    workload: str
    device_name: str
    device_word: str
    device_hour_word: str
    mass: float
    world_size: int
    num_nodes: int
    local_batch_size: int
    global_batch_size: int
    step_time_s: Interval
    time_s: Interval
    gpu_hours: Interval
    num_steps: float
    start_up_s: float
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    widened_by: float = 0.0

    @classmethod
    def of(cls, answer: Recommendation, row: OutlookRow, run: str) -> Self:
        """Return what an answer of a run says of one of its rows."""
        known = [f.values for f in answer.facts if f.kind == "times_contain"]
        start_up_s = sum(values["beside_s"].get("start-up", 0) for values in known)
        words, batch = answer.words(row), row.batch
        return cls(
            run=run,
            workload=answer.workload,
            device_name=row.device or answer.device_name,
            device_word=words.device,
            device_hour_word=words.hour,
            mass=answer.interval,
            world_size=row.world_size,
            num_nodes=row.num_nodes,
            local_batch_size=batch.local_batch_size,
            global_batch_size=batch.global_batch_size,
            step_time_s=row.step_time_s,
            time_s=row.time_s,
            gpu_hours=row.gpu_hours,
            num_steps=row.samples.value / row.samples_per_step,
            start_up_s=start_up_s,
            settings=row.settings,
            widened_by=answer.widened_by,
        )

    @property
    def digest(self) -> str:
        """A short name of the promise."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return sha256(text.encode()).hexdigest()[:8]

    @property
    def configuration(self) -> str:
        """The configuration, as jobs of the same one have it."""
        place = f"{self.num_nodes}x{self.world_size // self.num_nodes}"
        settings = [f"{name}={value}" for name, value in sorted(self.settings.items())]
        return " ".join([place, f"batch {self.local_batch_size}", *settings])

    def time_of(self, num_steps: float) -> Interval:
        """Return the time that so many steps were to take, start-up included."""
        share = num_steps / self.num_steps
        beside = Interval(value=self.start_up_s, lo=self.start_up_s, hi=self.start_up_s)
        return Interval(
            **{
                name: getattr(beside, name)
                + share * (getattr(self.time_s, name) - self.start_up_s)
                for name in ("value", "lo", "hi")
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` reads them back."""
        values: dict[str, Any] = plain_values(asdict(self))
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild a promise from :meth:`to_json`; an unknown end is infinite."""
        intervals = {
            name: Interval(
                value=ends["value"],
                lo=ends["lo"],
                hi=float("inf") if ends["hi"] is None else ends["hi"],
            )
            for name, ends in values.items()
            if name in ("step_time_s", "time_s", "gpu_hours")
        }
        return cls(**{**values, **intervals})


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
