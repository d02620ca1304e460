"""Two timings taken turn by turn, so that both share the machine's noise."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """Seconds of two things, pair by pair."""

    ours_s: list[float]
    peer_s: list[float]

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, pair by pair; below 1 we are faster."""
        return [
            ours / peer for ours, peer in zip(self.ours_s, self.peer_s, strict=True)
        ]

    def line(self, name: str, *, limit: float, inverse: bool = False) -> str:
        """Return one line: both medians, the ratio with its spread, and the limit."""
        ratios = [1 / ratio for ratio in self.ratios] if inverse else self.ratios
        middle, sign = statistics.median(ratios), ">=" if inverse else "<="
        met = middle >= limit if inverse else middle <= limit
        return (
            f"{name}: ours {statistics.median(self.ours_s) * 1e3:.1f} ms, "
            f"peer {statistics.median(self.peer_s) * 1e3:.1f} ms, ratio "
            f"{middle:.2f} [{min(ratios):.2f} to {max(ratios):.2f}, n={len(ratios)}], "
            f"line {sign} {limit:g}: {'met' if met else 'NOT met'}"
        )


def interleave(
    ours: Callable[[], float], peer: Callable[[], float], repeats: int
) -> Comparison:
    """Call both ``repeats`` times in turn; each call returns its own seconds."""
    pairs = [(ours(), peer()) for _ in range(repeats)]
    return Comparison([a for a, _ in pairs], [b for _, b in pairs])
