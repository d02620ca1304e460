"""A declared slow store: what reading takes there, waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scalelab.errors import SpecError

_SHORTEST_SLEEP_S = 0.001
_DECLARED = ("open_s", "bytes_per_s")


def _sleep(seconds: float) -> None:
    if seconds > _SHORTEST_SLEEP_S:  # a shorter sleep would take longer
        time.sleep(seconds)


@dataclass(kw_only=True, slots=True)
class DeclaredStore:
    """A store whose every connection has a declared speed.

    A process that reads has a connection of its own, so two of them wait half as long
    for the same files.

    Parameters
    ----------
    bytes_per_s
        Bytes per second of a connection; None: as fast as they are read.
    now, sleep
        The time of this host in seconds, and how to wait for it.
    """

    open_s: float = 0.0
    bytes_per_s: float | None = None
    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = _sleep
    _free_at: float = 0.0

    def __post_init__(self) -> None:
        if not _is_number(self.open_s) or self.open_s < 0:
            raise SpecError(
                f"store.open_s={self.open_s!r} must be seconds, at least 0.",
                code="not_a_time",
            )
        speed = self.bytes_per_s
        if speed is not None and (not _is_number(speed) or not speed > 0):
            raise SpecError(
                f"store.bytes_per_s={speed!r} must be a number above 0.",
                code="not_a_speed",
            )

    @classmethod
    def of(cls, declared: object) -> DeclaredStore:
        """Return the store that the parameter ``store`` of a workload declares.

        >>> DeclaredStore.of({"open_s": 0.01, "bytes_per_s": 1e6}).seconds(2, 500_000)
        0.52
        """
        if not isinstance(declared, Mapping) or not set(declared) <= set(_DECLARED):
            raise SpecError(
                f"store={declared!r} must be declared by {' and '.join(_DECLARED)}. "
                "Write, say, store: {open_s: 0.01, bytes_per_s: 1.0e+7}.",
                code="not_a_store",
            )
        return cls(**declared)

    def seconds(self, num_opens: int, num_bytes: int) -> float:
        """Return what one connection takes."""
        transfer_s = num_bytes / self.bytes_per_s if self.bytes_per_s else 0.0
        return num_opens * self.open_s + transfer_s

    def wait(self, num_opens: int, num_bytes: int) -> None:
        """Wait until files are opened and bytes have come."""
        # What a wait ended too early is owed by the next one.
        self._free_at = max(self._free_at, self.now())
        self._free_at += self.seconds(num_opens, num_bytes)
        self.sleep(self._free_at - self.now())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
