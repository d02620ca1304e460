"""Scratch directories on a local disk, removed when their process has ended.

A killed process leaves its directory behind, and so does a machine that goes down. The
user's next process on the host removes it: a file in each names its process, which
holds a lock on it. A lock tells of processes in other containers of the host, too.
"""

import fcntl
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalelab.launch.process_tree import text_of
from scalelab.records.attempt import encode_json, storing, write_all
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
        owner = scratch / _OWNER
        descriptor = os.open(owner, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

        identity = {**_this_process(), "is_locked": False}
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            identity["is_locked"] = True

        write_all(descriptor, encode_json(identity))

    return scratch


def _is_left(owner: Path) -> bool:
    try:
        if owner.parent.lstat().st_uid != os.getuid():
            return False
        process, here = json.loads(owner.read_bytes()), _this_process()
        boot, boot_here = (
            identity["boot"].partition("/")[0] for identity in (process, here)
        )
        # It has run since this machine booted, maybe in another container.
        if process.get("is_locked") and boot_here and boot == boot_here:
            with owner.open("rb") as file, suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            return False

        if has_ended(process):
            return True

        # It ended where this machine has booted since it ran here.
        is_here = all(process[name] == here[name] for name in ("host", "machine"))
        return is_here and boot != boot_here and all((here["machine"], boot, boot_here))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False  # being written, being removed, or not one of these


def _this_process() -> dict[str, Any]:
    # Host names may be shared.
    return {**this_process(), "machine": text_of(_MACHINE_ID).strip()}
