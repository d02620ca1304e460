"""The files of a run after something went wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable

from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptFiles, read_result
from scalelab.records.store import RunStore


def check_whole(store: RunStore) -> None:
    """Every file is whole and nothing hidden is left over."""
    for path in store.directory.rglob("*"):
        assert not path.name.startswith("."), path
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix == ".jsonl":
            *lines, rest = path.read_bytes().split(b"\n")
            # A stream ends in half a line where its writer was killed.
            assert rest == b"" or path.name == "stream.jsonl"
            assert all(map(json.loads, lines))


def check_nothing_lost(store: RunStore, finished: Iterable[str]) -> None:
    """Check that the attempts that were said to be finished count."""
    check_whole(store)
    rows = {f"{row['trial_id']}-{row['attempt']}": row for row in store.rows()}
    for attempt_id in finished:
        assert rows[attempt_id]["outcome"] == "completed"
        trial_id, _, number = attempt_id.rpartition("-")
        files = AttemptFiles(store.attempt_directory(trial_id, int(number)))
        result = read_result(files)
        assert result is not None
        assert result.outcome is Outcome.COMPLETED
