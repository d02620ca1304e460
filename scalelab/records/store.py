"""The store of a run: one directory per run, one per attempt.

::

    NAME/run.json                       name, schema version, fingerprint, provenance
    NAME/experiments/0001.yaml, ...     the experiment as written, and its extensions
    NAME/ledger.jsonl                   which attempts began and ended; an index
    NAME/driver.lease                   who runs it now
    NAME/code/<hash>/                   snapshots of the user's code
    NAME/trials/<trial_id>/001/         one attempt: see AttemptFiles
    NAME/imported.jsonl                 rows of a foreign table, instead of trials
    NAME/cache/                         may be deleted at any time

Nothing in it is unpickled or executed by reading it.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from scalelab.errors import StoreError
from scalelab.inputs.outcome import Outcome
from scalelab.plan.source import Observation
from scalelab.records import cache
from scalelab.records.attempt import AttemptFiles, AttemptResult, AttemptSpec
from scalelab.records.attempt_io import (
    encode_json,
    storing,
    write_atomically,
    write_new,
    write_result,
    write_spec,
)
from scalelab.records.control.lease import LEASE, Lease, holder_of
from scalelab.records.header import RunHeader, read_header
from scalelab.records.ledger import AttemptKey, Ledger
from scalelab.records.observations import check_row, finished_rows, frame, row
from scalelab.records.recovery import (
    attempt_directory,
    ended_rows,
    last_number,
    marked,
    measured_meanwhile,
    recover,
)
from scalelab.records.streams import Streams, read_lines

if TYPE_CHECKING:
    import pandas as pd


class RunStore:
    """The records of one run.

    Reading needs nothing; writing is for one thread of one driver, which holds
    :meth:`lease` and has called :meth:`recover`. Made by :meth:`create` and
    :meth:`open`.
    """

    def __init__(self, directory: Path, header: RunHeader) -> None:
        self.directory = directory
        self._header = header
        self._trials = directory / "trials"
        self._imported_path = directory / "imported.jsonl"
        self._ledger = Ledger(directory / "ledger.jsonl")
        self._lease: Lease | None = None
        self._outcomes: dict[str, dict[int, Outcome]] = {}

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        experiment_text: str,
        fingerprint: Mapping[str, Any],
        site: str | None = None,
        code_directory: Path | None = None,
        imported: Sequence[Observation] = (),
    ) -> Self:
        """Make the directory of a new run, whole or not at all.

        Parameters
        ----------
        directory
            The run's directory; its last part is the run's name.
        experiment_text
            The experiment as the user wrote it.
        fingerprint
            What numbers depend on besides the configuration, as plain JSON values.
        site
            Name or path of the site's profile, where not the experiment's own.
        code_directory
            Where the user's code lies; its git state is recorded.
        imported
            Rows of a foreign table: a run that was measured elsewhere.

        Raises
        ------
        StoreError
            If the directory exists and is not empty, or cannot be made.
        """
        directory = directory.absolute()
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise StoreError(
                f"{directory} exists already. Choose another name for the run, or "
                "continue it with the command that started it."
            )
        header = RunHeader(name=directory.name)
        header = header.extended(fingerprint, site, code_directory)
        making = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}")
        with storing(directory):
            try:
                (making / "experiments").mkdir(parents=True)
                write_new(
                    making / "experiments" / "0001.yaml", experiment_text.encode()
                )
                if imported:
                    lines = b"".join(encode_json(each) + b"\n" for each in imported)
                    write_new(making / "imported.jsonl", lines, durable=True)
                write_new(making / "run.json", header.encode(), durable=True)
                making.rename(directory)
            except OSError:
                shutil.rmtree(making, ignore_errors=True)
                raise
        return cls(directory, header)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the directory of a run.

        Raises
        ------
        StoreError
            If it is no run.
        SchemaError
            If a newer ScaleLab wrote it.
        """
        directory = directory.absolute()
        return cls(directory, read_header(directory / "run.json"))

    @property
    def name(self) -> str:
        """The run's name: that of its directory when it was created."""
        return self._header.name

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What trials' numbers depend on besides their configuration; the latest."""
        return self._header.fingerprint

    @property
    def site(self) -> str | None:
        """Name or path of the site's profile, where not the experiment's own."""
        return self._header.site

    @property
    def experiment_text(self) -> str:
        """The experiment as the user wrote it, in its latest version."""
        path = self.directory / "experiments" / self._header.experiment
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read: {error.strerror}. Restore it or run anew."
            ) from error

    def extend(
        self,
        experiment_text: str,
        fingerprint: Mapping[str, Any],
        *,
        site: str | None = None,
        supersedes: bool = False,
    ) -> None:
        """Record a further version of the experiment, if it differs from the latest.

        Where it ``supersedes`` one whose numbers cannot be compared, all attempts until
        now carry ``code_changed`` in their validity, and their trials run again.

        Raises
        ------
        StoreError
            If the disk refuses; the run then stays as it was.
        """
        self._fence()
        latest = (self.experiment_text, self.fingerprint, self.site)
        if (experiment_text, fingerprint, site) == latest:
            return
        ended = self.rows() if supersedes else []
        attempts = [(each["trial_id"], each["attempt"]) for each in ended]
        header = self._header.extended(fingerprint, site, superseded=attempts)
        experiment = self.directory / "experiments" / header.experiment
        write_atomically(experiment, experiment_text.encode())
        write_atomically(self.directory / "run.json", header.encode())
        self._header = header

    @contextmanager
    def lease(self, **timing: float) -> Iterator[Lease]:
        """Hold the run as its one driver; ``timing`` goes to :class:`Lease`.

        Raises
        ------
        LeaseError
            If another living driver holds it.
        """
        with Lease(self.directory / LEASE, **timing) as lease:
            self._lease = lease
            try:
                yield lease
            finally:
                self._lease = None
                self._ledger.close()

    def _fence(self) -> None:
        if self._lease is not None:
            self._lease.require()

    def next_attempt_number(self, trial_id: str) -> int:
        """Return the number of the trial's next attempt, from 1."""
        return last_number(self._trials / trial_id) + 1

    def attempt_directory(self, trial_id: str, number: int) -> Path:
        """Return where an attempt's files are, absolute."""
        return attempt_directory(self._trials, trial_id, number)

    def begin(self, spec: AttemptSpec) -> str:
        """Record that an attempt is about to start; not flushed to the disk.

        Returns its specification as JSON, encoded once for the record and the nodes.

        Raises
        ------
        StoreError
            If the attempt was begun before or the disk refuses; nothing is left of it.
        LeaseError
            If another driver has taken the run over.
        """
        self._fence()
        key = (spec.trial.trial_id, spec.number)
        files = AttemptFiles(self.attempt_directory(*key))
        content = write_spec(files, spec)
        try:
            self._ledger.append_begin(key)
        except StoreError:
            shutil.rmtree(files.directory, ignore_errors=True)
            raise
        return content

    def finish(
        self, spec: AttemptSpec, result: AttemptResult, *, replace: bool = False
    ) -> Observation:
        """Record how an attempt ended, in the ledger and in its directory alike.

        On the common path, one node and something measured, the result that the node
        wrote is neither read nor written again. Otherwise ``result`` counts, the
        driver's verdict over all nodes; but where it declares a loss (a node that
        vanished) and a measurement has been written meanwhile, that counts, unless
        ``replace`` says that ``result`` does.

        Returns
        -------
        Observation
            The row that counts; its outcome may be better than that of ``result``.

        Raises
        ------
        StoreError
            If a measurement is no column or the disk refuses.
        LeaseError
            If another driver has taken the run over.
        """
        self._fence()
        key = (spec.trial.trial_id, spec.number)
        files = AttemptFiles(self.attempt_directory(*key))
        observation = row(spec, result)
        is_local = spec.trial.allocation.num_nodes == 1
        if is_local and result.outcome.is_measurement and not replace:
            write_result(files, result)
        elif counts := measured_meanwhile(files, result, replace):
            observation = row(spec, counts)
        else:
            write_result(files, result, replace=True)
        self._ledger.append_end(observation)
        self._count(observation)
        return observation

    def _count(self, observation: Observation) -> None:
        attempts = self._outcomes.setdefault(observation["trial_id"], {})
        attempts[observation["attempt"]] = Outcome(observation["outcome"])

    def outcomes(self, trial_id: str) -> Counter[Outcome]:
        """Count a trial's attempts by outcome; earlier drivers' too after recover."""
        return Counter(self._outcomes.get(trial_id, {}).values())

    def recover(self, *, retry_failed: bool = False) -> list[Observation]:
        """Reconcile the records that an earlier driver left, before the first attempt.

        Attempts without a result end as ``node_fail``, those with one count even where
        the ledger does not know it, and a ledger that is torn, damaged or gone is
        rebuilt from the attempt directories. An attempt whose directory was deleted is
        forgotten. Returns one row per trial that need not run again; see
        :meth:`finished`.

        Raises
        ------
        StoreError
            If the records cannot be read or written.
        SchemaError
            If a newer ScaleLab wrote them.
        """
        self._fence()
        rows = recover(self._ledger, self._trials)
        for observation in rows:
            self._count(observation)
        return self.finished(rows, retry_failed=retry_failed)

    def finished(
        self, rows: Sequence[Observation], *, retry_failed: bool = False
    ) -> list[Observation]:
        """Return those of :meth:`rows` whose trials need not run again."""
        superseded = self._header.superseded
        return finished_rows(rows, superseded=superseded, retry_failed=retry_failed)

    @property
    def driver(self) -> str | None:
        """Who runs the sweep at the moment, in words; None: nobody."""
        return holder_of(self.directory / LEASE)

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
        imported = [check_row(values) for values in read_lines(self._imported_path)]
        rows, is_settled = ended_rows(self._ledger, self._trials)
        return [*imported, *marked(rows, self._header.superseded)], is_settled

    @property
    def state(self) -> Mapping[str, Any]:
        """A signature that changes whenever rows do, as long as no attempt runs."""
        header = self.directory / "run.json"
        return cache.signature((header, self._ledger.path, self._imported_path))

    def observations(self) -> pd.DataFrame:
        """Return the frame of :func:`scalelab.records.observations.frame`.

        Raises
        ------
        SchemaError
            If a newer ScaleLab wrote the records.
        """
        path, state = self.directory / "cache" / "observations.parquet", self.state
        if (cached := cache.read_observations(path, state)) is not None:
            return cached
        rows, is_settled = self._read()
        observations = frame(rows)
        if is_settled:
            with suppress(StoreError):  # a reader may lack the right, or the room
                cache.write_observations(path, observations, state)
        return observations

    def stream(self, trial_id: str, number: int) -> pd.DataFrame:
        """Return what rank 0 of an attempt reported, in the order it did.

        Returns
        -------
        DataFrame
            One row per report and one column per reported name; ``step`` and
            ``samples`` whole numbers, other numbers ``float64``, NaN where missing.

        Raises
        ------
        StoreError
            If a line other than the last, half-written one is unreadable.
        """
        return Streams(self.directory).one((trial_id, number))

    def streams(self) -> pd.DataFrame:
        """Return the streams of all attempts, with ``trial_id`` and ``attempt``."""
        return Streams(self.directory).all()

    def compact(self) -> None:
        """Gather the streams of all attempts in one Parquet file, for fast reading."""
        Streams(self.directory).compact()
