"""The notes of an answer as facts: a kind and its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any


class Kind(StrEnum):
    """What a note says."""

    FAILURES = "failures"
    INCOMPLETE_SWEEP = "incomplete_sweep"
    ACCEPTED = "accepted"
    PROGRAMS = "programs"
    NOT_SURE_ENOUGH = "not_sure_enough"
    LEARNED_FROM = "learned_from"
    OFF_THE_PRODUCT = "off_the_product"
    WHOLE_RUNS = "whole_runs"
    PRUNED = "pruned"
    CONTRADICTING = "contradicting"
    MORE_CONTRADICTING = "more_contradicting"
    DOUBTED = "doubted"
    MORE_DOUBTED = "more_doubted"
    NO_REPEATS = "no_repeats"
    FEW_READINGS = "few_readings"
    NOT_WITNESSED = "not_witnessed"
    OWN_RATE_DIFFERS = "own_rate_differs"
    TARGET_NOT_REACHED = "target_not_reached"
    TARGET_NOT_MEASURED = "target_not_measured"
    ACCURACY_NOT_MEASURED = "accuracy_not_measured"
    TIMES_CONTAIN = "times_contain"
    ACCURACY_ALIKE = "accuracy_alike"
    ACCUMULATION_NOT_MEASURED = "accumulation_not_measured"
    EXTRAPOLATED = "extrapolated"
    NOT_TRIED = "not_tried"
    CUT_TO_AN_EPOCH = "cut_to_an_epoch"
    NO_EFFICIENCY = "no_efficiency"
    ABOVE_IDEAL_ON_FEWER = "above_ideal_on_fewer"
    ABOVE_IDEAL_ON_MORE = "above_ideal_on_more"
    BATCH_TOO_LARGE = "batch_too_large"
    UNMEASURED_NOT_CHOSEN = "unmeasured_not_chosen"
    CONSIDERED = "considered"
    REPLICAS_NOT_DIVIDED = "replicas_not_divided"
    REPLICAS_NOT_KNOWN = "replicas_not_known"
    BATCH_NOT_SHARED = "batch_not_shared"
    NOT_IDENTIFIABLE = "not_identifiable"
    GROUP_NOT_COMPARED = "group_not_compared"
    IMPORT_DOUBTED = "import_doubted"


class Contents(StrEnum):
    """What the times of an answer are made of."""

    GIVEN = "given"
    STEPS = "steps"
    STEPS_AND_CHECKPOINTS = "steps_and_checkpoints"
    ALL_NO_EVALUATION_SEEN = "all_no_evaluation_seen"
    ALL = "all"


class Part(Enum):
    """Subjects of the sentences of an answer, in the order of the answer."""

    USE = auto()
    SETTINGS = auto()
    TAKES = auto()
    CHANCE = auto()
    FAILED = auto()
    ALTERNATIVES = auto()
    EMULATED = auto()
    KNEE = auto()
    ELSEWHERE = auto()
    PRICE = auto()
    WHY = auto()
    EFFICIENCY = auto()
    ASSUMPTION = auto()
    UNANSWERED = auto()
    NEXT_TRIAL = auto()
    IGNORED = auto()
    SWEEP_COST = auto()


_PARTS = {
    Kind.FAILURES: Part.FAILED,
    Kind.NO_EFFICIENCY: Part.EFFICIENCY,
    Kind.ABOVE_IDEAL_ON_FEWER: Part.EFFICIENCY,
    Kind.ABOVE_IDEAL_ON_MORE: Part.EFFICIENCY,
    Kind.NOT_IDENTIFIABLE: Part.UNANSWERED,
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A note of an answer: what it says, and its names and numbers.

    Units are in the names of the values, as in ``step_time_s``.
    """

    kind: Kind
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def part(self) -> Part:
        """What of the answer the note is about."""
        return _PARTS.get(self.kind, Part.ASSUMPTION)
