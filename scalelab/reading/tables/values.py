"""Parse the cells of a foreign table: its numerals, and each value in our unit."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import product
from typing import Any

from scalelab.errors import SpecError
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import Option, shown
from scalelab.reading.tables.file import MISSING, ForeignTable
from scalelab.reading.tables.names import LENGTHS, Meaning
from scalelab.reading.vocabulary import SECONDS
from scalelab.records.columns import COLUMNS_BY_NAME

_SPACES = re.compile("[\u00a0\u2009\u202f']")
_BETWEEN_DIGITS = re.compile(r"(?<=\d) (?=\d{3}(\D|$))")


def _decimal(sign: str, other: str) -> re.Pattern[str]:
    # numbers that show that a sign is decimal and the other one is not
    return re.compile(
        rf"[+-]?(0{sign}\d+|\d+{sign}(\d{{1,2}}|\d{{4,}})|\d{{4,}}{sign}\d+"
        rf"|\d{{1,3}}({other}\d{{3}})+{sign}\d+|\d{{1,3}}({other}\d{{3}}){{2,}})"
    )


_DECIMALS = {".": _decimal(r"\.", ","), ",": _decimal(",", r"\.")}
_IN_THOUSANDS = {
    ".": re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(?![\d.])"),
    ",": re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(?![\d,])"),
}
_OTHER = {".": ",", ",": "."}


def decimal_sign(table: ForeignTable, columns: Mapping[str, bool]) -> tuple[str, str]:
    """Return the decimal sign of a table's numbers, and a cell that tells it.

    ``0,5`` tells it, and ``1,024`` in a column of whole numbers. The point of ``1.024``
    is a decimal one between commas and in Parquet. Given are the columns of numbers,
    and whether each holds whole ones.
    """
    shown_by: dict[str, str] = {}
    unclear = None

    looked_at = ",." if table.separator not in ("", ",") else ","
    for (name, is_whole), row in product(columns.items(), table.rows):
        word = (row.cells[name].split() or [""])[0].removesuffix("%")
        for sign, pattern in _DECIMALS.items():
            if pattern.fullmatch(word):
                shown_by.setdefault(sign, f"line {row.line} has {shown(word)}")
        for sign in (sign for sign in looked_at if _IN_THOUSANDS[sign].fullmatch(word)):
            if is_whole:
                column = f"in the column {shown(name)} of whole numbers"
                sentence = f"line {row.line} has {shown(word)} {column}"
                shown_by.setdefault(_OTHER[sign], sentence)
            unclear = unclear or (sign, word, name, row.line)

    if len(shown_by) > 1:
        raise SpecError(
            f"{table.path}: {shown_by[',']}, with a decimal comma, and "
            f"{shown_by['.']}, with a decimal point. Write all numbers in one way, or "
            f"say which sign is the decimal one ({Option('decimal', '.')} or "
            f"{Option('decimal', ',')}).",
            code="two_decimal_signs",
        )

    if shown_by:
        return next(iter(shown_by.items()))
    if unclear is None:
        return ".", ""

    sign, word, name, line = unclear
    noun, digits = "comma" if sign == "," else "point", word.replace(sign, "")
    raise SpecError(
        f"{table.path}, line {line}, column {shown(name)}: {shown(word)} is {digits} "
        f"if its {noun} stands between thousands, else {word.replace(',', '.')}; no "
        "number of the table tells which.",
        f"Say {Option('decimal', _OTHER[sign])} for {digits}, or "
        f"{Option('decimal', sign)} for {word.replace(',', '.')}.",
        code="ambiguous_number",
    )


def plain_number(text: str, decimal: str) -> str:
    """Write a number with a decimal point and without signs between thousands.

    >>> plain_number("1.024,5", ","), plain_number("1,024.5", ".")
    ('1024.5', '1024.5')
    """
    text = _BETWEEN_DIGITS.sub("", _SPACES.sub("", text))
    if _IN_THOUSANDS[_OTHER[decimal]].match(text):
        text = text.replace(_OTHER[decimal], "")
    return text.replace(",", ".", 1) if decimal == "," else text


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no value.

    >>> is_missing("N/A"), is_missing("0")
    (True, False)
    """
    return text.lower() in MISSING


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST_WHOLE = 2**53
_MAX_DEVICES = 1_000_000
_MAX_STEP_TIME_S = 86_400.0
_COUNTS = frozenset(
    "num_nodes world_size data_parallel_size threads_per_rank local_batch_size "
    "gradient_accumulation_steps global_batch_size normalization_batch_size "
    "sequence_length samples_to_target steps_to_target".split()
)
_POSITIVE = frozenset(
    "gpus_per_node step_time_s step_time_lo_s step_time_hi_s throughput_samples_per_s "
    "base_learning_rate learning_rate time_to_target_s".split()
)
_SIGNED = frozenset({"target_value", "final_metric"})
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "outcome": tuple(Outcome),
    "device_type": ("cpu", "cuda", "tpu"),
    "metric_mode": ("min", "max"),
    "energy_source": ("measured", "modelled"),
}
_SYNONYMS: Mapping[str, Mapping[str, str]] = {
    "outcome": {
        **dict.fromkeys(
            "ok success succeeded done finished passed".split(), str(Outcome.COMPLETED)
        ),
        **dict.fromkeys("fail error crash crashed".split(), str(Outcome.FAILED)),
        **dict.fromkeys(("timeout", "timed out"), str(Outcome.TIMED_OUT)),
        **dict.fromkeys(
            ("not reached", "never", "never reached", "not converged", "diverged"),
            str(Outcome.TARGET_NOT_REACHED),
        ),
    },
    "device_type": {"gpu": "cuda"},
}
_NO_MEMORY = (
    r"(oom|out[ _-]?of[ _-]?mem(ory)?(error)?|resource_exhausted|memory ?error"
    r"|(not enough|insufficient) memory|does(n't| not) fit)"
)
_OUT_OF_MEMORY = re.compile(rf"(.*[\W_])?{_NO_MEMORY}(\W.*)?", re.IGNORECASE)
_SHORT_REMARK = 24
_FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.TARGET_NOT_REACHED)
_BEGINS_OUT_OF_MEMORY = re.compile(
    rf"(cuda |gpu )?{_NO_MEMORY}(?!.*\b(no|not|none|never)\b)(\W.*)?", re.IGNORECASE
)
_COUNTED = re.compile(r" ?x?(gpus?|tpus?|nodes?|devices?|chips?|samples|images)")
_PER_SECOND = re.compile(r" ?(samples|images|imgs?|examples|seqs?|sequences)/s(ec)?")
_DURATION = re.compile(r"([\d.eE+-]+) ?([a-z]+)")


