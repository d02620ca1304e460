"""The events that a sweep reports while it runs, and the summary at its end."""

from scalelab.scheduling.events import (
    Event,
    NodeLost,
    NodesStarting,
    NodeUp,
    OnEvent,
    Progress,
    Resumed,
    Stopping,
    TrialEnded,
    TrialStarted,
    Unreadable,
    Waiting,
)
from scalelab.scheduling.summary import FailedTrial, SweepSummary, Unfinished

__all__ = [
    "Event",
    "FailedTrial",
    "NodeLost",
    "NodeUp",
    "NodesStarting",
    "OnEvent",
    "Progress",
    "Resumed",
    "Stopping",
    "SweepSummary",
    "TrialEnded",
    "TrialStarted",
    "Unfinished",
    "Unreadable",
    "Waiting",
]
