"""Files of a run directory, which may be somebody else's: read as data and no more.

A link is not followed, a pipe or a device is not waited for, and what is too large for
what it should be is not read.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 4 * 2**30


def opened(path: Path, most_bytes: float = MOST_BYTES) -> BinaryIO:
    """Open a regular file to read it.

    Raises
    ------
    OSError
        If it cannot be opened, is a link or no regular file, or has more bytes.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from error
        raise
    file = os.fdopen(descriptor, "rb")
    status = os.fstat(descriptor)
    why = ""
    if not stat.S_ISREG(status.st_mode):
        why = "it is no regular file"
    elif status.st_size > most_bytes:
        why = f"it has more than {most_bytes:,} bytes"
    if why:
        file.close()
        raise OSError(errno.EINVAL, why, str(path))
    return file


def read_file(path: Path) -> bytes:
    """Read a regular file; raises as :func:`opened`."""
    with opened(path) as file:
        return file.read()
