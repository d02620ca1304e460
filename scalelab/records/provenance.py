"""The provenance of a run: host, software versions and code state."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from scalelab.kinds.batch_systems import BATCH_SYSTEMS

_PACKAGES = (
    "scalelab torch dask distributed dask-jobqueue numpy pandas pyarrow scikit-learn "
    "nvidia-ml-py"
).split()
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_GIT_TIMEOUT_S = 10.0

ENGINE_REVISION = 2
"""Revision of the trainer's engines, stored among the versions of a result."""
SUPERSEDED_ENGINE = "superseded_engine"
FIRST_WITHOUT_MEETINGS = 2
"""The first revision whose asynchronous workers do not wait for each other."""


def provenance(code_directory: Path | None = None) -> dict[str, Any]:
    """Return versions, host, threads and code state as plain JSON values."""
    return {
        "versions": versions(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": affinity(),
        "num_cores": os.cpu_count(),
        "environment": {
            name: os.environ[name]
            for name in (*_VARIABLES, *(each.job_variable for each in BATCH_SYSTEMS))
            if name in os.environ
        },
        "code": None if code_directory is None else git_state(code_directory),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of what is installed, imported or not."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
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


def _processor() -> str:
    """Return the model of the processor, or at least its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return models[0] if models else platform.machine()


def with_engine_mark(values: dict[str, Any]) -> dict[str, Any]:
    """Mark what an engine measured that let asynchronous workers wait for each other.

    Only the trainer's own servers tell how stale messages were.
    """
    is_served = values.get("staleness_mean") is not None
    reasons = values.get("validity") or []
    if (
        not is_served
        or values.get("kind") == "imported"
        or _engine_revision(values.get("versions")) >= FIRST_WITHOUT_MEETINGS
        or not isinstance(reasons, list)
        or SUPERSEDED_ENGINE in reasons
    ):
        return values
    return {**values, "validity": [*reasons, SUPERSEDED_ENGINE]}


def _engine_revision(versions: Any) -> int:
    """Return the revision that a result names; results of the first name none."""
    try:
        revision = json.loads(versions)["engines"]
    except (KeyError, TypeError, ValueError):
        return 1
    return revision if type(revision) is int else 1
