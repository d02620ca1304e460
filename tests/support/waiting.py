"""Waits for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 100.0
LONGEST_PAUSE_S = 0.5


def wait_until(
    condition: Callable[[], Any],
    what: str,
    within_s: float = DEADLINE_S,
    *,
    said: Callable[[], str] = str,
) -> Any:
    """Return the condition's value as soon as it is true.

    Parameters
    ----------
    condition
        Looked at again and again, but hardly more than a tenth of the time.
    what
        Waited for, in words.
    within_s
        How long.
    said
        What else to show if it was in vain.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        looked_s = time.monotonic()
        if value := condition():
            return value
        now_s = time.monotonic()
        assert now_s < deadline_s, f"not within {within_s:g} s: {what}\n{said()}"
        time.sleep(min(max(0.01, 9 * (now_s - looked_s)), LONGEST_PAUSE_S))
