"""What each way to train costs in accuracy, and which ways that rules out."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.inputs.placeholders import LAYOUT_PLACEHOLDERS
from scalelab.inputs.wording import Option
from scalelab.laws.convergence.rows import is_spoilt
from scalelab.laws.rows import CurveKey, curve_label, group_rows, numbers
from scalelab.recommend.answer.evidence import BASELINE
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.evidence import ACCURACY_GAP, with_accuracy_gaps
from scalelab.recommend.question.objective import Constraints
from scalelab.records.columns import OPTION_PREFIX
from scalelab.records.ledger import final_metrics

_PLACE = ["world_size", "global_batch_size"]
_LESS_IS_BETTER = re.compile("loss|err|perplexity|ppl|nll|mse|mae")


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """The ways to train of an answer, as their trained models were evaluated."""

    columns: Collection[str]  # tell ways apart
    # By way, the gap where it loses most; empty where there is no pair of runs
    gaps: dict[CurveKey, Mapping[str, Any]] = field(default_factory=dict)
    # Why a way is ruled out, by way and by the label of its curve
    refused: dict[CurveKey, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        observations: pd.DataFrame,
        curves: Collection[CurveKey],
        limits: Constraints,
    ) -> Self:
        """Read the evaluations of trained models."""
        frame = with_accuracy_gaps(observations[~is_spoilt(observations)])
        found = cls(columns=[name for name in map(str, frame.columns) if _parts(name)])
        evaluated = group_rows(frame, [*found.columns]) if len(frame) else {}
        for key in curves:
            way = found.way(dict(key))
            rows = evaluated.get(way, frame.iloc[:0])
            found.gaps[way] = gap = _largest_loss(rows)
            accepted = numbers(rows, "accepted")
            why = ""
            if limits.accept and not (accepted == 1).any():
                judged = counted(int(np.isfinite(accepted).sum()), "trained model")
                why = f"0 of {judged} accepted"
            elif limits.max_gap is not None and not gap:
                why = "no accuracy gap measured"
            elif limits.max_gap is not None and gap["lost"] > limits.max_gap:
                why = f"{gap['metric']} {gap['mean']:+.3f}"
            if why:
                found.refused[way] = found.reasons[curve_label(key, curves)] = why
        if limits.max_gap is not None and not any(found.gaps.values()):
            raise SpecError(
                f"{Option('max_gap', limits.max_gap)} needs a measured accuracy gap: "
                f"the final metric of a run minus that of {BASELINE}.",
                "Add end-to-end trials without a target, on one device and on several.",
            )
        return found

    def way(self, config: Mapping[Any, Any]) -> CurveKey:
        """Return the way to train of a configuration."""
        known = ((name, config.get(name)) for name in self.columns)
        return tuple((name, value) for name, value in known if not pd.isna(value))

    def suffices(self, asked: pd.DataFrame) -> np.ndarray:
        """Tell which configurations are not ruled out, shape (n_rows,)."""
        ways = map(self.way, asked.to_dict("records"))
        return np.array([way not in self.refused for way in ways], dtype=bool)

    def notes(self, chosen: Mapping[Any, Any]) -> Iterator[Fact]:
        """Note the gap of the chosen way, and the ways that are ruled out."""
        if gap := self.gaps.get(self.way(chosen)):
            yield Fact("accuracy_gap", gap)
        if self.reasons:
            yield Fact.of("ruled_out", reasons=self.reasons)


def _parts(name: str) -> bool:
    own = name.removeprefix(OPTION_PREFIX)
    is_named = own != name or name in ("parallelism", "precision")
    return is_named and own not in LAYOUT_PLACEHOLDERS


def _largest_loss(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the gap on the devices and at the batch where a way loses most."""
    found: list[dict[str, Any]] = []
    paired = rows[np.isfinite(numbers(rows, ACCURACY_GAP))]
    for _, there in paired.groupby(_PLACE) if {*_PLACE} <= {*rows.columns} else ():
        row, gap = {str(n): of for n, of in there.iloc[0].items()}, there[ACCURACY_GAP]
        same = (n for n, of in final_metrics(row).items() if of == row["final_metric"])
        metric = next(same, "final metric")
        sign = 1 if _LESS_IS_BETTER.search(metric) else -1
        values = {"lost": round(sign * gap.mean(), 9), "metric": metric}
        values |= {n: int(row[n]) for n in _PLACE}
        ends = {"lo": float(gap.min()), "hi": float(gap.max()), "count": len(gap)}
        found.append({**values, "mean": float(gap.mean()), **ends})
    return max(found, key=lambda each: each["lost"], default={})
