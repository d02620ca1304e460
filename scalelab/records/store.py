"""The store of a run: its records, for the one driver that writes them."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from scalelab.errors import StoreError
from scalelab.inputs.outcome import Outcome
from scalelab.plan.source import Observation
from scalelab.records.attempt import (
    AttemptFiles,
    AttemptResult,
    AttemptSpec,
    SpecText,
)
from scalelab.records.attempt_io import (
    encode_json,
    storing,
    write_atomically,
    write_new,
    write_result,
    write_spec,
)
from scalelab.records.control.lease import LEASE, Lease
from scalelab.records.header import RunHeader
from scalelab.records.hidden_env import (
    recorded_experiment,
    recorded_program,
    write_values,
)
from scalelab.records.ledger import (
    AttemptKey,
    discard_halves,
    last_number,
    measured_meanwhile,
    recover,
)
from scalelab.records.observations import row
from scalelab.records.run_reader import RunReader
from scalelab.records.streams import Streams


class RunStore(RunReader):
    """The records of one run, for reading and writing.

    Writing is for one thread of one driver, which holds :meth:`lease` and has called
    :meth:`recover`. Made by :meth:`create` and :meth:`open`.

    Attributes
    ----------
    earlier_gpu_s
        Device-seconds that earlier sweeps of the run used, once it was recovered.
    """

    def __init__(self, directory: Path, header: RunHeader) -> None:
        super().__init__(directory, header)
        self._lease: Lease | None = None
        self._outcomes: dict[AttemptKey, Outcome] = {}
        self.earlier_gpu_s = 0.0

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
        """Make the directory of a new run, whole or not at all."""
        directory = directory.absolute()
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise StoreError(
                f"{directory} exists already. Choose another name for the run, or "
                "continue it with the command that started it."
            )
        text, recorded = recorded_experiment(experiment_text, fingerprint, {})
        header = RunHeader(name=directory.name).extended(recorded, site, code_directory)
        making = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}")
        with storing(directory):
            discard_halves(directory.parent, directory.name, may_be_written=True)
            try:
                (making / "experiments").mkdir(parents=True)
                write_new(making / "experiments" / "0001.yaml", text.encode())
                write_values(making, fingerprint, recorded)
                if imported:
                    lines = b"".join(encode_json(each) + b"\n" for each in imported)
                    write_new(making / "imported.jsonl", lines, durable=True)
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
        attempts = [(each["trial_id"], each["attempt"]) for each in ended]
        header = self._header.extended(recorded, site, superseded=attempts)
        experiment = self.directory / "experiments" / header.versions[-1]["experiment"]
        write_atomically(experiment, text.encode())
        write_values(self.directory, fingerprint, recorded)
        write_atomically(self.directory / "run.json", header.encode())
        self._header = header

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
        if (shown := self._recorded(spec)) is not spec:
            recorded = encode_json(shown.to_json())
        write_spec(files, recorded)
        try:
            self._ledger.append_begin(key)
        except StoreError:
            shutil.rmtree(files.directory, ignore_errors=True)
            raise
        return SpecText(content.decode())

    def _recorded(self, spec: AttemptSpec) -> AttemptSpec:
        program = recorded_program(spec, self.fingerprint)
        return spec if program is spec.program else replace(spec, program=program)

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
        spec = self._recorded(spec)
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
            outcome for (each, _), outcome in self._outcomes.items() if each == trial_id
        )

    def recover(self, *, retry_failed: bool = False) -> list[Observation]:
        """Reconcile the records that an earlier driver left, before the first attempt.

        Attempts without a result end as ``node_fail``, those with one count even where
        the ledger does not know it, and a ledger that is torn, damaged or gone is
        rebuilt from the attempt directories. An attempt whose directory was deleted is
        forgotten. Returns one row per trial that need not run again; see
        :meth:`finished`.
        """
        self._fence()
        rows = recover(self._ledger, self._trials)
        for each in rows:
            key = (each["trial_id"], each["attempt"])
            self._outcomes[key] = Outcome(each["outcome"])
        self.earlier_gpu_s = sum(each.get("allocated_gpu_s") or 0.0 for each in rows)
        return self.finished(rows, retry_failed=retry_failed)

    def compact(self) -> list[str]:
        """Gather the streams of all attempts in one Parquet file, for fast reading."""
        return Streams(self.directory).compact()
