"""The records of a run: a reader, and a store for the one driver that writes them.

:mod:`~scalelab.records.layout` lists the files of its directory.

The history is the finished runs in one folder, which answers learn step times from. The
folder is only read. What its runs measured is indexed in one file of the user's cache,
which may be deleted at any time.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from scalelab.errors import StoreError
from scalelab.experiment.fingerprint import ACCEPT
from scalelab.inputs.links import Link
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import opened, parse_json, read_file
from scalelab.inputs.target import Condition
from scalelab.plan.source import Observation
from scalelab.records import cache
from scalelab.records.attempt import (
    AttemptFiles,
    AttemptResult,
    AttemptSpec,
    SpecText,
    encode_json,
    storing,
    write_atomically,
    write_new,
    write_result,
    write_spec,
)
from scalelab.records.cache import own_file, write_cache
from scalelab.records.columns import SCHEMA_VERSION
from scalelab.records.control.lease import LEASE, Lease, read_holder
from scalelab.records.header import (
    RunHeader,
    read_header,
    recorded_experiment,
    recorded_spec,
    restored,
    write_values,
)
from scalelab.records.ledger import (
    AttemptKey,
    Ledger,
    attempt_directory,
    attempts_on_disk,
    discard_halves,
    ended_rows,
    judged,
    last_number,
    measured_meanwhile,
    recover,
)
from scalelab.records.observations import (
    check_row,
    check_types,
    finished_rows,
    frame,
    row,
)
from scalelab.records.streams import Streams, read_lines
from scalelab.records.taken_over import IMPORTED, on_known_devices
from scalelab.site.choice import cache_directory

if TYPE_CHECKING:
    import pandas as pd

_SHARED = ("workload", "device_name")  # what related curves have one of in common


def digest(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the hash of what a run measured, whatever the run is called.

    >>> digest([{"run": "a", "step_time_s": 1.0}])
    'ab0b91d2'
    """
    lines = [encode_json({**row, "run": ""}) for row in rows]
    return sha256(b"\n".join(lines)).hexdigest()[:8]


class HistoryFolder:
    """The finished runs of a folder; one that is being swept is not among them."""

    def __init__(self, directory: str) -> None:
        self._path = cache_directory() / f"history-{digest([{'in': directory}])}.json"
        self._readers: list[RunReader] = []
        self._no_runs: list[str] = []

        for path in sorted(Path(directory).glob("*/run.json")):
            try:
                self._readers.append(RunReader.open(path.parent))
            except StoreError:
                self._no_runs.append(path.parent.name)

        self._readers = [run for run in self._readers if run.driver is None]
        self.state = {
            **dict.fromkeys(self._no_runs),
            **{run.directory.name: run.state for run in self._readers},
        }

    def runs(self, reader: RunReader) -> tuple[dict[str, list[Observation]], list[str]]:
        """Return the rows of runs beside an own one, and names of what is unreadable.

        The rows are by name and hash, in the order of hashes. Runs of other workloads
        on other devices than the own rows' are left out.
        """
        own_directory = reader.directory.resolve()
        if all(run.directory.resolve() == own_directory for run in self._readers):
            return {}, self._no_runs

        index, own_rows = self._index(), reader.rows()
        own_hash, shared = digest(own_rows), _shared(own_rows)
        related = {
            f"{name} ({hashed})": rows
            for hashed, (name, rows) in sorted(index["runs"].items())
            if hashed != own_hash and shared & _shared(rows)
        }
        return related, index["unread"]

    def _index(self) -> Mapping[str, Any]:
        unread = [*self._no_runs]
        index: dict[str, Any] = {"state": self.state, "runs": {}, "unread": unread}
        with suppress(OSError, ValueError, LookupError, TypeError):
            with own_file(self._path) as file:
                kept = parse_json(file.read(), float, is_compared=True)
            if kept["state"] == self.state:
                return {"runs": dict(kept["runs"]), "unread": list(kept["unread"])}

        for run in self._readers:
            try:
                rows = run.rows()
                index["runs"][digest(rows)] = (run.name, rows)
            except StoreError:
                unread.append(run.directory.name)

        with suppress(StoreError, OSError):  # a reader may lack the right, or the room
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_cache(self._path, json.dumps(index).encode())

        return index


def _shared(rows: Sequence[Observation]) -> set[tuple[str, Any]]:
    named = {(name, row.get(name)) for row in rows for name in _SHARED}
    return {named_folder for named_folder in named if named_folder[1] is not None}


