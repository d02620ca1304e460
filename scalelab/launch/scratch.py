"""Directories on a local disk that go with the process that made them.

A process that is killed leaves its own behind; the next one of the user on the host
removes it. Each holds a file that says whose it is.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from scalelab.records.attempt_io import encode_json, storing, write_new
from scalelab.records.lease import has_ended, this_process

_PREFIX, _OWNER = "scalelab-", "owner.json"


def make_scratch() -> Path:
    """Return a new directory for this process, and remove what killed ones left.

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
        write_new(scratch / _OWNER, encode_json(this_process()))
    return scratch


def _is_left(owner: Path) -> bool:
    """Tell whether a directory is this user's, of a process that was on this host."""
    try:
        if owner.parent.lstat().st_uid != os.getuid():
            return False
        return has_ended(json.loads(owner.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False  # being written, being removed, or not one of these
