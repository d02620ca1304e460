"""The silence of nodes: how long each has sent no heartbeat to the driver."""

from __future__ import annotations

from collections.abc import Mapping

LISTEN_EVERY_S = 1.0
_AT_EASE = 3.0  # times as long between two looks as planned, before they count as late


class Silences:
    """The time since the last heartbeat of each node, on the driver's own clock.

    While the driver itself stands still it hears nobody: that time does not count.
    """

    def __init__(self) -> None:
        self._beats: dict[str, tuple[object, float]] = {}
        self._looked_s: float | None = None

    def update(self, beats: Mapping[str, object], now_s: float) -> dict[str, float]:
        """Return the seconds of silence by node."""
        looked_s = now_s if self._looked_s is None else self._looked_s
        late_s = now_s - looked_s
        missed_s = late_s if late_s > _AT_EASE * LISTEN_EVERY_S else 0.0
        known = {}
        for node, beat in beats.items():
            before, since_s = self._beats.get(node, (None, now_s))
            known[node] = (beat, now_s if beat != before else since_s + missed_s)
        self._beats, self._looked_s = known, now_s
        return {node: now_s - since_s for node, (_, since_s) in known.items()}
