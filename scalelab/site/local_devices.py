"""The cores and GPUs that this process may use, without loading torch or CUDA."""

from __future__ import annotations

import os
from pathlib import Path


def num_cores() -> int:
    """Return the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_visible_gpus() -> int:
    """Return the NVIDIA GPUs this process may use, without loading CUDA.

    ``CUDA_VISIBLE_DEVICES`` is obeyed; otherwise the device files count.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = [p for p in Path("/dev").glob("nvidia*") if p.name[6:].isdigit()]
    if visible is None or not present:
        return len(present)
    # As CUDA reads the list: it ends at the first entry that is no device.
    listed = [entry.strip() for entry in visible.split(",")]
    end = next(
        (i for i, entry in enumerate(listed) if entry in ("", "-1")), len(listed)
    )
    return len(listed[:end])
