"""What reads the steps of a program's output, found in a sample of its lines."""

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.experiment.presets import PRESETS, Preset
from scalelab.experiment.program import (
    BATCH_OF_EPOCH,
    BATCHES_OF_EPOCH,
    EPOCH,
    PERCENT_OF_EPOCH,
    SAMPLES_IN_EPOCH,
    SAMPLES_OF_EPOCH,
    STEPS_IN_ALL,
    MetricsSource,
)
from scalelab.inputs.problems import shown
from scalelab.reading.logs.lines import STEP, ReportReader
from scalelab.reading.small_file import read_small_file

MAX_LOG_BYTES = 16 << 20
_MAX_LINE_BYTES, _MOST_LINES = 10_000, 3_000
_LINE_ENDS = re.compile(rb"[\r\n]+")
_UNSHOWN = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[^ -~]")

PLAIN = r"step +(?P<step>\d+)"
_OF_TRAINING = {"count": STEP, "length": STEPS_IN_ALL}
_OF_EPOCH = {"count": BATCH_OF_EPOCH, "length": BATCHES_OF_EPOCH}
_OF_SAMPLES = {"count": SAMPLES_OF_EPOCH, "length": SAMPLES_IN_EPOCH}
_COUNT, _LENGTH = r"(?P<{count}>\d+)", r"(?P<{count}>\d+) */ *(?P<{length}>\d+)"
# What counts, the surest first: a word of steps, a number after the word epoch with
# its own or none, two pairs in brackets, any pair.
_COUNTING = (
    rf"step +{_COUNT}",
    rf"(?i:epoch)\W*(?P<{EPOCH}>\d+)(?: */ *\d+)?.*?\b{_LENGTH}",
    rf"(?i:\b(?:step|iter|iteration|update)s?\b)\W*{_LENGTH}",
    rf"\[(?P<{EPOCH}>\d+)/\d+\] *\[ *{_LENGTH}",
    rf"(?i:(?:\b|_)(?:step|iter|iteration|update)s?\b)[ =:#\[]*{_COUNT}\b",
    rf"\b{_LENGTH}",
)
# Scripts in the manner of PyTorch's MNIST example print it behind samples.
_PERCENTAGE = rf" *\( *(?P<{PERCENT_OF_EPOCH}>\d+(?:\.\d+)?)%"
LOSS = r".*?(?i:\b(?:train[_ ])?loss)[ :=]+(?P<loss>[^\s,|;]+)"
_LEAST_ALIKE = 0.6  # of the lines; the others may be of an evaluation


@dataclass(frozen=True, kw_only=True, slots=True)
class LogMatch:
    """What reads a sample: a preset, else an expression, else nothing."""

    preset: Preset | None = None
    expression: str | None = None
    num_steps: int = 0  # that are read so
    counted: str = ""  # name of the group that counts in the expression
    example: str | None = None  # a line that an expression might be written for


def match(path: Path, packages: Set[str] = frozenset()) -> LogMatch:
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
            "printed, as text.",
            code="not_text",
        )
    return match_content(content, packages)


def metrics_for(content: bytes) -> dict[str, object]:
    """Return the metrics of an experiment that read a log; empty where none do."""
    found = match_content(content)
    if found.preset is not None:
        return {"metrics": found.preset.name}
    return {"metrics": {"regex": found.expression}} if found.expression else {}


def match_content(content: bytes, packages: Set[str] = frozenset()) -> LogMatch:
    """Return how the content of a log reports steps; see :func:`match`."""
    lines = [line for line in _LINE_ENDS.split(content) if len(line) < _MAX_LINE_BYTES]
    lines = lines[:_MOST_LINES]
    presets = list(PRESETS.values())
    imported = [row for row in presets if packages & {*row.packages}]
    of_none = [row for row in presets if not row.packages]

    others = [row for row in presets if row.packages and not imported]
    for group in (imported, of_none, others):
        found = [
            LogMatch(
                preset=row,
                num_steps=len({*_steps(lines, *row.regex, evaluation=row.evaluation)}),
            )
            for row in group
        ]
        best = max(found, key=lambda match: match.num_steps, default=LogMatch())
        if best.num_steps:
            return best

    return _plain_count(lines) or LogMatch(example=_example(lines))


def _steps(
    lines: Sequence[bytes], *regex: str, evaluation: tuple[str, ...] = ()
) -> list[int]:
    """Return the steps that expressions read; none where their counts contradict."""
    reader = ReportReader(MetricsSource(regex=regex, evaluation=evaluation))
    try:
        found = [reader.read(line, reads_rates=False) for line in lines]
    except SpecError:
        return []
    reports = [report for report in found if report and not report.is_evaluation]
    return [report.step for report in reports if report.step is not None]


def _plain_count(lines: Sequence[bytes]) -> LogMatch | None:
    """Return the surest of the plain expressions whose counts rise, if one does."""
    for pattern, names in product(_COUNTING, (_OF_TRAINING, _OF_EPOCH)):
        expression = pattern.format(**names)
        if names is _OF_TRAINING and EPOCH in re.compile(expression).groupindex:
            continue

        steps = _steps(lines, expression)
        matching = re.compile(expression.encode())
        num_lines = sum(matching.search(line) is not None for line in lines)

        rises = [two - one for one, two in pairwise(steps)]
        if min(rises, default=0) > 0 and len(steps) >= _LEAST_ALIKE * num_lines:
            if min(rises) > 1 and _steps(lines, expression + _PERCENTAGE) == steps:
                names = _OF_SAMPLES
                expression = pattern.format(**names) + _PERCENTAGE
            if _steps(lines, expression + LOSS) == steps:
                expression += LOSS
            return LogMatch(
                expression=expression, num_steps=len(steps), counted=names["count"]
            )
    return None


def _example(lines: Sequence[bytes]) -> str | None:
    """Return a line that an expression might be written for."""
    texts = [_UNSHOWN.sub("", line.decode(errors="replace")).strip() for line in lines]
    numbered = [text for text in texts if re.search(r"\d", text)]
    named = [text for text in numbered if re.search(r"step|iter|batch", text, re.I)]
    found = named or numbered
    return found[len(found) // 2][:80] if found else None