_ADAPTER = re.compile(rb"NCCL INFO NET/IB: \[\d+\] (\S+) [^\n]*?\bspeed=(\d{1,9})\b")
_LATEST, _HEAD_BYTES = 5, 1 << 20  # attempts to look at, and bytes of each log


def logged_link(trials: Path) -> Link | None:
    """Return the link between nodes that the log of a late attempt names.

    With NCCL_DEBUG=INFO, NCCL names the network adapters that it would use and how many
    Mbit/s each has, also where all ranks are on one node::

        NCCL INFO NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=200000 ...

    An exchange is spread over all of them. Interfaces without RDMA are named without
    speed.
    """
    ages = {}
    with suppress(OSError, StoreError):
        for _, files in attempts_on_disk(trials):
            ages[files] = -files.directory.stat().st_mtime_ns

    for files in sorted(ages, key=lambda files: ages[files])[:_LATEST]:
        log = files.log(0)
        with suppress(OSError), opened(log, below=trials.parent) as file:
            adapters = dict(_ADAPTER.findall(file.read(_HEAD_BYTES)))
            if adapters and (mbit_per_s := sum(map(int, adapters.values()))):
                return Link(
                    bandwidth_bytes_per_s=mbit_per_s * 1e6 / 8, said_by="NCCL's log"
                )

    return None


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
    def source(self) -> Mapping[str, Any]:
        """The ``file`` that was read; empty where an older ScaleLab wrote the run.

        Of an imported table also the ``arguments`` of the import.
        """
        source: Mapping[str, Any] = self._header.versions[-1].get("source", {})
        return source

    @property
    def experiment_text(self) -> str:
        """The experiment in its latest version, as written but for hidden values."""
        path = self.directory / "experiments" / self._header.versions[-1]["experiment"]
        try:
            return read_file(path, below=self.directory).decode(errors="replace")
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
    def logged_link(self) -> Link | None:
        """The link between nodes, if a trial's own log names it."""
        return logged_link(self._trials)

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
        marked = [*judged(rows, self._header.superseded, self.conditions)]
        return [*on_known_devices(imported, marked), *marked], is_settled

    def finished(
        self, rows: Sequence[Observation], *, retry_failed: bool = False
    ) -> list[Observation]:
        """Return those of :meth:`rows` whose trials need not run again.

        A trial whose files were removed has to, as :func:`.ledger.recover` has it; the
        rows of a table never had any.
        """
        return finished_rows(
            (
                row
                for row in rows
                if row["kind"] == IMPORTED
                or self.attempt_directory(row["trial_id"], row["attempt"]).is_dir()
            ),
            self._header.superseded,
            retry_failed=retry_failed,
        )

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

    def streams(self, *, skips_unreadable: bool = False) -> pd.DataFrame:
        """Return the streams of all attempts, with ``trial_id`` and ``attempt``.

        One that cannot be read is an error, unless it is to be skipped.
        """
        return Streams(self.directory).all(skips_unreadable=skips_unreadable)


