"""The signal that asks a rank to end early, SIGTERM, as batch systems send it.

A rank that heeds it saves a checkpoint after the steps it is at, and ends. Whoever sent
it kills the rank if that takes too long.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_has_come = False


def heed_stop_signal() -> None:
    """Note the signal from now on instead of dying of it; for the main thread.

    Processes that are forked later die of it as usual.
    """
    signal.signal(signal.SIGTERM, _note)
    os.register_at_fork(after_in_child=_heed_no_more)


def stop_signal_has_come() -> bool:
    """Tell whether this process was asked to end early."""
    return _has_come


def _heed_no_more() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _note(number: int, frame: FrameType | None) -> None:
    global _has_come
    _has_come = True
