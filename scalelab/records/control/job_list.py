"""The batch jobs of a run as its driver last saw them, for readers and later drivers.

::

    NAME/cluster/jobs.json              their list, replaced as a whole
    NAME/cluster/NAME-1.log, ...        what each job said
    NAME/cluster/driver.json            the job that was submitted last to run a driver
    NAME/cluster/NAME-driver-1.log, ... what that said besides the driver's own log
    NAME/cluster/nodes.json, *.pem      how nodes join the driver; for its user alone
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from scalelab.inputs.plain_files import checked, parse_json, read_file
from scalelab.records.attempt import encode_json, write_atomically

CLUSTER_DIRECTORY = "cluster"
_NAME = "jobs.json"
_DRIVER = Path(CLUSTER_DIRECTORY, "driver.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobLine:
    """One batch job, with what the batch system says of it, in its words."""

    name: str
    job_id: str | None  # None: it is being submitted
    num_nodes: int
    state: str  # pending, running (without its nodes), up, being given back, ...
    reason: str = ""  # why it waits or was not cancelled
    estimated_start: str | None = None
    node_group: str | None = None  # None where nodes are alike

    def __str__(self) -> str:
        kind = f"{self.node_group} " if self.node_group else ""
        nodes = f"{self.num_nodes} {kind}node{'s' if self.num_nodes > 1 else ''}"
        known = f"job {self.job_id}" if self.job_id else "being submitted"
        start = self.estimated_start and f"start expected {self.estimated_start}"
        state = f"{self.name} ({known}, {nodes}): {self.state}"
        return ", ".join(filter(None, (state, self.reason, start)))


@dataclass(frozen=True, kw_only=True, slots=True)
class JobList:
    """All jobs of a run, and why trials wait."""

    jobs: tuple[JobLine, ...] = ()
    waiting: tuple[str, ...] = ()
    last_number: int = 0

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Return the list in a directory; an empty one where there is none."""
        try:
            return checked(
                parse_json(read_file(directory / _NAME, below=directory.parent)), cls
            )
        except (OSError, ValueError):
            return cls()  # it says what is, not what was measured

    def write(self, directory: Path) -> None:
        """Replace the list in a directory."""
        content = encode_json(asdict(self))
        write_atomically(directory / _NAME, content, below=directory.parent)


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverRecord:
    """A batch job that runs a sweep's driver."""

    scheduler: str
    name: str
    job_id: str
    number: int
    # It waits there no more, and never will again: its driver has begun, it was
    # cancelled, or it ended. Where that is not known, the batch system knows.
    has_left_queue: bool = False

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """Read the record in a run's directory; None: no such job was submitted."""
        try:
            return checked(parse_json(read_file(run / _DRIVER, below=run)), cls)
        except (OSError, ValueError):
            return None

    def write(self, run: Path) -> None:
        """Replace the record in a run's directory."""
        write_atomically(run / _DRIVER, encode_json(asdict(self)), below=run)

    def leave_queue(self, run: Path) -> None:
        """Record that the job no longer waits in the queue."""
        replace(self, has_left_queue=True).write(run)
