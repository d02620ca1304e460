"""The batch job that was submitted last to run a sweep's driver.

::

    NAME/cluster/driver.json      which job
    NAME/cluster/NAME-driver-1.log, ...   what it said besides the driver's own log
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from scalelab.records.attempt_io import encode_json, write_atomically
from scalelab.records.job_list import CLUSTER_DIRECTORY


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverRecord:
    """One such job.

    Parameters
    ----------
    scheduler
        ``slurm`` or ``pbs``.
    name, job_id
        Its name and its id there.
    number
        It is the run's so manieth.
    """

    scheduler: str
    name: str
    job_id: str
    number: int

    @classmethod
    def read(cls, run: Path) -> DriverRecord | None:
        """Return what the directory of a run holds; None: no such job was submitted."""
        try:
            return cls(**json.loads(_path(run).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, run: Path) -> None:
        """Replace what the directory of a run holds.

        Raises
        ------
        StoreError
            If the disk refuses.
        """
        write_atomically(_path(run), encode_json(asdict(self)))


def _path(run: Path) -> Path:
    return run / CLUSTER_DIRECTORY / "driver.json"
