"""Scratch directories on a local disk, removed when their process has ended.

A killed process leaves its directory behind, and so does a machine that goes down. The
user's next process on the host removes it: a file in each names its process, which
holds a lock on it. A lock tells of processes in other containers of the host, too.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalelab.records.attempt_io import encode_json, storing, write_all
from scalelab.records.control.lease import has_ended, this_process

_PREFIX, _OWNER = "scalelab-", "owner.json"
_MACHINE_ID = Path("/etc/machine-id")


def make_scratch() -> Path:
    """Return a new directory for this process; remove those of processes that ended."""
    disk = Path(tempfile.gettempdir())
    for owner in disk.glob(f"{_PREFIX}*/{_OWNER}"):
        if _is_left(owner):
            shutil.rmtree(owner.parent, ignore_errors=True)
    with storing(disk):
        scratch = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Locked for as long as this process lives: nobody closes it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(scratch / _OWNER, flags, 0o600)
        identity = {**_this_process(), "is_locked": _lock(descriptor)}
        write_all(descriptor, encode_json(identity))
    return scratch


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _is_held(owner: Path) -> bool:
    with owner.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _is_left(owner: Path) -> bool:
    try:
        if owner.parent.lstat().st_uid != os.getuid():
            return False
        process = json.loads(owner.read_bytes())
        if process.get("is_locked") and _ran_under_this_kernel(process):
            return not _is_held(owner)
        return has_ended(process) or _ran_before_boot(process)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False  # being written, being removed, or not one of these


def _this_process() -> dict[str, Any]:
    try:
        machine = _MACHINE_ID.read_text().strip()
    except OSError:
        machine = ""
    return {**this_process(), "machine": machine}


def _ran_under_this_kernel(process: Mapping[str, Any]) -> bool:
    boots = [each["boot"].partition("/")[0] for each in (process, this_process())]
    return bool(boots[0]) and boots[0] == boots[1]


def _ran_before_boot(process: Mapping[str, Any]) -> bool:
    """Tell whether this machine has booted since the process ran on it."""
    here = _this_process()
    boots = {each["boot"].partition("/")[0] for each in (process, here)}
    names = {(each["host"], each["machine"]) for each in (process, here)}
    return len(names) == 1 and len(boots) == 2 and all((here["machine"], *boots))