def parse(name: str, text: str) -> Any:
    """Return the value of a cell of a known column; None where it is empty."""
    kind, lowered = COLUMNS_BY_NAME[name].kind, text.lower()
    if is_missing(text) if kind != "text" else lowered in ("", "n/a", "#n/a"):
        return None

    text = (
        lowered if name == "precision" else _SYNONYMS.get(name, {}).get(lowered, text)
    )
    if name == "outcome" and is_out_of_memory(text):
        return str(Outcome.OUT_OF_MEMORY)

    value = _PARSERS[kind](text)
    _check_range(name, kind, value)
    return value


def parse_cell(meaning: Meaning, text: str, decimal: str) -> Any:
    """Return the value of a cell in our unit; None where it is empty."""
    name = meaning.column
    kind = COLUMNS_BY_NAME[name].kind
    if kind not in ("integer", "number"):
        return parse(name, text)
    if is_missing(text):
        return None

    text, factor = _without_unit(meaning, plain_number(text, decimal))
    if factor == 1 and not meaning.is_step_rate and name not in LENGTHS:
        return parse(name, text)

    value = _number(text)
    if meaning.is_step_rate and value <= 0:
        raise ValueError("must be more than 0")

    value = 1 / value if meaning.is_step_rate else value * factor
    value = round(value) if kind == "integer" else value
    _check_range(name, kind, value)
    return value


