"""The recommendation as plain lines of text: ASCII, no colour, as wide as asked."""

from __future__ import annotations

import textwrap

from scalelab.inputs.lines import aligned
from scalelab.inputs.numerals import counted
from scalelab.recommend.answer.evidence import side_by_side
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import (
    sentences,
    texts,
    what_diminishing_means,
    what_gaps_mean,
)
from scalelab.recommend.answer.tables import (
    Columns,
    allocations,
    parameters,
    ways_table,
)

# the first to go when a terminal is narrow
_OPTIONAL = ("next", "efficiency", "interval", "speed", "chance", "nodes", "batch")
_OPTIONAL_OF_WAYS = ("metric", "reached", "servers", "batch", "gap", "bubble")
_REMARKS = (
    *("emulated", "knee", "elsewhere", "price", "why"),
    *("assumption", "unanswered", "next_trial"),
)


def answer_text(recommendation: Recommendation, width: int = 80) -> str:
    """Return the answer in full."""
    said = sentences(recommendation)
    headline = [
        *texts(said, "use", "settings"),
        ".  ".join(texts(said, "takes", "chance")),
        *texts(said, "failed", "alternatives"),
    ]
    columns = _shown(recommendation, width)
    table = _aligned(columns, left=("next", "basis", "batch"))
    remarks = texts(said, *_REMARKS)
    if "efficiency" in columns:
        table.append(f"* against {recommendation.baseline}")
        remarks = [*texts(said, "efficiency"), *remarks]
    if ends := texts(said, "ignored", "sweep_cost"):
        remarks.append("  ".join(ends))
    blocks = [
        _wrapped(headline, width),
        table,
        _ways(recommendation, width),
        _wrapped(remarks, width),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def explain_text(recommendation: Recommendation, width: int = 80) -> str:
    """Return what stands below the answer on request: formulas and parameters."""
    result = recommendation
    lines = [
        f"Law: {result.law}.  {result.formula}",
        "Samples to a target: S = S_min (1 + B / B_crit) (McCandlish et al. 2018).",
        f"Efficiency: device-hours against those of {result.baseline} at the same "
        "global batch.",
        *what_diminishing_means(result),
    ]
    table = _aligned(parameters(result), left=("parameter", "interval", "unit", "open"))
    return "\n".join([*_wrapped(lines, width), "", *table])


def _shown(result: Recommendation, width: int) -> Columns:
    columns = allocations(result)
    title, *sizes = columns["size"]
    marks = [">" if row.is_chosen else " " for row in result.rows]
    columns["size"] = [title, *map("".join, zip(marks, sizes, strict=True))]
    columns["efficiency"] = [
        cell if cell.endswith(("*", "y")) else f"{cell} "
        for cell in columns["efficiency"]
    ]
    return _fitting(columns, (*_OPTIONAL, "basis"), width)


def _fitting(columns: Columns, optional: tuple[str, ...], width: int) -> Columns:
    for name in optional:
        widths = [max(map(len, cells)) for cells in columns.values()]
        if sum(widths) + 2 * (len(widths) - 1) <= width:
            break
        columns.pop(name, None)
    return columns


def _ways(result: Recommendation, width: int) -> list[str]:
    rows = side_by_side(result.ways)
    if not rows:
        return []
    columns = _fitting(ways_table(rows), _OPTIONAL_OF_WAYS, width)
    batches = {row.global_batch_size for row in rows}
    batch = f", global batch {min(batches):,}" if len(batches) == 1 else ""
    place = f"{counted(rows[0].world_size, result.device_word)}{batch}"
    title = f"Ways to train, measured on {place}:"
    said = what_gaps_mean(rows) if "gap" in columns else []
    return [
        *_wrapped([title], width),
        *_aligned(columns, left=("way", "settings")),
        *_wrapped(said, width),
    ]


def _aligned(columns: Columns, left: tuple[str, ...]) -> list[str]:
    rows = list(zip(*columns.values(), strict=True))
    return aligned(rows, left=[name in left for name in columns])


def _wrapped(texts: list[str], width: int) -> list[str]:
    wrap = textwrap.TextWrapper(width, break_on_hyphens=False).wrap  # --max-time
    return [line for text in texts for line in wrap(text) or [""]]
