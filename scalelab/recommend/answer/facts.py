"""The notes of an answer as facts: a kind and its values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

# What a note says
Kind = Literal[
    "failures",
    "incomplete_sweep",
    "accepted",
    "asked_job",
    "believed",
    "programs",
    "not_sure_enough",
    "on_the_edge",
    "faster",
    "to_submit_now",
    "learned_from",
    "off_the_product",
    "whole_runs",
    "pruned",
    "contradicting",
    "more_contradicting",
    "doubted",
    "more_doubted",
    "no_repeats",
    "few_readings",
    "not_witnessed",
    "own_rate_differs",
    "target_not_reached",
    "target_not_measured",
    "accuracy_not_measured",
    "times_contain",
    "accuracy_alike",
    "accuracy_gap",
    "ruled_out",
    "accumulation_not_measured",
    "flat",
    "extrapolated",
    "not_tried",
    "cut_to_an_epoch",
    "against_cheapest",
    "efficiency",
    "above_ideal_on_fewer",
    "above_ideal_on_more",
    "batch_too_large",
    "unmeasured_not_chosen",
    "considered",
    "replicas_not_divided",
    "replicas_not_known",
    "batch_not_shared",
    "not_identifiable",
    "group_not_compared",
    "import_doubted",
]
# What the times of an answer are made of
Contents = Literal["given", "steps", "steps_and_checkpoints", "all", "whole_runs"]
# The subjects of notes
NotedPart = Literal[
    "accuracy", "choice", "failed", "efficiency", "assumption", "unanswered"
]
_PARTS: Mapping[Kind, NotedPart] = {
    **dict.fromkeys(("on_the_edge", "faster", "to_submit_now"), "choice"),
    "failures": "failed",
    "accuracy_gap": "accuracy",
    "ruled_out": "accuracy",
    "efficiency": "efficiency",
    "above_ideal_on_fewer": "efficiency",
    "above_ideal_on_more": "efficiency",
    "not_identifiable": "unanswered",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A note of an answer: what it says, and its names and numbers.

    Units are in the names of the values, as in ``step_time_s``.
    """

    kind: Kind
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: Kind, **values: Any) -> Self:
        """Return a note of these values."""
        return cls(kind, values)

    @property
    def part(self) -> NotedPart:
        """What of the answer the note is about."""
        return _PARTS.get(self.kind, "assumption")
