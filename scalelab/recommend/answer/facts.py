"""The notes of an answer as facts: a kind and its values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from scalelab.experiment.trial import PROGRAM

# What the times of an answer are made of
Contents = Literal["given", "steps", "steps_and_checkpoints", "all", "whole_runs"]
# Why the runner-up is not chosen; ``compared``: no single reason, the figures say it
WhyNot = Literal[
    "batch_too_large",
    "not_measured_here",
    "not_accepted",
    "unlikely",
    "slower",
    "pays_too_little",
    "not_measured",
    "more_pay",
    "takes_more",
    "compared",
]
# The subjects of notes
NotedPart = Literal[
    "unmet",
    "machine",
    "batches",
    "nearest",
    "why_not",
    "rests_on",
    "next_step",
    "accuracy",
    "choice",
    "failed",
    "granting",
    "spot",
    "electricity",
    "chained",
    "campaign",
    "queue",
    "efficiency",
    "ideal",
    "rates",
    "assumption",
    "unanswered",
]
_PARTS: Mapping[str, NotedPart] = {
    **dict.fromkeys(("why_not", "only_count", "programs"), "why_not"),
    "next_step": "next_step",
    **dict.fromkeys(("step_time", "choice_in_draws", "target_reached"), "rests_on"),
    **dict.fromkeys(("on_the_edge", "faster", "to_submit_now"), "choice"),
    "nothing_measured": "choice",
    "nearest": "nearest",
    "nothing_chosen": "unmet",
    **dict.fromkeys(("busy_machine", "gpu_throttled", "later_differs"), "machine"),
    **dict.fromkeys(("batches_differ", "samples_differ", "another_epoch"), "batches"),
    **dict.fromkeys(("against_devices", "faster_device"), "choice"),
    "worth_granting": "granting",
    "spot_beside": "choice",
    "electricity": "electricity",
    "chained_jobs": "chained",
    "queue_wait": "queue",
    "campaign": "campaign",
    **dict.fromkeys(("spot_pays", "spot_terms", "spot_hangs_on"), "spot"),
    **dict.fromkeys(("spot_history", "spot_never_ends", "spot_not_compared"), "spot"),
    **dict.fromkeys(("failures", "diverged"), "failed"),
    "accuracy_gap": "accuracy",
    "accuracy_elsewhere": "accuracy",
    "ruled_out_elsewhere": "accuracy",
    "ruled_out": "accuracy",
    "missed": "accuracy",
    **dict.fromkeys(("critical_batch", "rates_found"), "rates"),
    "efficiency": "efficiency",
    "efficiency_within": "efficiency",
    **dict.fromkeys(("above_ideal_on_fewer", "above_ideal_on_more"), "ideal"),
    "not_identifiable": "unanswered",
    "link_unknown": "unanswered",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A note of an answer: what it says, and its names and numbers.

    Units are in the names of the values, as in ``step_time_s``.
    """

    kind: str  # one of ``note_words.SENTENCES``
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, **values: Any) -> Self:
        """Return a note of these values."""
        return cls(kind, values)

    @property
    def part(self) -> NotedPart:
        """What of the answer the note is about."""
        is_of_chosen = PROGRAM not in self.values
        return _PARTS.get(self.kind, "assumption") if is_of_chosen else "assumption"
