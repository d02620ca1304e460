"""The header of a run: its name, every version of its experiment, and where from.

Who may read the directory of a run sees the names under ``env`` and a salted hash of
each value; the values lie in one file that its user alone may read.
"""

import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from scalelab.errors import SchemaError, StoreError
from scalelab.experiment.fingerprint import of_programs, program_key
from scalelab.experiment.hidden import is_hidden, is_recorded_as, recorded_as
from scalelab.experiment.program import CommandProgram
from scalelab.inputs.document import with_values
from scalelab.inputs.plain_files import harmless_text, read_file
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.records.attempt import (
    AttemptSpec,
    decode_json,
    encode_json,
    write_atomically,
)
from scalelab.records.columns import SCHEMA_VERSION
from scalelab.site.profile import affinity, cpu_name

_PACKAGES = (
    "scalelab torch dask distributed dask-jobqueue numpy pandas pyarrow scikit-learn "
    "nvidia-ml-py"
).split()
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_GIT_TIMEOUT_S = 10.0
_VALUES = "env.json"
_MAX_NAMED = 8
_EXPERIMENT = re.compile(r"\d{4,}\.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHeader:
    """The content of ``run.json``: the versions of the experiment, oldest first.

    Each has ``experiment`` (file name), ``frozen_at`` (UTC), ``meaning`` (the
    fingerprint), ``site`` where not the experiment's own, ``source`` (the file that was
    read, and how an imported table was), ``provenance``, and ``superseded``: attempts
    that ran before code, command or measurement changed.
    """

    name: str
    versions: tuple[Mapping[str, Any], ...] = ()

    @property
    def superseded(self) -> frozenset[tuple[str, int]]:
        """Attempts that ran before the code, command or measurement changed."""
        return frozenset(
            (trial_id, number)
            for version in self.versions
            for trial_id, number in version.get("superseded", ())
        )

    def extended(
        self,
        fingerprint: Mapping[str, Any],
        site: str | None = None,
        code_directory: Path | None = None,
        source: Mapping[str, Any] = MappingProxyType({}),
        superseded: Iterable[tuple[str, int]] = (),
    ) -> Self:
        """Return the header with a further version, frozen here and now."""
        version = {
            "experiment": f"{len(self.versions) + 1:04d}.yaml",
            "frozen_at": datetime.now(UTC).isoformat(),
            "meaning": dict(fingerprint),
            "site": site,
            "source": dict(source),
            "provenance": provenance(code_directory),
            "superseded": [list(attempt) for attempt in superseded],
        }
        return replace(self, versions=(*self.versions, version))

    def encode(self) -> bytes:
        """Return the content of ``run.json``."""
        return encode_json(
            {
                "schema_version": SCHEMA_VERSION,
                "name": self.name,
                "versions": list(self.versions),
            }
        )


def _runs_near(directory: Path) -> str:
    """Return, for a hint, the runs that lie in a directory, or in ``runs``."""
    folders = (directory, Path("runs"))
    headers = (header for folder in folders for header in folder.glob("*/run.json"))
    found = sorted({os.path.relpath(header.parent) for header in headers})
    found.sort(key=lambda run: Path(run).name != directory.name)
    listed = ", ".join(found[:_MAX_NAMED])
    return f". Runs are {listed}." if found else ", e.g. runs/NAME."


def read_header(path: Path) -> RunHeader:
    """Read ``run.json``."""
    try:
        values = decode_json(read_file(path), is_compared=True)
        schema_version = int(values["schema_version"])
        name = harmless_text(values["name"])
        header = RunHeader(name=name, versions=tuple(values["versions"]))
        latest = header.versions[-1]
        _ = (
            header.superseded,
            [
                "".join(_env(latest["meaning"], key).values())
                for _, key in _places(latest["meaning"])
            ],
        )

        if not _EXPERIMENT.fullmatch(latest["experiment"]):
            raise ValueError(f"experiment={latest['experiment']!r}")
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        why = "no" if is_absent else f"{error.strerror}:"
        raise StoreError(
            f"{path.parent} is not a run directory ({why} {path.name}). Give the "
            f"directory of a run{_runs_near(path.parent)}"
        ) from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path} is not the header of a run ({error!r}). Give the directory of a "
            "run, e.g. runs/NAME, or restore the file."
        ) from error

    if schema_version > SCHEMA_VERSION:
        raise SchemaError(
            f"{path.parent} has schema_version={schema_version}; this ScaleLab reads "
            f"up to {SCHEMA_VERSION}. Install the ScaleLab that wrote it, or a newer "
            "one."
        )
    return header


def provenance(code_directory: Path | None = None) -> dict[str, Any]:
    """Return versions, host, threads and code state as plain JSON values."""
    variables = (*_VARIABLES, *(system.job_variable for system in BATCH_SYSTEMS))
    return {
        "versions": versions(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": cpu_name(),
        "cores": affinity(),
        "num_cores": os.cpu_count(),
        "environment": {
            name: os.environ[name] for name in variables if name in os.environ
        },
        "code": None if code_directory is None else git_state(code_directory),
    }


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of Python and of what is installed, imported or not."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def git_state(directory: Path) -> dict[str, Any] | None:
    """Return the commit of a directory and whether it differs from it."""
    commit = _git(directory, "rev-parse", "HEAD")
    changes = _git(directory, "status", "--porcelain", "--", ".")
    if commit is None or changes is None:
        return None
    return {"commit": commit.strip(), "is_dirty": bool(changes.strip())}


def _git(directory: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def recorded_experiment(
    text: str, fingerprint: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return an experiment's text and fingerprint as records have them."""
    # Trials of programs that stand in it no more are still in the run.
    recorded = {**of_programs(before), **fingerprint}
    for path, key in _places(fingerprint):
        variables = recorded_as(_env(fingerprint, key), _env(before, key))
        hidden = {name: value for name, value in variables.items() if is_hidden(value)}
        if hidden:
            text = with_values(text, path, hidden)

        if variables:
            changes = {"env": variables}
            recorded |= (
                changes if key is None else {key: {**fingerprint[key], **changes}}
            )
    return text, recorded


def recorded_spec(spec: AttemptSpec, fingerprint: Mapping[str, Any]) -> AttemptSpec:
    """Return an attempt as records have it, by the run's fingerprint."""
    program, name = spec.program, spec.trial.program
    if isinstance(program, CommandProgram) and (program.env or program.inherited):
        variables = _env(fingerprint, program_key(name)) if name else {}
        env = recorded_as(program.env, {**_env(fingerprint, None), **variables})
        return replace(spec, program=replace(program, env=env, inherited={}))
    return spec


def write_values(
    directory: Path, fingerprint: Mapping[str, Any], recorded: Mapping[str, Any]
) -> None:
    """Keep the values that records hide, for the user alone."""
    values: dict[str, Any] = {}
    for _, key in _places(fingerprint):
        variables, env = _env(recorded, key), _env(fingerprint, key)
        hidden = {name: env[name] for name in variables if is_hidden(variables[name])}
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
        if isinstance(value := known.get(name), str) and is_recorded_as(value, text)
        else text
        for name, text in recorded.items()
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