def _without_unit(meaning: Meaning, text: str) -> tuple[str, float]:
    # a number, and the unit of ours that is written behind it or that its column has
    name = meaning.column
    if name == "gpu_utilization" and text.endswith("%"):
        return text[:-1].rstrip(), 0.01
    if not text[-1:].isalpha():
        return text, meaning.factor
    if name == "throughput_samples_per_s":
        return _PER_SECOND.sub("", text.lower()), 1.0

    found = _DURATION.fullmatch(text.replace("\u00b5", "u"))
    if found and name.endswith("_s") and found[2] in SECONDS:
        return found[1], SECONDS[found[2]]
    if name in _COUNTS:
        return _COUNTED.sub("", text.lower()), 1.0

    return text, meaning.factor


def is_out_of_memory(text: str) -> bool:
    """Whether a cell says that the device ran out of memory.

    >>> is_out_of_memory("CUDA OOM"), is_out_of_memory("room")
    (True, False)
    """
    return bool(_OUT_OF_MEMORY.fullmatch(text))


def remarks_out_of_memory(text: str) -> bool:
    """Whether a remark is short and begins with the device running out of memory.

    >>> remarks_out_of_memory("OOM!"), remarks_out_of_memory("no OOM seen")
    (True, False)
    """
    is_short = len(text) <= _SHORT_REMARK
    return is_short and bool(_BEGINS_OUT_OF_MEMORY.fullmatch(text))


def failure(text: str) -> str | None:
    """Return the outcome that stands in a cell instead of a time, if one does."""
    if is_out_of_memory(text) and not text[:1].isdigit():
        return str(Outcome.OUT_OF_MEMORY)
    lowered = text.lower()
    found = _SYNONYMS["outcome"].get(lowered, lowered)
    return found if found in _FAILURES else None


def _check_range(name: str, kind: str, value: Any) -> None:
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}")
    if kind not in ("integer", "number"):
        return

    for is_wrong, rule in (
        (name in _COUNTS and value < 1, "at least 1"),
        (name in _POSITIVE and value <= 0, "more than 0"),
        (name not in _SIGNED and value < 0, "at least 0"),
        (
            name in ("world_size", "num_nodes") and value > _MAX_DEVICES,
            f"at most {_MAX_DEVICES}",
        ),
        (
            name == "step_time_s" and value > _MAX_STEP_TIME_S,
            f"at most {_MAX_STEP_TIME_S:.0f}: it is in seconds per step",
        ),
        (name == "gpu_utilization" and value > 1, "a share between 0 and 1"),
    ):
        if is_wrong:
            raise ValueError(f"must be {rule}")


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text) or not math.isfinite(value := float(text)):
        raise ValueError(
            "must be a finite number such as 0.125; leave the cell empty if it is "
            "unknown"
        )
    return value


def _whole(text: str) -> int:
    try:
        value = _number(text)
    except ValueError:
        value = math.nan
    if not value.is_integer() or abs(value) > _LARGEST_WHOLE:
        grouped = f" ({text.replace('.', '')}, if its point stands between thousands)"
        hint = grouped if _IN_THOUSANDS["."].fullmatch(text) else ""
        raise ValueError(f"must be a whole number such as 8{hint}")
    return int(value)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise ValueError("must be true or false")
    return text.lower() in ("true", "1")


def _time(text: str) -> str:
    with suppress(ValueError):
        if datetime.fromisoformat(text).utcoffset() is not None:
            return text
    raise ValueError("must be a time with its offset, e.g. 2026-01-31T12:00:00Z")


def _list(text: str) -> list[str]:
    with suppress(ValueError):
        values = json.loads(text)
        if isinstance(values, list) and all(isinstance(value, str) for value in values):
            return values
    raise ValueError('must be a JSON list of text, e.g. ["0", "1"]')


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _whole,
    "number": _number,
    "flag": _flag,
    "text": str,
    "time": _time,
    "list": _list,
}


def parse_option(texts: Sequence[str]) -> list[Any]:
    """Return the values of a further axis: whole numbers, numbers, flags or text.

    The first of these that every cell is; what :func:`is_missing` is missing in a
    column of numbers or flags, and text in a column of text.
    """
    for parser in (_whole, _number, _flag):
        try:
            return [None if is_missing(text) else parser(text) for text in texts]
        except ValueError:
            continue
    return [text or None for text in texts]
