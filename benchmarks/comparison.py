"""Two timings taken turn by turn, so that both share the machine's noise."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.stats import binom


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


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the median: two order statistics, by the binomial.

    Pairs are taken as independent.
    """
    rank = int(binom.ppf(0.025, len(values), 0.5))
    ordered = sorted(values)
    return ordered[max(rank - 1, 0)], ordered[min(len(values) - rank, len(values) - 1)]


def interleave(
    ours: Callable[[], float], peer: Callable[[], float], repeats: int
) -> Comparison:
    """Call both ``repeats`` times in turn; each call returns its own seconds."""
    pairs = [(ours(), peer()) for _ in range(repeats)]
    return Comparison([a for a, _ in pairs], [b for _, b in pairs])
