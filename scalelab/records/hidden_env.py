"""The variables of an experiment in a run's records: hashes for all, values for one.

Who may read the directory of a run sees the names under ``env`` and a salted hash of
each value; the values lie in one file that its user alone may read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalelab.experiment.fingerprint import of_programs, program_key
from scalelab.experiment.hidden import is_hidden, is_recorded_as, recorded_as
from scalelab.experiment.program import CommandProgram, Program
from scalelab.inputs.document import with_values
from scalelab.records.attempt import AttemptSpec
from scalelab.records.attempt_io import decode_json, encode_json, write_atomically
from scalelab.records.plain_files import read_file

_VALUES = "env.json"


def recorded_experiment(
    text: str, fingerprint: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return an experiment's text and fingerprint as records have them."""
    # Trials of programs that stand in it no more are still in the run.
    recorded = {**of_programs(before), **fingerprint}
    for path, key in _places(fingerprint):
        told = recorded_as(_env(fingerprint, key), _env(before, key))
        hidden = {name: value for name, value in told.items() if is_hidden(value)}
        if hidden:
            text = with_values(text, path, hidden)
        if told:
            own = {"env": told}
            recorded |= own if key is None else {key: {**fingerprint[key], **own}}
    return text, recorded


def recorded_program(spec: AttemptSpec, fingerprint: Mapping[str, Any]) -> Program:
    """Return an attempt's program as records have it, by the run's fingerprint."""
    program, name = spec.program, spec.trial.program
    if isinstance(program, CommandProgram) and (program.env or program.inherited):
        own = _env(fingerprint, program_key(name)) if name else {}
        env = recorded_as(program.env, {**_env(fingerprint, None), **own})
        return replace(program, env=env, inherited={})
    return program


def write_values(
    directory: Path, fingerprint: Mapping[str, Any], recorded: Mapping[str, Any]
) -> None:
    """Keep the values that records hide, for the user alone."""
    values: dict[str, Any] = {}
    for _, key in _places(fingerprint):
        told, env = _env(recorded, key), _env(fingerprint, key)
        hidden = {name: env[name] for name in told if is_hidden(told[name])}
        values |= hidden if key is None else {key: hidden} if hidden else {}
    if values:
        path = directory / _VALUES
        write_atomically(path, encode_json(values), permissions=0o600)


def restored(
    directory: Path, fingerprint: Mapping[str, Any], program: str | None = None
) -> dict[str, str]:
    """Return recorded variables with the values that this user may read.

    A value that cannot be read, or is not the one that was hidden, stays hidden.
    """
    key = program_key(program) if program else None
    recorded = _env(fingerprint, key)
    if not any(map(is_hidden, recorded.values())):
        return dict(recorded)
    try:
        values = decode_json(read_file(directory / _VALUES))
    except (OSError, ValueError):
        values = {}
    if key is not None:
        values = values.get(key) if isinstance(values, dict) else {}
    known = values if isinstance(values, dict) else {}
    return {
        name: value
        if isinstance(value := known.get(name), str) and is_recorded_as(value, told)
        else told
        for name, told in recorded.items()
    }


def _places(
    fingerprint: Mapping[str, Any],
) -> Iterator[tuple[tuple[str | int, ...], str | None]]:
    """Yield where variables stand in the text of an experiment, and the key of theirs.

    The key is that of one of several programs in the fingerprint; None: they are of
    all.
    """
    yield ("env",), None
    for position, key in enumerate(of_programs(fingerprint)):
        yield ("program", position, "env"), key


def _env(fingerprint: Mapping[str, Any], key: str | None) -> Mapping[str, str]:
    holder = fingerprint if key is None else fingerprint.get(key) or {}
    return holder.get("env") or {}
