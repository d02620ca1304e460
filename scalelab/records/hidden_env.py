"""The variables of an experiment in a run's records: hashes for all, values for one.

Who may read the directory of a run sees the names under ``env`` and a salted hash of
each value; the values lie in one file that its user alone may read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalelab.experiment.hidden import is_hidden, is_recorded_as, recorded_as
from scalelab.experiment.program import CommandProgram, Program
from scalelab.inputs.document import with_values
from scalelab.records.attempt_io import decode_json, encode_json, write_atomically
from scalelab.records.plain_files import read_file

_VALUES = "env.json"


def recorded_experiment(
    text: str, fingerprint: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return an experiment's text and fingerprint as records have them.

    Parameters
    ----------
    text, fingerprint
        The experiment as written, and what its numbers depend on.
    before
        The fingerprint that the run has recorded; empty: none. A value that it holds
        openly, as older runs do, stays open.
    """
    env = fingerprint.get("env")
    if not env:
        return text, dict(fingerprint)
    recorded = recorded_as(env, before.get("env") or {})
    hidden = {name: value for name, value in recorded.items() if is_hidden(value)}
    shown = with_values(text, "env", hidden) if hidden else text
    return shown, {**fingerprint, "env": recorded}


def recorded_program(program: Program, fingerprint: Mapping[str, Any]) -> Program:
    """Return a program as records have it, by the fingerprint in the run's header."""
    if isinstance(program, CommandProgram) and (program.env or program.inherited):
        env = recorded_as(program.env, fingerprint.get("env") or {})
        return replace(program, env=env, inherited={})
    return program


def write_values(
    directory: Path, fingerprint: Mapping[str, Any], recorded: Mapping[str, Any]
) -> None:
    """Keep the values that records hide, for the user alone.

    Parameters
    ----------
    directory
        Of the run.
    fingerprint, recorded
        What the numbers depend on, as it is and as records have it.

    Raises
    ------
    StoreError
        If the disk refuses.
    """
    told = recorded.get("env") or {}
    values = {n: fingerprint["env"][n] for n in told if is_hidden(told[n])}
    if values:
        path = directory / _VALUES
        write_atomically(path, encode_json(values), permissions=0o600)


def restored(directory: Path, recorded: Mapping[str, str]) -> dict[str, str]:
    """Return recorded variables with the values that this user may read.

    A value that cannot be read, or is not the one that was hidden, stays hidden.
    """
    if not any(map(is_hidden, recorded.values())):
        return dict(recorded)
    try:
        values = decode_json(read_file(directory / _VALUES))
    except (OSError, ValueError):
        values = {}
    known = values if isinstance(values, dict) else {}
    return {
        name: value
        if isinstance(value := known.get(name), str) and is_recorded_as(value, told)
        else told
        for name, told in recorded.items()
    }
