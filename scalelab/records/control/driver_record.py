"""The batch job that was submitted last to run a sweep's driver.

::

    NAME/cluster/driver.json      which job
    NAME/cluster/NAME-driver-1.log, ...   what it said besides the driver's own log
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scalelab.records.attempt_io import encode_json, write_atomically
from scalelab.records.control.job_list import CLUSTER_DIRECTORY
from scalelab.records.plain_files import checked, parse_json, read_file


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverRecord:
    """A batch job that runs a sweep's driver.

    Parameters
    ----------
    has_left_queue
        It waits there no more, and never will again: its driver has begun, it was
        cancelled, or it ended. Where that is not known, the batch system knows.
    """

    scheduler: str
    name: str
    job_id: str
    number: int
    has_left_queue: bool = False

    @classmethod
    def read(cls, run: Path) -> DriverRecord | None:
        """Read the record in a run's directory; None: no such job was submitted."""
        try:
            return checked(parse_json(read_file(_path(run))), cls)
        except (OSError, ValueError):
            return None

    def write(self, run: Path) -> None:
        """Replace the record in a run's directory."""
        write_atomically(_path(run), encode_json(asdict(self)))

    def leave_queue(self, run: Path) -> None:
        """Record that the job no longer waits in the queue."""
        replace(self, has_left_queue=True).write(run)


def _path(run: Path) -> Path:
    return run / CLUSTER_DIRECTORY / "driver.json"