class RunStore(RunReader):
    """The records of one run, for reading and writing.

    Writing is for one thread of one driver, which has the run open, see
    :class:`scalelab.records.open_run.OpenRun`. Made by :meth:`create` and :meth:`open`.
    """

    def __init__(self, directory: Path, header: RunHeader) -> None:
        super().__init__(directory, header)
        self._lease: Lease | None = None
        self._outcomes: dict[AttemptKey, Outcome] = {}

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        experiment_text: str,
        fingerprint: Mapping[str, Any],
        site: str | None = None,
        code_directory: Path | None = None,
        source: Mapping[str, Any] = MappingProxyType({}),
        imported: Sequence[Observation] = (),
    ) -> Self:
        """Make the directory of a new run, whole or not at all."""
        directory = directory.absolute()
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise StoreError(
                f"{directory} exists already. Choose another name for the run, or "
                "continue it with the command that started it."
            )

        text, recorded = recorded_experiment(experiment_text, fingerprint, {})
        header = RunHeader(name=directory.name).extended(
            recorded, site, code_directory, source
        )

        making = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}")
        with storing(directory):
            discard_halves(
                directory.parent, directory.parent, directory.name, may_be_written=True
            )
            try:
                (making / "experiments").mkdir(parents=True)
                write_new(making / "experiments" / "0001.yaml", text.encode())
                write_values(making, fingerprint, recorded)
                if imported:
                    write_new(making / "imported.jsonl", _lines(imported), durable=True)
                write_new(making / "run.json", header.encode(), durable=True)
                making.rename(directory)
            except (OSError, StoreError):
                shutil.rmtree(making, ignore_errors=True)
                raise

        return cls(directory, header)

    def extend(
        self,
        experiment_text: str,
        fingerprint: Mapping[str, Any],
        *,
        site: str | None = None,
        source: Mapping[str, Any] = MappingProxyType({}),
        supersedes: bool = False,
    ) -> None:
        """Record a further version of the experiment, if it differs from the latest.

        Where it ``supersedes`` one whose numbers cannot be compared, all attempts until
        now carry ``code_changed`` in their validity, and their trials run again.
        """
        self._fence()
        before = self.fingerprint

        text, recorded = recorded_experiment(experiment_text, fingerprint, before)
        if (text, recorded, site) == (self.experiment_text, before, self.site):
            return

        ended = self.rows() if supersedes else []
        attempts = [(row["trial_id"], row["attempt"]) for row in ended]
        header = self._header.extended(
            recorded, site, source=source, superseded=attempts
        )
        experiment = self.directory / "experiments" / header.versions[-1]["experiment"]
        write_atomically(experiment, text.encode(), below=self.directory)
        write_values(self.directory, fingerprint, recorded)
        write_atomically(self.directory / "run.json", header.encode())
        self._header = header

    def take_over(self, rows: Sequence[Observation]) -> None:
        """Keep rows of another run, once; see :mod:`~scalelab.records.taken_over`."""
        self._fence()
        if rows and not self._imported_path.exists():
            write_atomically(self._imported_path, _lines(rows))

    @contextmanager
    def lease(self, **timing: float) -> Iterator[Lease]:
        """Hold the run as its one driver; ``timing`` goes to :class:`Lease`."""
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

    def begin(self, spec: AttemptSpec) -> SpecText:
        """Record that an attempt is about to start; not flushed to the disk."""
        self._fence()
        key = (spec.trial.trial_id, spec.number)
        files = AttemptFiles(self.attempt_directory(*key))

        content = recorded = encode_json(spec.to_json())
        if (shown := recorded_spec(spec, self.fingerprint)) is not spec:
            recorded = encode_json(shown.to_json())

        write_spec(files, recorded)
        try:
            self._ledger.append_begin(key)
        except StoreError:
            shutil.rmtree(files.directory, ignore_errors=True)
            raise

        return SpecText(content.decode())

    def finish(
        self, spec: AttemptSpec, result: AttemptResult, *, replace: bool = False
    ) -> Observation:
        """Record how an attempt ended, in the ledger and in its directory alike.

        On the common path, one node and something measured, the result that the node
        wrote is neither read nor written again. Otherwise ``result`` counts, the
        driver's verdict over all nodes; but where it declares a loss (a node that
        vanished) and a measurement has been written meanwhile, that counts, unless
        ``replace`` says that ``result`` does.
        """
        self._fence()
        spec = recorded_spec(spec, self.fingerprint)
        key = (spec.trial.trial_id, spec.number)
        files = AttemptFiles(self.attempt_directory(*key))
        counts = None if replace else measured_meanwhile(files, result)
        observation = row(spec, counts or result)

        if counts is None:
            is_local = spec.trial.allocation.num_nodes == 1
            stands = is_local and result.outcome.is_measurement
            write_result(files, result, replace=replace or not stands)

        self._ledger.append_end(observation)
        self._outcomes[key] = Outcome(observation["outcome"])
        return observation

    def outcomes(self, trial_id: str) -> Counter[Outcome]:
        """Count the outcomes of a trial's attempts, of earlier sweeps after recover."""
        return Counter(
            outcome
            for (ended_id, _), outcome in self._outcomes.items()
            if ended_id == trial_id
        )

    def recover(self) -> list[Observation]:
        """Reconcile the records that an earlier driver left, before the first attempt.

        Attempts without a result end as ``node_fail``, those with one count even where
        the ledger does not know it, and a ledger that is torn, damaged or gone is
        rebuilt from the attempt directories. An attempt whose directory was deleted is
        forgotten. Returns a row per attempt.
        """
        self._fence()
        rows = recover(self._ledger, self._trials)
        for observation in rows:
            key = (observation["trial_id"], observation["attempt"])
            self._outcomes[key] = Outcome(observation["outcome"])
        return rows

    def compact(self) -> list[str]:
        """Gather the streams of all attempts in one Parquet file, for fast reading."""
        return Streams(self.directory).compact()


def _lines(rows: Sequence[Observation]) -> bytes:
    return b"".join(encode_json(row) + b"\n" for row in rows)
