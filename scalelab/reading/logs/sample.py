"""How the lines of a program's output report its steps, found in a sample of them."""

import re
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.experiment.presets import PRESETS, Preset
from scalelab.experiment.program import (
    BATCH_OF_EPOCH,
    BATCHES_OF_EPOCH,
    EPOCH,
    SAMPLES_IN_EPOCH,
    SAMPLES_OF_EPOCH,
    STEPS_IN_ALL,
    MetricsSource,
)
from scalelab.inputs.problems import shown
from scalelab.reading.logs.lines import ReportReader
from scalelab.reading.scripts.script import read_small_file

MAX_LOG_BYTES = 16 << 20
_MAX_LINE_BYTES = 10_000
_LINE_ENDS = re.compile(rb"[\r\n]+")
_UNSHOWN = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[^ -~]")

PLAIN = r"step +(?P<step>\d+)"
_LENGTH = rf"(?P<step>\d+) */ *(?P<{STEPS_IN_ALL}>\d+)"
# What counts, the surest first: a word of steps, a number after the word epoch with
# its own or none, two pairs in brackets, any pair.
_COUNTING = (
    PLAIN,
    rf"(?i:epoch)\W*(?P<{EPOCH}>\d+)(?: */ *\d+)?.*?\b{_LENGTH}",
    rf"(?i:\b(?:step|iter|iteration|update)s?\b)\W*{_LENGTH}",
    rf"\[(?P<{EPOCH}>\d+)/\d+\] *\[ *{_LENGTH}",
    r"(?i:(?:\b|_)(?:step|iter|iteration|update)s?\b)[ =:#\[]*(?P<step>\d+)\b",
    rf"\b{_LENGTH}",
)
_LOSS = r".*?(?i:\b(?:train[_ ])?loss)[ :=]+(?P<loss>[^\s,|;]+)"
_PERCENTAGE = re.compile(r" *\( *\d+(?:\.\d+)?%")
_LEAST_ALIKE = 0.6  # of the lines; the others may be of an evaluation


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReading:
    """What reads a sample: a preset, else an expression, else nothing."""

    preset: Preset | None = None
    num_steps: int = 0  # that the preset reads
    expression: str | None = None
    counted: str = ""  # name of the group that counts in the expression
    example: str | None = None  # a line that an expression might be written for


def read_log(
    path: Path, packages: Set[str] = frozenset(), batch: int | None = None
) -> LogReading:
    """Return how a log reports steps.

    Presets come first: those whose packages are imported, those of no package, and
    where the script imports nothing that a preset is for, the others.
    """
    content = read_small_file(
        path,
        most_bytes=MAX_LOG_BYTES,
        remedy="Give a few hundred lines of output that show some steps.",
    )
    if b"\0" in content:
        raise SpecError(
            f"{shown(str(path))} is no text: it holds NUL bytes. Give what the program "
            "printed, as text."
        )
    lines = [each for each in _LINE_ENDS.split(content) if len(each) < _MAX_LINE_BYTES]
    rows = list(PRESETS.values())
    imported = [row for row in rows if packages & {*row.packages}]
    of_others = [row for row in rows if row.packages and not imported]
    for group in (imported, [row for row in rows if not row.packages], of_others):
        readings = [
            LogReading(preset=row, num_steps=_num_steps(row, lines)) for row in group
        ]
        best = max(readings, key=lambda each: each.num_steps, default=LogReading())
        if best.num_steps:
            return best
    texts = [_UNSHOWN.sub("", line.decode(errors="replace")).strip() for line in lines]
    for pattern in _COUNTING:
        if reading := _counting(pattern, texts, batch):
            return reading
    numbered = [text for text in texts if re.search(r"\d", text)]
    named = [text for text in numbered if re.search(r"step|iter|batch", text, re.I)]
    found = named or numbered
    return LogReading(example=found[len(found) // 2][:80] if found else None)


def _num_steps(row: Preset, lines: list[bytes]) -> int:
    reader = ReportReader(MetricsSource(regex=row.regex, evaluation=row.evaluation))
    reports = filter(None, map(reader.read, lines))
    return len({each.step for each in reports if not each.is_evaluation} - {None})


def _counting(
    pattern: str, texts: Sequence[str], batch: int | None
) -> LogReading | None:
    rows = [found for found in map(re.compile(pattern).search, texts) if found]
    lengths = Counter(row.groupdict().get(STEPS_IN_ALL) for row in rows)
    length, times = lengths.most_common(1)[0] if rows else (None, 0)
    alike = [row for row in rows if row.groupdict().get(STEPS_IN_ALL) == length]
    counts = [int(row["step"]) for row in alike]
    rises = Counter(two - one for one, two in pairwise(counts) if two > one)
    falls = sum(two < one for one, two in pairwise(counts))
    if (
        times < _LEAST_ALIKE * len(rows)
        or rises.total() <= falls
        or (length and max(counts) > int(length))
    ):
        return None
    rise = rises.most_common(1)[0][0]
    have_percentage = all(_PERCENTAGE.match(row.string, row.end()) for row in alike)
    if length and rise > 1 and (rise == batch or have_percentage):
        names = (SAMPLES_OF_EPOCH, SAMPLES_IN_EPOCH)
    elif falls or (length and all(map(_is_of_epoch, alike))):
        names = (BATCH_OF_EPOCH, BATCHES_OF_EPOCH)
    else:
        names = ("step", STEPS_IN_ALL)
    expression = pattern.replace("<step>", f"<{names[0]}>").replace(
        f"<{STEPS_IN_ALL}>", f"<{names[1]}>"
    )
    # Lines of epochs or of an evaluation count up to another length: these begin so.
    starts = [re.split(r"\d", row.string[: row.start()])[0] for row in alike]
    if len(lengths) > 1 and (before := min(starts).strip()):
        expression = f"^{re.escape(before)}.*?{expression}"
    elif len(lengths) > 1 and not any(row.start() for row in alike):
        expression = rf"^\s*{expression}"
    with_loss = re.compile(expression + _LOSS)
    has_loss = all(with_loss.search(row.string) for row in alike)
    return LogReading(
        expression=with_loss.pattern if has_loss else expression, counted=names[0]
    )


def _is_of_epoch(row: re.Match[str]) -> bool:
    text, end = row.string.lower(), row.end()
    return "epoch" in text[:end] or text[end:].startswith(" of epoch")
