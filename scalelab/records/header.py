"""The header of a run: its name, every version of its experiment, and where from."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from scalelab.errors import SchemaError, StoreError
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.records.attempt_io import decode_json, encode_json
from scalelab.records.columns import SCHEMA_VERSION
from scalelab.records.plain_files import harmless_text, read_file

_PACKAGES = (
    "scalelab torch dask distributed dask-jobqueue numpy pandas pyarrow scikit-learn "
    "nvidia-ml-py"
).split()
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_GIT_TIMEOUT_S = 10.0
_EXPERIMENT = re.compile(r"\d{4,}\.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHeader:
    """The content of ``run.json``.

    Parameters
    ----------
    versions
        One mapping per frozen experiment, oldest first: ``experiment`` (file name),
        ``frozen_at`` (UTC), ``meaning`` (the fingerprint), ``site`` where not the
        experiment's own, ``provenance``, and ``superseded``: the attempts that ran
        before the code, the command or the measurement changed.
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
        superseded: Iterable[tuple[str, int]] = (),
    ) -> Self:
        """Return the header with a further version, frozen here and now."""
        version = {
            "experiment": f"{len(self.versions) + 1:04d}.yaml",
            "frozen_at": datetime.now(UTC).isoformat(),
            "meaning": dict(fingerprint),
            "site": site,
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


def read_header(path: Path) -> RunHeader:
    """Read ``run.json``."""
    try:
        values = decode_json(read_file(path), is_compared=True)
        schema_version = int(values["schema_version"])
        name = harmless_text(values["name"])
        header = RunHeader(name=name, versions=tuple(values["versions"]))
        latest = header.versions[-1]
        _ = latest["meaning"], header.superseded
        if not _EXPERIMENT.fullmatch(latest["experiment"]):
            raise ValueError(f"experiment={latest['experiment']!r}")
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        why = "no" if is_absent else f"{error.strerror}:"
        raise StoreError(
            f"{path.parent} is not a run directory ({why} {path.name}). Give the "
            "directory of a run, e.g. runs/NAME."
        ) from error
    except (IndexError, KeyError, TypeError, ValueError) as error:
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
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    variables = (*_VARIABLES, *(each.job_variable for each in BATCH_SYSTEMS))
    return {
        "versions": versions(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": models[0] if models else platform.machine(),
        "cores": affinity(),
        "num_cores": os.cpu_count(),
        "environment": {
            name: os.environ[name] for name in variables if name in os.environ
        },
        "code": None if code_directory is None else git_state(code_directory),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of what is installed, imported or not."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def affinity() -> list[int]:
    """Return the cores this process may run on, sorted."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


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
