"""Which preset reads a sample of a program's output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.experiment.presets import PRESETS, Preset
from scalelab.experiment.program import MetricsSource
from scalelab.inputs.problems import shown
from scalelab.launch.command.readers import line_reader
from scalelab.running.proposal.counting_lines import counting_expression
from scalelab.running.proposal.script import read_small_file

MAX_LOG_BYTES = 16 << 20
_MAX_LINE_BYTES = 10_000
_LINE_ENDS = re.compile(rb"[\r\n]+")
_UNSHOWN = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[^ -~]")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReading:
    """What the presets read of a sample.

    Parameters
    ----------
    preset
        The one that reads most steps; None: none reads any.
    num_steps
        Steps that it reads.
    expression
        Where no preset reads any: an expression for the lines that count up to a
        length; None: there are no such lines.
    example
        A line with a number in it, such as an expression might be written for; None:
        there is none.
    """

    preset: Preset | None
    num_steps: int
    expression: str | None
    example: str | None


def read_log(path: Path) -> LogReading:
    """Return which preset reads most steps of a log.

    Raises
    ------
    SpecError
        If the log cannot be read, is empty, larger than 16 MiB, or no text.
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
    counts = {name: _num_steps(row, lines) for name, row in PRESETS.items()}
    best = max(counts, key=lambda name: counts[name])
    texts = [_UNSHOWN.sub("", line.decode(errors="replace")).strip() for line in lines]
    return LogReading(
        preset=PRESETS[best] if counts[best] else None,
        num_steps=counts[best],
        expression=None if counts[best] else counting_expression(texts),
        example=_example(texts),
    )


def _num_steps(row: Preset, lines: list[bytes]) -> int:
    reader = line_reader(MetricsSource(regex=row.regex, evaluation=row.evaluation))
    reports = (reader.read(line) for line in lines)
    return len(
        {
            report.step
            for report in reports
            if report and not report.is_evaluation and report.step is not None
        }
    )


def _example(texts: list[str]) -> str | None:
    """Return the line that a step may stand in, as a comment can show it."""
    numbered = [text for text in texts if re.search(r"\d", text)]
    named = [text for text in numbered if re.search(r"step|iter|batch", text, re.I)]
    found = named or numbered
    return found[len(found) // 2][:80] if found else None
