"""Search for the largest local batch that fits, by doubling and bisection."""

from __future__ import annotations


class LargestFit:
    """Search for the largest size that fits, by ask and tell.

    Sizes double from ``granularity`` until one does not fit or the limit is reached,
    then the gap is halved down to ``granularity``; below it, down to 1. What fits is
    taken to be monotone: where answers contradict, the smallest failure counts.

    Examples
    --------
    >>> search = LargestFit(at_most=4096, granularity=8)
    >>> while (size := search.ask()) is not None:
    ...     search.tell(size, fits=size <= 100)
    >>> search.largest
    96
    """

    def __init__(self, *, at_most: int, granularity: int = 8) -> None:
        self._granularity = min(granularity, at_most)
        self._at_most = at_most // self._granularity * self._granularity
        self._fitting: set[int] = set()
        self._failing: set[int] = set()

    def ask(self) -> int | None:
        """Return the next size to try, or None when the answer is known."""
        low, high = self.largest or 0, min(self._failing, default=None)
        if high is None:
            return self._doubled(low)
        step = self._granularity if low >= self._granularity else 1
        if high - low <= step:
            return None
        if low == 0:
            return max(1, high // 2)
        return low + (high - low) // (2 * step) * step

    def tell(self, size: int, *, fits: bool) -> None:
        """Record whether a size fits."""
        (self._fitting if fits else self._failing).add(size)

    @property
    def largest(self) -> int | None:
        """Largest size known to fit; None: none so far."""
        failing = min(self._failing, default=self._at_most + 1)
        return max((size for size in self._fitting if size < failing), default=None)

    def _doubled(self, low: int) -> int | None:
        size = min(max(2 * low, self._granularity), self._at_most)
        return size if size > low else None
