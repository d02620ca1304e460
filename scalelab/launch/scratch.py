"""Scratch directories on a local disk, removed when their process has ended.

A killed process leaves its directory behind, and so does a machine that goes down. The
user's next process on the host removes it: a file in each names its process.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalelab.records.attempt_io import encode_json, storing, write_new
from scalelab.records.control.lease import has_ended, this_process

_PREFIX, _OWNER = "scalelab-", "owner.json"
_MACHINE_ID = Path("/etc/machine-id")


def make_scratch() -> Path:
    """Return a new directory for this process; remove those of processes that ended.

    Raises
    ------
    StoreError
        If the disk refuses.
    """
    disk = Path(tempfile.gettempdir())
    for owner in disk.glob(f"{_PREFIX}*/{_OWNER}"):
        if _is_left(owner):
            shutil.rmtree(owner.parent, ignore_errors=True)
    with storing(disk):
        scratch = Path(tempfile.mkdtemp(prefix=_PREFIX))
        write_new(scratch / _OWNER, encode_json(_this_process()))
    return scratch


def _is_left(owner: Path) -> bool:
    """Tell whether a directory is this user's and its process has ended."""
    try:
        if owner.parent.lstat().st_uid != os.getuid():
            return False
        process = json.loads(owner.read_bytes())
        return has_ended(process) or _ran_before_boot(process)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False  # being written, being removed, or not one of these


def _this_process() -> dict[str, Any]:
    """Return this process's identity with its machine's: host names may be shared."""
    try:
        machine = _MACHINE_ID.read_text().strip()
    except OSError:
        machine = ""
    return {**this_process(), "machine": machine}


def _ran_before_boot(process: Mapping[str, Any]) -> bool:
    """Tell whether this machine has booted since the process ran on it."""
    here = _this_process()
    boots = {each["boot"].partition("/")[0] for each in (process, here)}
    names = {(each["host"], each["machine"]) for each in (process, here)}
    return len(names) == 1 and len(boots) == 2 and all((here["machine"], *boots))
