"""The null provisioner, for clusters whose nodes are all there from the start."""

from __future__ import annotations

from scalelab.cluster.batch.queue import QueueEvent
from scalelab.cluster.watch import NodeLeft
from scalelab.records.attempt import AttemptResult, Placement
from scalelab.scheduling.gangs import PartEnded, Verdict


class NullProvisioner:
    """Answers as a provisioner does, and neither submits nor ends any job."""

    deadline_s: float | None = None

    def meet_nodes(self) -> None:
        """Do nothing."""

    def queue_wait_s(self, placement: Placement) -> None:
        """Return no waiting time: there is no queue."""

    def is_exclusive(self, group: str | None) -> None:
        """Return no answer: it is not known who else uses the nodes."""

    def record_success(self, group: str | None) -> None:
        """Count nothing: no job was submitted."""

    def take(self, event: QueueEvent) -> None:
        """Ignore the event: there is no queue."""

    def tick(self, *, is_stopped: bool) -> None:
        """Do nothing."""

    def defer(self, message: NodeLeft | PartEnded) -> bool:
        """Hold back no node loss: no batch system could explain it."""
        return False

    def explain(self, verdict: Verdict) -> AttemptResult:
        """Return the attempt's result as it is."""
        return verdict.result
