"""The subject of an answer: its observations, and the words for their devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import counted, device_words
from scalelab.inputs.wording import Option

NODE_GROUP = "node_group"
_ONE_VALUE = (
    "workload",
    "sequence_length",
    "dataset",
    "device_type",
    NODE_GROUP,
    "device_name",
    "emulated",
)
_MAX_LISTED = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedCurves:
    """Observations of one workload on one kind of device."""

    frame: pd.DataFrame
    # ``frame`` and the observations of the other node groups: how many samples training
    # needs does not depend on the node group
    every_group: pd.DataFrame
    workload: str
    device_name: str
    node_group: str
    device_word: str
    device_hour_word: str
    is_emulated: bool

    @property
    def num_pruned(self) -> int:
        """Attempts that were ended early by the source of trials."""
        if "outcome" not in self.frame.columns:
            return 0
        return int(self.frame["outcome"].eq("pruned").sum())


def choose_subject(
    observations: pd.DataFrame, select: Mapping[str, Scalar]
) -> AskedCurves:
    """Choose the observations of one workload on one kind of device."""
    every_group = observations
    for name, value in select.items():
        if name != NODE_GROUP:
            every_group = _with_value(every_group, name, value)
    frame = every_group
    if NODE_GROUP in select:
        frame = _with_value(frame, NODE_GROUP, select[NODE_GROUP])
    for name in _ONE_VALUE:
        counts = _counts(frame, name)
        unnamed = len(frame) - sum(counts.values())
        # Any other column may be missing in trials that failed early.
        if name == "workload" and counts and unnamed:
            counts["none"] = unnamed
        if len(counts) > 1:
            rows = [f"{value} ({counted(counts[value], 'row')})" for value in counts]
            more = len(counts) - _MAX_LISTED
            raise SpecError(
                f"The observations mix {len(counts)} values of {name}: "
                f"{', '.join(rows[:_MAX_LISTED])}"
                f"{f' and {more} more' if more > 0 else ''}. One answer is about one "
                "of them.",
                f"Choose it with {Option('select', 'VALUE', key=name)}.",
            )
    is_emulated = _only(frame, "emulated") == "True"
    words = device_words(_only(frame, "device_type"), is_emulated=is_emulated)
    return AskedCurves(
        frame=frame,
        every_group=every_group,
        workload=_only(frame, "workload"),
        device_name=_only(frame, "device_name"),
        node_group=_only(frame, NODE_GROUP),
        device_word=words.device,
        device_hour_word=words.hour,
        is_emulated=is_emulated,
    )


def _with_value(frame: pd.DataFrame, name: str, value: Scalar) -> pd.DataFrame:
    if name not in frame.columns:
        raise SpecError(
            f"{name!r} is no column of the observations, so nothing can be selected by "
            "it. Select by workload, device_name, precision, world_size, ..."
        )
    counts = _counts(frame, name)
    if str(value) not in counts:
        listed = ", ".join(list(counts)[:_MAX_LISTED]) or "none"
        raise SpecError(f"No observation has {name}={value}. Measured: {listed}.")
    matches = frame[name].astype("string").fillna("") == str(value)
    return frame[matches.to_numpy(bool)]


def _counts(frame: pd.DataFrame, name: str) -> dict[str, int]:
    if name not in frame.columns:
        return {}
    counts = frame[name].dropna().astype("string").value_counts()
    return {str(value): int(count) for value, count in counts.items()}


def _only(frame: pd.DataFrame, name: str) -> str:
    return next(iter(_counts(frame, name)), "")
