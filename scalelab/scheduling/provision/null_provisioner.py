"""What the driver does about nodes where all are there from the start: nothing."""

from __future__ import annotations

from scalelab.cluster.batch.queue import QueueEvent
from scalelab.cluster.watch import NodeLeft
from scalelab.records.attempt import AttemptResult, Placement
from scalelab.scheduling.gangs import PartEnded, Verdict


class NullProvisioner:
    """Stands where nodes are all there from the start."""

    deadline_s: float | None = None

    def meet_nodes(self) -> None:
        """Do nothing."""

    def queue_wait_s(self, placement: Placement) -> None:
        """Know nothing of a queue."""

    def is_exclusive(self, group: str | None) -> None:
        """Know nothing of neighbours."""

    def record_success(self, group: str | None) -> None:
        """Take no notice."""

    def take(self, event: QueueEvent) -> None:
        """Take no notice."""

    def tick(self, *, is_stopped: bool) -> None:
        """Do nothing."""

    def defer(self, message: NodeLeft | PartEnded) -> bool:
        """Hold back nothing."""
        return False

    def explain(self, verdict: Verdict) -> AttemptResult:
        """Return the attempt's result as it is."""
        return verdict.result
