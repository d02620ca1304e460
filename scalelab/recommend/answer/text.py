"""The recommendation as plain lines of text: ASCII, no colour, as wide as asked."""

from __future__ import annotations

import textwrap

from scalelab.inputs.lines import aligned
from scalelab.inputs.numerals import counted
from scalelab.recommend.answer.facts import Part
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import (
    Sentence,
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
from scalelab.recommend.answer.way_rows import side_by_side

# the first to go when a terminal is narrow
_OPTIONAL = ("next", "efficiency", "interval", "speed", "chance", "nodes", "batch")
_OPTIONAL_OF_WAYS = ("metric", "reached", "servers", "batch", "gap", "bubble")
_LEFT = ("next", "basis", "batch")
_REMARKS = (
    *(Part.EMULATED, Part.WHY, Part.KNEE, Part.ELSEWHERE, Part.PRICE),
    *(Part.ASSUMPTION, Part.UNANSWERED, Part.NEXT_TRIAL),
)
_ENDS = (Part.IGNORED, Part.SWEEP_COST)


def answer_text(recommendation: Recommendation, width: int = 80) -> str:
    """Return the answer in full."""
    said = sentences(recommendation)
    remarks = [*texts(said, *_REMARKS), *_joined(said, *_ENDS)]
    columns = _shown(recommendation, width)
    if "efficiency" in columns:
        remarks = [*texts(said, Part.EFFICIENCY), *remarks]
    blocks = [
        _wrapped(_headline(said), width),
        _table(columns, recommendation),
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


def _headline(said: tuple[Sentence, ...]) -> list[str]:
    return [
        *texts(said, Part.USE, Part.SETTINGS),
        ".  ".join(texts(said, Part.TAKES, Part.CHANCE)),
        *texts(said, Part.FAILED),
        *texts(said, Part.ALTERNATIVES),
    ]


def _joined(said: tuple[Sentence, ...], *parts: Part) -> list[str]:
    found = texts(said, *parts)
    return ["  ".join(found)] if found else []


def _shown(result: Recommendation, width: int) -> Columns:
    """Return the columns of the table that a terminal has room for."""
    columns = allocations(result)
    marks = [">" if row.is_chosen else " " for row in result.rows]
    title, *sizes = columns["size"]
    marked = [f"{m}{size}" for m, size in zip(marks, sizes, strict=True)]
    columns["size"] = [title, *marked]
    columns["efficiency"] = [
        cell if cell.endswith(("*", "y")) else f"{cell} "
        for cell in columns["efficiency"]
    ]
    for name in (*_OPTIONAL, "basis"):
        if _total_width(columns) <= width:
            break
        columns.pop(name, None)
    return columns


def _table(columns: Columns, result: Recommendation) -> list[str]:
    lines = _aligned(columns, left=_LEFT)
    if "efficiency" in columns:
        lines.append(f"* against {result.baseline}")
    return lines


def _ways(result: Recommendation, width: int) -> list[str]:
    """Return the table of ways to train where most of them were measured."""
    rows = side_by_side(result.ways)
    if not rows:
        return []
    columns = ways_table(rows)
    for name in _OPTIONAL_OF_WAYS:
        if _total_width(columns) <= width:
            break
        columns.pop(name, None)
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


def _total_width(columns: Columns) -> int:
    widths = [max(map(len, cells)) for cells in columns.values()]
    return sum(widths) + 2 * (len(widths) - 1)


def _wrapped(texts: list[str], width: int) -> list[str]:
    wrap = textwrap.TextWrapper(width, break_on_hyphens=False).wrap  # --max-time
    return [line for text in texts for line in wrap(text) or [""]]
