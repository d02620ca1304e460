"""The answer as Python and the command line show it: tables, lines of text, HTML."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from math import isnan
from typing import Any

from scalelab.inputs.layout import short_label
from scalelab.inputs.lines import aligned
from scalelab.inputs.numerals import (
    Interval,
    change,
    counted,
    duration,
    duration_ends,
    estimate,
    number,
    percent,
    plural,
    probability,
)
from scalelab.inputs.placeholders import LAYOUT_PLACEHOLDERS
from scalelab.kinds.resources import DEVICE_HOURS, MODELLED, Units
from scalelab.recommend.answer.argument_words import STATES, Ground
from scalelab.recommend.answer.ending_words import chain_terms, smallest_in_one
from scalelab.recommend.answer.evidence import RateRow, Spread, WayRow, side_by_side
from scalelab.recommend.answer.note_words import settings_in_words
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import BatchPlan, OutlookRow
from scalelab.recommend.answer.sentences import (
    sentences,
    texts,
    what_diminishing_means,
    what_gaps_mean,
    what_rates_say,
)

# Columns of cells, the title first, by a name that does not depend on the answer
Columns = dict[str, list[str]]
# the first to go when a terminal is narrow; never the interval or the basis
_OPTIONAL = (
    *("speed", "tokens", "nodes", "next", "efficiency", "utilization"),
    *("batch", "unlike", "chance"),
)
_WIDEST = 100  # characters of a line of sentences
_ROOM = 9  # lines that say the choice, its grounds, and what is next
MARK = "?"  # of a figure that is not sure
_MARKED = {
    "samples": "the samples of a step",
    "ranks": "that the ranks work together",
}
_LEFT = ("device", "next", "basis", "barred", "batch", "unlike")
_OPTIONAL_OF_WAYS = ("metric", "reached", "servers", "batch", "gap", "bubble")
# what is said on request: all but the first lines
_REMARKS = (
    *("accuracy", "choice", "failed", "efficiency", "emulated", "knee", "granting"),
    *("elsewhere", "price", "spot", "electricity", "rule", "rates", "assumption"),
    *("unanswered", "next_trial", "ignored", "sweep_cost"),
)
_HEAD = (
    *("campaign", "unmet", "nearest", "use", "settings", "takes", "chance"),
    *("machine", "batches", "queue", "why_not", "rests_on", "next_step"),
)


def allocations(result: Recommendation) -> Columns:
    """Return a row per allocation; columns that no row has a value for are left out."""
    rows, spent = result.rows, _spent(result)
    unit = spent[DEVICE_HOURS.name][0]
    columns = {
        **_counts(result),
        "time": [
            "time",
            *(f"{MARK * bool(row.marks)}{duration(row.time_s.value)}" for row in rows),
        ],
        "interval": [
            percent(result.interval),
            *(duration_ends(row.time_s) for row in rows),
        ],
        **spent,
        "efficiency": [
            "efficiency",
            *(percent(row.scaling_efficiency.value) for row in rows),
        ],
        "next": ["next doubling", *(_next(row, unit) for row in rows)],
        "chance": ["chance", *(_cell(row.probability, probability) for row in rows)],
        "basis": ["basis", *(row.basis for row in rows)],
        "barred": ["not chosen", *(_cell(row.barred_by, str) for row in rows)],
        "speed": [
            "fitted samples/s",
            *(estimate(row.throughput_samples_per_s) for row in rows),
        ],
        "tokens": [
            "fitted tokens/s",
            *(_cell(row.throughput_tokens_per_s, estimate) for row in rows),
        ],
        "utilization": [
            "MFU",
            *(
                _cell(row.flops_utilization, lambda interval: percent(interval.value))
                for row in rows
            ),
        ],
        "nodes": ["nodes", *(row.allocation for row in rows)],
        "unlike": ["unlike", *(_unlike(row, result.chosen) for row in rows)],
        "layout": ["layout", *(short_label(row.settings) for row in rows)],
        "batch": ["batch", *(_batch(row.batch) for row in rows)],
    }
    return _filled(columns)


def _counts(result: Recommendation) -> Columns:
    counts = [f"{row.world_size}" for row in result.rows]
    if not result.devices:
        return {"size": [_last(plural(result.device_word, 2)), *counts]}
    devices = ["device", *(row.device for row in result.rows)]
    if len({row.device for row in result.rows if not row.is_interruptible}) == 1:
        ways = {True: "spot", False: "on demand"}
        devices = ["market", *(ways[row.is_interruptible] for row in result.rows)]
    return {"device": devices, "size": ["count", *counts]}


def ways_table(rows: Sequence[WayRow]) -> Columns:
    """Return a row per way to train; columns that no row has a value for are left out.

    Devices and batch are columns only where they differ.
    """
    columns = {
        "way": ["way to train", *(row.parallelism for row in rows)],
        "settings": [
            "options",
            *(
                ", ".join(f"{n}={value}" for n, value in row.settings.items())
                for row in rows
            ),
        ],
        "size": ["devices", *(f"{row.world_size}" for row in rows)],
        "batch": ["global batch", *(number(row.global_batch_size) for row in rows)],
        "step": ["step time", *(_cell(row.step_time_s, duration) for row in rows)],
        "target": [
            "time to target",
            *(_cell(row.time_to_target_s, duration) for row in rows),
        ],
        "reached": [
            "reached",
            *(
                f"{row.num_reached} of {row.num_evaluated}" if row.num_reached else ""
                for row in rows
            ),
        ],
        "metric": [
            "final metric",
            *(f"{r.final_metric.mean:.4g}" if r.final_metric else "" for r in rows),
        ],
        "gap": ["accuracy gap", *(_gap(row.accuracy_gap) for row in rows)],
        "staleness": ["staleness", *map(_staleness, rows)],
        "period": ["period", *(_cell(row.averaging_period, number) for row in rows)],
        "bubble": ["bubble", *(_cell(row.bubble_share, percent) for row in rows)],
        "servers": ["servers", *(_cell(row.num_servers, number) for row in rows)],
    }
    for name in ("size", "batch"):
        if len({*columns[name][1:]}) < 2:
            del columns[name]
    return _filled(columns)


def rates_table(rows: Sequence[RateRow]) -> Columns:
    """Return a row per global batch, a column per learning-rate rule.

    A cell holds the median samples to the target, how many of the runs reached it, the
    chance of one further run, and the final metric. The table is empty where there is
    one rule, and no batch with several settings to compare.
    """
    batches = sorted({row.global_batch_size for row in rows})
    columns = {"batch": ["global batch", *map(number, batches)]}
    for row in rows:
        name = ", ".join(map(str, row.settings.values()))
        cells = columns.setdefault(name, [name, *("" for _ in batches)])
        cells[1 + batches.index(row.global_batch_size)] = " ".join(
            [
                _cell(row.samples_to_target, lambda interval: number(interval.value))
                or "-",
                f"{row.num_reached}/{row.num_runs}",
                f"{probability(row.probability):>5}",
                _cell(row.final_metric, "{:.3f}".format),
            ]
        ).rstrip()

    rules = {row.settings.get("lr_rule") for row in rows}
    return columns if len(rules) > 1 or len(rows) > len(batches) else {}


def chains_table(kind: Mapping[str, Any]) -> Columns:
    """Return a row per allocation: its chained jobs, and what they take together.

    ``kind`` is one of :attr:`Recommendation.chained_jobs`.
    """
    rows, word = kind["rows"], _last(kind["device_word"])
    times = [Interval(**row["time_s"]) for row in rows]
    is_smallest = [row["world_size"] == kind["smallest"] for row in rows]
    marks = ["one job suffices" if is_it else "" for is_it in is_smallest]
    return {
        "size": [plural(word, 2), *(f"{row['world_size']}" for row in rows)],
        "jobs": [
            f"jobs ({percent(kind['confidence'])})",
            *(number(row["num_jobs"]) for row in rows),
        ],
        "in_one": ["in one job", *(probability(row["in_one_job"]) for row in rows)],
        "time": ["time in all", *(duration(time.value) for time in times)],
        "interval": ["its interval", *map(duration_ends, times)],
        "hours": ["device-h", *(number(row["gpu_hours"]["value"]) for row in rows)],
        "mark": ["", *marks],
    }


def parameters(result: Recommendation) -> Columns:
    """Return the fitted parameters, those that the data leave open included."""
    rows = result.parameters
    return {
        "parameter": ["parameter", *(f"{row.curve}: {row.name}" for row in rows)],
        "value": ["value", *(f"{row.value:.3g}" for row in rows)],
        "interval": [
            f"{percent(result.interval)} interval",
            # a law without intervals has no ends
            *("" if isnan(r.lo) else f"{r.lo:.3g} to {r.hi:.3g}" for r in rows),
        ],
        "unit": ["unit", *(row.unit for row in rows)],
        "open": [
            "not identified",
            *("" if row.is_identified else row.remedy for row in rows),
        ],
    }


def _unlike(row: OutlookRow, chosen: OutlookRow) -> str:
    """Return the settings, but for the layout, in which a row is not as the chosen."""
    names = sorted({*row.settings, *chosen.settings} - LAYOUT_PLACEHOLDERS.keys())
    unlike = {
        name: row.settings.get(name, "none")
        for name in names
        if row.settings.get(name) != chosen.settings.get(name)
    }
    return ", ".join(settings_in_words(unlike))


def _filled(columns: Columns) -> Columns:
    return {name: cells for name, cells in columns.items() if any(cells[1:])}


def _cell(value: Any, written: Callable[[Any], str]) -> str:
    return "" if value is None else written(value)


def _gap(gap: Spread | None) -> str:
    if gap is None:
        return ""
    ends = f" ({gap.lo:+.3f} to {gap.hi:+.3f})" if gap.count > 1 else ""
    return f"{gap.mean:+.3f}{ends}"


def _staleness(row: WayRow) -> str:
    mean, most = row.staleness_mean, row.staleness_max
    return "" if mean is None else f"{mean:.2f} (max {most})"


def _batch(batch: BatchPlan) -> str:
    passes = batch.gradient_accumulation_steps
    times = f"x{passes}" if passes > 1 else ""
    return (
        f"{batch.global_batch_size}={batch.local_batch_size}x"
        f"{batch.data_parallel_size}{times}"
    )


def _spent(result: Recommendation) -> Columns:
    columns: Columns = {}
    for resource, chosen in result.chosen.spent.items():
        # the headline has said that devices are emulated
        is_modelled = any(row.energy_source == MODELLED for row in result.rows)
        source = MODELLED if is_modelled else ""
        units = Units(_last(result.hour_of_all), result.currency, source)
        scale, unit = resource.unit(chosen.value, units)
        amounts = [row.amounts.get(resource.name) for row in result.rows]
        cells = [
            "" if amount is None else number(amount.value / scale) for amount in amounts
        ]
        columns[resource.name] = [unit, *cells]
    return columns


def _next(row: OutlookRow, unit: str) -> str:
    if row.next_time_change is None or row.next_gpu_hours_change is None:
        return ""
    is_doubling = row.next_world_size == 2 * row.world_size
    where = "" if is_doubling else f"at {row.next_world_size}: "
    time, hours = change(row.next_time_change), change(row.next_gpu_hours_change)
    return f"{where}{time} time {hours} {unit}"


def _last(words: str) -> str:
    return words.split()[-1]


def answer_text(
    recommendation: Recommendation, width: int | None = 80, *, explain: bool = False
) -> str:
    """Return the answer: its first lines and its table; with ``explain``, all of it.

    The table is as wide as its columns with ``explain``, and where there is no width.
    """
    columns, omitted = _shown(recommendation, None if explain else width)
    not_shown = [f"Not shown at this width: {', '.join(omitted)}."] * bool(omitted)
    width = min(width or _WIDEST, _WIDEST)
    table, above_ideal = _aligned(columns, left=_LEFT), recommendation.said("ideal")
    blocks = [
        _first_lines(recommendation, width),
        [
            *table,
            *_wrapped([*_marks(recommendation), *not_shown, *above_ideal], width),
        ],
    ]
    blocks += _chains(recommendation, width, explain=explain)
    if explain:
        blocks += _explained(recommendation, width)
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _first_lines(result: Recommendation, width: int) -> list[str]:
    """Return the choice, its figures, why not another, its grounds, and what is next.

    They are at most nine lines, but for words that are too long. Where not all grounds
    fit, those that are contradicted come first, then those that are open.
    """
    sentences_of = sentences(result)
    head = [
        " ".join(texts(sentences_of, "campaign")),
        " ".join(texts(sentences_of, "unmet", "nearest")),
        ", ".join(texts(sentences_of, "use", "settings")),
        ".  ".join(texts(sentences_of, "takes", "chance")),
        *texts(sentences_of, "machine", "batches", "queue", "why_not"),
    ]

    first = [line for text in head for line in textwrap.wrap(text, width)]
    last = _next_lines(result, width)
    room = max(1, _ROOM - len(first) - len(last))
    return [*first, *_on_lines(result.grounds, room, width), *last]


def _on_lines(grounds: Sequence[Ground], room: int, width: int) -> list[str]:
    """Return the grounds of each state, on one line; on several where there is room.

    What is contradicted has two lines, if it needs them.
    """
    by_state = {
        s: [ground.text for ground in grounds if ground.state == s] for s in STATES
    }
    lines_of_state = [
        (f"{s.capitalize()}: ", texts_of_state)
        for s, texts_of_state in by_state.items()
        if texts_of_state
    ]
    lines: list[str] = []

    left = room - len(lines_of_state[:room])
    for title, phrases in lines_of_state[:room]:
        whole = textwrap.wrap(f"{title}{'; '.join(phrases)}.", width)
        is_first = title.startswith(STATES[0].capitalize())
        is_whole = len(whole) - 1 <= max(left, int(is_first))
        left -= is_whole * (len(whole) - 1)
        lines += whole if is_whole else [_on_line(title, phrases, width)]

    return lines


def _on_line(title: str, phrases: Sequence[str], width: int) -> str:
    line = ""
    for count in range(len(phrases), 0, -1):
        left = len(phrases) - count
        more = [f"{left} more"] if left else []
        line = f"{title}{'; '.join([*phrases[:count], *more])}."
        if len(line) <= width:
            return line
    return textwrap.shorten(line, width, placeholder=" ...")


def _next_lines(result: Recommendation, width: int) -> list[str]:
    """Return the command, in lines that a shell reads as one, and what it is for."""
    command, why = result.next_command
    if not command:
        return textwrap.wrap(f"Next: {why}.", width) if why else []

    indent = " " * len("Next: ")
    *begun, ended = textwrap.wrap(
        command,
        width - 2,
        initial_indent="Next: ",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )

    lines = [*(f"{line} \\" for line in begun), f"{ended} ({why})."]
    if len(lines[-1]) > width:
        about = textwrap.wrap(
            f"({why}).", width, initial_indent=indent, subsequent_indent=indent
        )
        lines[-1:] = [ended, *about]

    return lines


def _marks(result: Recommendation) -> list[str]:
    names = [
        text
        for name, text in _MARKED.items()
        if any(name in (row.marks or "") for row in result.rows)
    ]
    why = [f"no second source confirms {' and '.join(names)}"] * bool(names)
    if any("settled" in (row.marks or "") for row in result.rows):
        why.append("step times had not settled")
    return [f"{MARK}: {', or '.join(why)}."] * bool(why)


def _explained(result: Recommendation, width: int) -> list[list[str]]:
    """Return what stands below the table on request, formulas and parameters last."""
    by_subject = sentences(result)
    table = _aligned(parameters(result), left=("parameter", "interval", "unit", "open"))
    laws = [
        f"Law: {result.law}.  {result.formula}",
        "Samples to a target: S = S_min (1 + B / B_crit) (McCandlish et al. 2018).",
        *what_diminishing_means(result),
    ]

    return [
        _wrapped(texts(by_subject, "rests_on"), width),
        _ways(result, width),
        _rates(result, width),
        _wrapped(texts(by_subject, *_REMARKS), width),
        [*_wrapped(laws, width), "", *table],
    ]


def _shown(result: Recommendation, width: int | None) -> tuple[Columns, list[str]]:
    """Return the columns that fit, and the titles of those that do not."""
    columns = allocations(result)
    (first, (title, *cells)), *_ = columns.items()
    is_choice = not result.chooses_none
    marks = [">" if row.is_chosen and is_choice else " " for row in result.rows]
    columns[first] = [title, *map("".join, zip(marks, cells, strict=True))]
    fitting = columns if width is None else _fitting(columns, _OPTIONAL, width)
    return fitting, [columns[name][0] for name in columns if name not in fitting]


def _fitting(columns: Columns, optional: tuple[str, ...], width: int) -> Columns:
    columns = dict(columns)
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
    size, batches = rows[0].world_size, {row.global_batch_size for row in rows}

    place = counted(size, result.device_word)
    if len(batches) == 1:
        place += f", global batch {min(batches):,}"

    return [
        *_wrapped([f"Ways to train, measured on {place}:"], width),
        *_aligned(columns, left=("way", "settings")),
        *_wrapped(what_gaps_mean(rows) if "gap" in columns else [], width),
    ]


def _rates(result: Recommendation, width: int) -> list[str]:
    lines: list[str] = []
    if not (columns := rates_table(result.rates)):
        return []

    batches, *rules = columns.items()
    widest = max(len(cell) for _, cells in rules for cell in cells)

    at_once = max(1, (width - len(batches[1][0])) // (widest + 2))
    for first in range(0, len(rules), at_once):
        table = dict([batches, *rules[first : first + at_once]])
        lines += _aligned(table, left=())

    sentences_of = what_rates_say(result)
    return [*_wrapped(sentences_of, width), *lines]


def _chains(
    result: Recommendation, width: int, *, explain: bool
) -> Iterator[list[str]]:
    """Yield the tables of chained jobs: if asked, or if the chosen row is of them."""
    chosen, was_asked = result.chosen, result.asked_walltime_s is not None
    for kind in result.chained_jobs:
        is_of_chosen = kind["name"] in ("", chosen.device) and any(
            row["world_size"] == chosen.world_size and row["num_jobs"] > 1
            for row in kind["rows"]
        )
        if explain or was_asked or is_of_chosen:
            yield [
                *_wrapped([f"{chain_terms(kind)} {smallest_in_one(kind)}"], width),
                *_aligned(chains_table(kind), left=("mark",)),
            ]


def _aligned(columns: Columns, left: tuple[str, ...]) -> list[str]:
    rows = list(zip(*columns.values(), strict=True))
    return aligned(rows, left=[name in left for name in columns])


def _wrapped(texts: list[str], width: int) -> list[str]:
    wrap = textwrap.TextWrapper(width, break_on_hyphens=False).wrap  # --max-time
    return [line for text in texts for line in wrap(text) or [""]]


def answer_html(result: Recommendation) -> str:
    """Return the answer for a notebook: its first lines, its table, and the rest."""
    by_subject = sentences(result)
    use, *head = texts(by_subject, *_HEAD)
    rest = texts(
        by_subject, *(subject for subject in by_subject if subject not in _HEAD)
    )
    titles, *rows = zip(*allocations(result).values(), strict=True)
    body = [
        _row(cells, "td", is_marked=row.is_chosen)
        for cells, row in zip(rows, result.rows, strict=True)
    ]

    return (
        f"<p><strong>{escape(use)}</strong><br>{'<br>'.join(map(escape, head))}</p>"
        f"<table><thead>{_row(titles, 'th')}</thead>"
        f"<tbody>{''.join(body)}</tbody></table>"
        "<details><summary>What else is known</summary>"
        f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in rest)}</ul></details>"
    )


def _row(cells: tuple[str, ...], tag: str, *, is_marked: bool = False) -> str:
    style = " style='font-weight: bold'" if is_marked else ""
    inside = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f"<tr{style}>{inside}</tr>"
