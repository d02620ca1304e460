"""The reader of a run's records, which needs no lease and writes nothing but a cache.

::

    NAME/run.json                       name, schema version, fingerprint, provenance
    NAME/experiments/0001.yaml, ...     the experiment as written, and its extensions
    NAME/env.json                       values of its variables, for the user alone
    NAME/ledger.jsonl                   which attempts began and ended; an index
    NAME/events.jsonl                   what goes on in its sweeps; see control.events
    NAME/driver.lease                   which driver runs the sweep at the moment
    NAME/code/<hash>/                   snapshots of the user's code
    NAME/trials/<trial_id>/001/         one attempt; see AttemptFiles
    NAME/imported.jsonl                 rows of a foreign table, instead of trials
    NAME/cache/                         may be deleted at any time

Reading the directory of a run unpickles nothing and executes nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from scalelab.errors import StoreError
from scalelab.experiment.fingerprint import ACCEPT
from scalelab.inputs.target import Condition
from scalelab.plan.source import Observation
from scalelab.records import cache
from scalelab.records.columns import SCHEMA_VERSION
from scalelab.records.control.lease import LEASE, read_holder
from scalelab.records.header import RunHeader, read_header
from scalelab.records.hidden_env import restored
from scalelab.records.ledger import (
    AttemptKey,
    Ledger,
    attempt_directory,
    ended_rows,
    judged,
    marked,
)
from scalelab.records.observations import (
    check_row,
    check_types,
    finished_rows,
    frame,
)
from scalelab.records.plain_files import read_file
from scalelab.records.streams import Streams, read_lines

if TYPE_CHECKING:
    import pandas as pd


class RunReader:
    """The records of one run, for reading; made by :meth:`open`.

    Any number of processes may read a run, also while a driver writes it.
    """

    def __init__(self, directory: Path, header: RunHeader) -> None:
        self.directory = directory
        self._header = header
        self._trials = directory / "trials"
        self._imported_path = directory / "imported.jsonl"
        self._ledger = Ledger(directory / "ledger.jsonl")

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the directory of a run."""
        directory = directory.absolute()
        return cls(directory, read_header(directory / "run.json"))

    @property
    def name(self) -> str:
        """The run's name, which is that of its directory when it was created."""
        return self._header.name

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The latest fingerprint: what numbers depend on besides the configuration."""
        fingerprint: Mapping[str, Any] = self._header.versions[-1]["meaning"]
        return fingerprint

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions under which a trial is accepted; empty: none were asked."""
        return tuple(map(Condition.parse, self.fingerprint.get(ACCEPT, ())))

    @property
    def site(self) -> str | None:
        """Name or path of the site's profile; None: the experiment names it."""
        return self._header.versions[-1].get("site")

    @property
    def experiment_text(self) -> str:
        """The experiment in its latest version, as written but for hidden values."""
        path = self.directory / "experiments" / self._header.versions[-1]["experiment"]
        try:
            return read_file(path).decode(errors="replace")
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read: {error.strerror}. Restore it or run anew."
            ) from error

    def env(self, program: str | None = None) -> Mapping[str, str]:
        """Return the experiment's variables, or the own ones of one of its programs.

        Those that this user may not read stay hidden.
        """
        return restored(self.directory, self.fingerprint, program)

    def attempt_directory(self, trial_id: str, number: int) -> Path:
        """Return the directory of an attempt's files, as an absolute path."""
        return attempt_directory(self._trials, trial_id, number)

    @property
    def driver(self) -> str | None:
        """The driver that runs the sweep now, in words; None: there is none."""
        holder = read_holder(self.directory / LEASE)
        return None if holder is None else holder.text

    def running(self) -> tuple[AttemptKey, ...]:
        """Return the attempts (trial id, number) that began and have not ended."""
        ledger = self._ledger.read()
        return tuple(key for key in ledger.begun if key not in ledger.ended)

    def rows(self) -> list[Observation]:
        """Return one row per attempt that has ended, in order of their ends.

        A result that no ledger line mentions yet is among them; nothing is written.
        """
        return self._read()[0]

    def _read(self) -> tuple[list[Observation], bool]:
        imported = []
        for number, values in enumerate(read_lines(self._imported_path), start=1):
            try:
                imported.append(check_types(check_row(values)))
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(
                    f"{self._imported_path}, line {number} is no row: {error}. "
                    "Import the table anew."
                ) from error
        rows, is_settled = ended_rows(self._ledger, self._trials)
        rows = judged(marked(rows, self._header.superseded), self.conditions)
        return [*imported, *rows], is_settled

    def finished(
        self, rows: Sequence[Observation], *, retry_failed: bool = False
    ) -> list[Observation]:
        """Return those of :meth:`rows` whose trials need not run again."""
        superseded = self._header.superseded
        return finished_rows(rows, superseded=superseded, retry_failed=retry_failed)

    @property
    def state(self) -> Mapping[str, Any]:
        """A signature that changes whenever rows do, as long as no attempt runs."""
        state: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        header = self.directory / "run.json"
        for path in (header, self._ledger.path, self._imported_path):
            with suppress(FileNotFoundError):
                status = path.stat()
                state[path.name] = [status.st_size, status.st_mtime_ns]
        return state

    def observations(self) -> pd.DataFrame:
        """Return the frame of :func:`scalelab.records.observations.frame`."""
        path, state = self.directory / "cache" / "observations.parquet", self.state
        if (cached := cache.read_observations(path, state)) is not None:
            return cached
        import pyarrow as pa

        rows, is_settled = self._read()
        observations = frame(rows)
        if is_settled:
            with suppress(StoreError):  # a reader may lack the right, or the room
                cache.write_table(path, pa.Table.from_pandas(observations), state, {})
        return observations

    def streams(self) -> pd.DataFrame:
        """Return the streams of all attempts, with ``trial_id`` and ``attempt``."""
        return Streams(self.directory).all()
