"""The history: finished runs in one folder, which answers learn step times from.

The folder is only read. What its runs measured is indexed in one file of the user's
cache, which may be deleted at any time.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from scalelab.errors import StoreError
from scalelab.inputs.plain_files import parse_json
from scalelab.plan.source import Observation
from scalelab.records.attempt_io import encode_json
from scalelab.records.cache import own_file, write_cache
from scalelab.records.store import RunReader
from scalelab.site.choice import cache_directory

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
