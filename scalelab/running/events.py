"""What a sweep tells those who watch it: events while it runs, a summary at its end."""

from scalelab.scheduling.events import (
    Event,
    NodeLost,
    NodeUp,
    OnEvent,
    Progress,
    Resumed,
    Stopping,
    TrialEnded,
    TrialStarted,
    Waiting,
)
from scalelab.scheduling.summary import FailedTrial, SweepSummary, Unfinished

__all__ = [
    "Event",
    "FailedTrial",
    "NodeLost",
    "NodeUp",
    "OnEvent",
    "Progress",
    "Resumed",
    "Stopping",
    "SweepSummary",
    "TrialEnded",
    "TrialStarted",
    "Unfinished",
    "Waiting",
]
