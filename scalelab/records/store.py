"""A run on disk: one directory per run, one per attempt.

::

    NAME/run.json                       name, schema version, meaning, provenance
    NAME/experiments/0001.yaml, ...     the experiment as written, and its extensions
    NAME/ledger.jsonl                   which attempts began and ended; an index
    NAME/driver.lease                   who runs it now
    NAME/code/<hash>/                   snapshots of the user's code
    NAME/trials/<trial_id>/001/         one attempt: see AttemptFiles
    NAME/imported.jsonl                 rows of a foreign table, instead of trials
    NAME/cache/*.parquet                may be deleted at any time

Nothing in it is unpickled or executed by reading it.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from scalelab.errors import SchemaError, StoreError
from scalelab.experiment.source import Observation
from scalelab.records import cache
from scalelab.records.attempt import AttemptFiles, AttemptResult, AttemptSpec, Outcome
from scalelab.records.attempt_io import (
    decode_json,
    encode_json,
    storing,
    write_atomically,
    write_new,
    write_result,
)
from scalelab.records.columns import SCHEMA_VERSION
from scalelab.records.lease import Lease
from scalelab.records.ledger import AttemptKey, Ledger
from scalelab.records.observations import check_row, counting_rows, frame, row
from scalelab.records.provenance import provenance
from scalelab.records.recovery import attempts_on_disk, glance, last_number, settle
from scalelab.records.streams import Streams, read_lines

if TYPE_CHECKING:
    import pandas as pd


class RunStore:
    """The records of one run.

    Reading needs nothing; writing is for one thread of one driver, which holds
    :meth:`lease` and has called :meth:`recover`. Made by :meth:`create` and
    :meth:`open`.
    """

    def __init__(self, directory: Path, header: Mapping[str, Any]) -> None:
        self.directory = directory
        self._header = header
        self._ledger = Ledger(directory / "ledger.jsonl")
        self._lease: Lease | None = None
        self._outcomes: dict[str, dict[int, Outcome]] = {}

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        experiment_text: str,
        meaning: Mapping[str, Any],
        code_directory: Path | None = None,
    ) -> Self:
        """Make the directory of a new run, whole or not at all.

        Parameters
        ----------
        directory
            The run's directory; its last part is the run's name.
        experiment_text
            The experiment as the user wrote it.
        meaning
            What trials of this run mean, as plain JSON values.
        code_directory
            Where the user's code lies; its git state is recorded.

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
        header = {"schema_version": SCHEMA_VERSION, "name": directory.name}
        header = {**header, "versions": [_version(1, meaning, code_directory)]}
        making = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}")
        with storing(directory):
            try:
                (making / "experiments").mkdir(parents=True)
                write_new(
                    making / "experiments" / "0001.yaml", experiment_text.encode()
                )
                write_new(making / "run.json", encode_json(header), durable=True)
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
        return cls(directory, _read_header(directory / "run.json"))

    @property
    def name(self) -> str:
        """The run's name: that of its directory when it was created."""
        name: str = self._header["name"]
        return name

    @property
    def meaning(self) -> Mapping[str, Any]:
        """What trials of this run mean, in its latest version."""
        meaning: Mapping[str, Any] = self._header["versions"][-1]["meaning"]
        return meaning

    @property
    def experiment_text(self) -> str:
        """The experiment as the user wrote it, in its latest version."""
        path = self._experiment_path(len(self._header["versions"]))
        try:
            return path.read_text()
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read: {error.strerror}. Restore it, or start a "
                "new run."
            ) from error

    def _experiment_path(self, number: int) -> Path:
        return self.directory / "experiments" / f"{number:04d}.yaml"

    def extend(
        self,
        experiment_text: str,
        meaning: Mapping[str, Any],
        *,
        code_directory: Path | None = None,
    ) -> None:
        """Freeze a further version of the experiment, if it differs from the latest.

        Raises
        ------
        StoreError
            If the disk refuses; the run then stays as it was.
        """
        self._fence()
        if experiment_text == self.experiment_text and meaning == self.meaning:
            return
        versions = self._header["versions"]
        number = len(versions) + 1
        version = _version(number, meaning, code_directory)
        header = {**self._header, "versions": [*versions, version]}
        write_atomically(self._experiment_path(number), experiment_text.encode())
        write_atomically(self.directory / "run.json", encode_json(header))
        self._header = header

    @contextmanager
    def lease(self, **timing: float) -> Iterator[Lease]:
        """Hold the run as its one driver; ``timing`` goes to :class:`Lease`.

        Raises
        ------
        LeaseError
            If another living driver holds it.
        """
        with Lease(self.directory / "driver.lease", **timing) as lease:
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
        return last_number(self.directory / "trials" / trial_id) + 1

    def attempt_directory(self, trial_id: str, number: int) -> Path:
        """Return where an attempt's files are, absolute."""
        return self.directory / "trials" / trial_id / f"{number:03d}"

    def begin(self, spec: AttemptSpec) -> None:
        """Record that an attempt is about to start; not flushed to the disk.

        Raises
        ------
        StoreError
            If the attempt was begun before or the disk refuses; nothing is left of it.
        LeaseError
            If another driver has taken the run over.
        """
        self._fence()
        directory = self.attempt_directory(spec.trial.trial_id, spec.number)
        content = encode_json(spec.to_json())
        with storing(directory):
            _make_directory(directory)
            try:
                write_new(AttemptFiles(directory).spec, content)
                self._ledger.append_begin((spec.trial.trial_id, spec.number))
            except (OSError, StoreError):
                shutil.rmtree(directory, ignore_errors=True)
                raise

    def finish(
        self, spec: AttemptSpec, result: AttemptResult, *, replace: bool = False
    ) -> Observation:
        """Record how an attempt ended.

        The result its node wrote stands: it is neither read nor written again if the
        attempt measured something. Where the driver itself declares a loss (a node that
        vanished, a time-out) but a result has been written meanwhile, that one counts.

        Parameters
        ----------
        spec, result
            The attempt and how it ended.
        replace
            ``result`` counts whatever was written before.

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
        if not replace and not result.outcome.is_measurement:
            observation = _written(key, files) or observation
        write_result(files, result, replace=replace)
        self._ledger.append_end(observation)
        self._count(observation)
        return observation

    def _count(self, observation: Observation) -> None:
        attempts = self._outcomes.setdefault(observation["trial_id"], {})
        attempts[observation["attempt"]] = Outcome(observation["outcome"])

    def outcomes(self, trial_id: str) -> Counter[Outcome]:
        """Return how often a trial's attempts ended in each way.

        Those of earlier drivers are known after :meth:`recover`.
        """
        return Counter(self._outcomes.get(trial_id, {}).values())

    def recover(self) -> list[Observation]:
        """Bring in order what an earlier driver left, before the first attempt.

        Attempts without a result end as ``node_fail``, those with one count even where
        the ledger does not know it, and a ledger that is torn, damaged or gone is
        rebuilt from the attempt directories. An attempt whose directory was deleted is
        forgotten.

        Returns
        -------
        list of Observation
            One row per trial that need not run again: that of the attempt that counts.
            A trial whose attempts were only lost (``Outcome.is_retried``) is not among
            them; :meth:`outcomes` tells how often it was tried.

        Raises
        ------
        StoreError
            If the records cannot be read or written.
        SchemaError
            If a newer ScaleLab wrote them.
        """
        self._fence()
        ledger = self._ledger.read()
        on_disk = dict(attempts_on_disk(self.directory / "trials"))
        known = {key: ledger.ended[key] for key in ledger.ended if key in on_disk}
        settled = {
            key: observation
            for key, files in on_disk.items()
            if key not in known and (observation := settle(key, files))
        }
        ended = {**known, **settled}
        if ledger.is_whole and not ledger.is_torn and len(known) == len(ledger.ended):
            for observation in settled.values():
                self._ledger.append_end(observation)
        else:
            begun = {key: ledger.begun[key] for key in ledger.begun if key in on_disk}
            self._ledger.replace(begun, ended)
        for observation in ended.values():
            self._count(observation)
        return [
            observation
            for observation in counting_rows(ended.values())
            if not Outcome(observation["outcome"]).is_retried
        ]

    def running(self) -> tuple[AttemptKey, ...]:
        """Return the attempts (trial id, number) that began and have not ended."""
        ledger = self._ledger.read()
        return tuple(key for key in ledger.begun if key not in ledger.ended)

    def rows(self) -> list[Observation]:
        """Return one row per attempt that has ended, in order of their ends.

        A result that no ledger line mentions yet is among them; nothing is written.
        """
        return self._ended_rows()[0]

    def _ended_rows(self) -> tuple[list[Observation], bool]:
        """Return the rows and whether they change only when the ledger does."""
        imported = read_imported(self.directory / "imported.jsonl")
        ledger = self._ledger.read()
        if ledger.is_whole:
            keys = [key for key in ledger.begun if key not in ledger.ended]
            pending = [(key, self.attempt_directory(*key)) for key in keys]
        else:
            found = attempts_on_disk(self.directory / "trials")
            pending = [
                (key, files.directory)
                for key, files in found
                if key not in ledger.ended
            ]
        glances = [glance(key, AttemptFiles(directory)) for key, directory in pending]
        rows = [*imported, *ledger.ended.values(), *filter(None, glances)]
        return rows, ledger.is_whole and not pending

    def observations(self) -> pd.DataFrame:
        """Return the observations frame: one row per attempt that has ended.

        Returns
        -------
        DataFrame
            See :func:`scalelab.records.observations.frame`.

        Raises
        ------
        SchemaError
            If a newer ScaleLab wrote the records.
        """
        sources = (self.directory / "ledger.jsonl", self.directory / "imported.jsonl")
        state = {"schema_version": SCHEMA_VERSION, **cache.signature(sources)}
        path = self.directory / "cache" / "observations.parquet"
        if (cached := cache.read_observations(path, state)) is not None:
            return cached
        rows, is_settled = self._ended_rows()
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
        """Gather the streams of all attempts in one Parquet file, for fast reading.

        Raises
        ------
        StoreError
            If a stream cannot be read or the disk refuses.
        """
        Streams(self.directory).compact()


def _version(
    number: int, meaning: Mapping[str, Any], code_directory: Path | None
) -> dict[str, Any]:
    return {
        "experiment": f"{number:04d}.yaml",
        "frozen_at": datetime.now(UTC).isoformat(),
        "meaning": dict(meaning),
        "provenance": provenance(code_directory),
    }


def _read_header(path: Path) -> dict[str, Any]:
    try:
        header = decode_json(path.read_bytes())
        version, _ = header["schema_version"], header["versions"][-1]["meaning"]
    except OSError as error:
        raise StoreError(
            f"{path.parent} is no run: {path.name} cannot be read "
            f"({error.strerror}). Give the directory of a run, e.g. runs/NAME."
        ) from error
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path} is not the header of a run ({error!r}). Give the directory of a "
            "run, e.g. runs/NAME, or restore the file."
        ) from error
    if version > SCHEMA_VERSION:
        raise SchemaError(
            f"{path.parent} has schema_version={version}; this ScaleLab reads up to "
            f"{SCHEMA_VERSION}. Install the ScaleLab that wrote it, or a newer one."
        )
    return dict(header)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir()
    except FileNotFoundError:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir()
    except FileExistsError:
        raise StoreError(
            f"{directory} exists: this attempt was begun before. Take the number from "
            "next_attempt_number."
        ) from None


def _written(key: AttemptKey, files: AttemptFiles) -> Observation | None:
    """Return the row of a result that a node wrote; set a torn one aside."""
    return settle(key, files) if files.result.exists() else None


def read_imported(path: Path) -> Sequence[Observation]:
    """Return the rows of an imported table; none where nothing was imported."""
    if not path.exists():
        return []
    return [check_row(values) for values in read_lines(path)]
