"""How long jobs waited in the queue of a cluster, as its batch system said once."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalelab.inputs.plain_files import checked, parse_json, read_file
from scalelab.records.attempt import write_atomically

_FILE = "waits.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobWait:
    """A job of anybody's: its devices, and from when it could start until it did.

    ``has_started`` is False for one that still waits: its wait is longer than so far.
    ``limit_s`` is None without a time limit.
    """

    num_devices: int
    limit_s: float | None
    submitted_s: float
    wait_s: float
    has_started: bool


def waits_state(run_directory: Path) -> int | None:
    """Return what changes with the kept waits of a run; None: none are kept."""
    with suppress(OSError):
        return (run_directory / _FILE).stat().st_mtime_ns
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """The jobs of the last weeks, and the date on which they were asked for."""

    date: str
    jobs: tuple[JobWait, ...]

    @classmethod
    def read(cls, run_directory: Path) -> "Waits | None":
        """Return what was kept in a run's directory; None: nothing that can be read."""
        with suppress(OSError, ValueError):
            return checked(parse_json(read_file(run_directory / _FILE)), cls)
        return None

    @classmethod
    def of_attempts(cls, rows: Iterable[Mapping[str, Any]]) -> "Waits":
        """Return what the nodes of a run's own attempts waited, each once."""
        waits = {
            (int(row["world_size"]), float(row["queue_wait_s"])): row.get("started_at")
            for row in rows
            if row.get("queue_wait_s") is not None and row.get("world_size")
        }
        dates = [str(date) for date in waits.values() if date]
        jobs = [
            JobWait(
                num_devices=size,
                limit_s=None,
                submitted_s=0.0,
                wait_s=wait_s,
                has_started=True,
            )
            for size, wait_s in waits
        ]
        return cls(date=max(dates, default="")[:10], jobs=tuple(jobs))

    @classmethod
    def keep(cls, run_directory: Path, date: str, jobs: Sequence[JobWait]) -> None:
        """Keep jobs in a run's directory; those of an earlier day are replaced.

        Raises
        ------
        StoreError
            They cannot be written.
        """
        content = json.dumps(asdict(cls(date=date, jobs=tuple(jobs)))).encode()
        write_atomically(run_directory / _FILE, content)
