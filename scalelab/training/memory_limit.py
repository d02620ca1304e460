"""A memory limit for CPU ranks, to try memory limits without a GPU."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# What torch says when the CPU allocator gets nothing; it has no class of its own.
_ALLOCATION_FAILURES = (
    "can't allocate memory",
    "not enough memory",
    "could not allocate memory",
    "std::bad_alloc",
)


@contextmanager
def memory_limit(limit_bytes: int | None) -> Iterator[None]:
    """Limit the further memory that this process may allocate during the block.

    The limit plays the part of a device's memory: what the process holds on entry
    (Python, torch, the loaded libraries) is not counted, what it allocates afterwards
    (model, gradients, activations) is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes is not None:
        held = _status_bytes("VmData")
        resource.setrlimit(resource.RLIMIT_DATA, (held + limit_bytes, hard))

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        words = str(error).lower()
        is_full = any(sign in words for sign in _ALLOCATION_FAILURES)

        is_lack = isinstance(error, MemoryError) or is_full
        if isinstance(error, torch.OutOfMemoryError) or not is_lack:
            raise
        if limit_bytes is None:
            raise MemoryError(str(error)) from error

        raise torch.OutOfMemoryError(
            f"memory_limit_bytes={limit_bytes} reached: {error}"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def peak_resident_bytes() -> int:
    """Return the peak physical memory of this process."""
    return _status_bytes("VmHWM")


def resident_bytes() -> int:
    """Return the physical memory of this process."""
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")
