"""Files that can grow no more."""

import os
from pathlib import Path


def make_full(path: Path) -> None:
    """Create a file of the largest size that its file system holds, all of it a hole.

    What is appended to it is refused, as on a full disk.
    """
    fits, refused = 0, 1 << 63
    path.parent.mkdir(exist_ok=True)
    path.touch()
    while refused - fits > 1:
        size = (fits + refused) // 2
        try:
            os.truncate(path, size)
            fits = size
        except OSError:
            refused = size
    os.truncate(path, fits)
