"""The history: finished runs in one folder, which answers learn step times from.

The folder is only read. What its runs measured is indexed in one file of the user's
cache, which may be deleted at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from scalelab.errors import StoreError
from scalelab.inputs.wording import Option
from scalelab.plan.source import Observation
from scalelab.records.attempt_io import encode_json
from scalelab.records.cache import own_file, write_cache
from scalelab.records.plain_files import parse_json
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
        paths = sorted(Path(directory).glob("*/run.json"))
        try:
            found = [RunReader.open(path.parent) for path in paths]
            self._readers = [run for run in found if run.driver is None]
            self.state = {run.directory.name: run.state for run in self._readers}
        except StoreError as error:
            raise StoreError(
                f"The history {directory} cannot be read: {error} Or ask with "
                f"{Option('no_history', True)}."
            ) from error

    def runs(self, own: Sequence[Observation]) -> dict[str, list[Observation]]:
        """Return the rows of other runs by name and hash, in the order of hashes.

        Runs of other workloads on other devices than the own rows' are left out.
        """
        shared = _shared(own)
        return {
            f"{name} ({of})": rows
            for of, (name, rows) in sorted(self._index().items())
            if of != digest(own) and shared & _shared(rows)
        }

    def _index(self) -> Mapping[str, Any]:
        with suppress(OSError, ValueError, LookupError, TypeError):
            with own_file(self._path) as file:
                kept = parse_json(file.read(), float, is_compared=True)
            if kept["state"] == self.state:
                return dict(kept["runs"])
        rows = [(run.name, run.rows()) for run in self._readers]
        runs = {digest(each): (name, each) for name, each in rows}
        content = json.dumps({"state": self.state, "runs": runs}).encode()
        with suppress(StoreError, OSError):  # a reader may lack the right, or the room
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_cache(self._path, content)
        return runs


def _shared(rows: Sequence[Observation]) -> set[tuple[str, Any]]:
    named = {(name, row.get(name)) for row in rows for name in _SHARED}
    return {each for each in named if each[1] is not None}
