"""The experiment that is proposed for a script: commented YAML."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scalelab.errors import SpecError
from scalelab.experiment.presets import PRESETS, Preset
from scalelab.experiment.spec import Experiment
from scalelab.inputs.lines import one_line
from scalelab.inputs.placeholders import PLACEHOLDERS
from scalelab.inputs.problems import shown
from scalelab.running.proposal.meanings import (
    ACCUMULATION,
    EPOCHS,
    GLOBAL_BATCH,
    LOCAL_BATCH,
    PRECISION,
    RATE,
    SEED,
    STEPS,
    Meaning,
    Understood,
    understood,
)
from scalelab.running.proposal.sample_log import LogReading
from scalelab.running.proposal.script import Script, ScriptOption, imported
from scalelab.site.local_devices import num_cores, num_visible_gpus

_WIDTH = 86
_REGEX = r"metrics: {regex: 'step +(?P<step>\d+)'}"
_NO_REGEX = "metrics.regex, the expression for a line that reports a step"
_OTHERS = (
    f"# or one of {', '.join(PRESETS)}:",
    "# init --from SCRIPT --log LOG finds out which; docs/recipes.md tells of them",
)
_MEASURE = (
    "# A trial ends by itself when it has measured enough; the script must not end",
    "# before it has made warmup_steps + steps.",
    "measure: {kind: throughput, warmup_steps: 5, steps: 50, repeats: 3}",
)
_PLAIN = re.compile(r"[\w./-]+", re.ASCII)
_FILE = re.compile(r"[\w./-]{1,200}\.py", re.ASCII)
_MOST_BATCH = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A proposed experiment.

    Parameters
    ----------
    text
        The YAML.
    found
        Options that trials fill in, as they stand in the command.
    to_fill_in
        What the user has to write, each as a short clause.
    """

    text: str
    found: tuple[str, ...]
    to_fill_in: tuple[str, ...]


class _Metrics(NamedTuple):
    """The lines of the metrics, and what has to be filled in there."""

    lines: list[str]
    to_fill_in: Sequence[str] = ()


def draft(
    script: Script, log: LogReading | None, *, log_name: str, directory: Path
) -> Draft:
    """Return the experiment that is proposed for a script.

    Parameters
    ----------
    script
        What the script says of itself.
    log
        What the presets read of a sample of its output; None: there is no sample.
    log_name
        What comments call the sample.
    directory
        Folder of the experiment's file.

    Raises
    ------
    SpecError
        If the path of the script has no place in an experiment.
    """
    path, root = _places(script.path, directory)
    options = understood(script)
    filled = [each for each in options if each.placeholder]
    required = _required(script, filled)
    metrics = _metrics(script, log, log_name)
    to_fill_in = [
        *(f"{option.flag} in the command" for option in required),
        *_batch_to_fill_in(options),
        *metrics.to_fill_in,
        _job_to_fill_in(options),
    ]
    lines = [
        "# yaml-language-server: $schema=experiment.schema.json (scalelab schema)",
        f"# Proposed for {path.name}, which was read and not run: check each line.",
        *(f"# Fill in: {each}." for each in to_fill_in),
        f"name: {_name(path)}",
        "",
        *_said_of(options),
        *_command(_words(path.relative_to(root), filled, required)),
        *_launcher(script),
        _code(path, root, script, is_below=root == directory.resolve()),
        *metrics.lines,
        "",
        *_MEASURE,
        "",
        "# The job the answer is for: epochs, steps, samples, tokens, or a target.",
        "# Only you know it: fill it in, and remove the # before it.",
        f"# {_job(options)}",
        "",
        "# The axes: one value or a list each; more GPUs with a cluster's site: NAME.",
        f"gpus: [{', '.join(map(str, _devices()))}]",
        *_axes(options),
        "",
    ]
    text = "\n".join(lines)
    Experiment.from_text(text, source="the proposed experiment", directory=root)
    found = tuple(each.words for each in filled)
    return Draft(text=text, found=found, to_fill_in=tuple(to_fill_in))


def _places(script: Path, directory: Path) -> tuple[Path, Path]:
    """Return the path of the script, and the root of the code: a folder above it."""
    path, beside = script.resolve(), directory.resolve()
    if not str(path).isprintable():
        raise SpecError(
            f"{shown(str(path))} holds characters that cannot be shown. Rename it."
        )
    return path, beside if path.is_relative_to(beside) else path.parent


def _required(script: Script, filled: Iterable[Understood]) -> list[ScriptOption]:
    """Return the options that the script needs and no trial fills in."""
    known = [each.option for each in filled]
    return [each for each in script.options if each.is_required and each not in known]


def _batch_to_fill_in(options: Iterable[Understood]) -> list[str]:
    if any(each.meaning in (LOCAL_BATCH, GLOBAL_BATCH) for each in options):
        return []
    return ["how the script takes its batch size, {local_batch_size}"]


def _words(
    path: Path, filled: Iterable[Understood], required: Iterable[ScriptOption]
) -> list[str]:
    """Return the words of the command line."""
    words = ["python", shlex.quote(path.as_posix())]
    words += [each.words for each in filled]
    return [*words, *(each.with_value(_to_replace(each)) for each in required)]


def _to_replace(option: ScriptOption) -> str:
    return option.flag.lstrip("-").replace("-", "_").upper()


def _name(path: Path) -> str:
    generic = path.stem in ("train", "main", "run", "__main__")
    folder = path.parent.name
    name = f"{folder}-{path.stem}" if generic and folder else path.stem
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-_.")[:64] or "my-model"
    # YAML reads some names, such as 2024, as something else than text.
    is_text = plain[0].isalpha() and plain.lower() not in ("true", "false", "null")
    return plain if is_text else json.dumps(plain)


def _said_of(options: Iterable[Understood]) -> Iterator[str]:
    """Yield a comment for each option that means something to a sweep."""
    rows = list(options)
    if not rows:
        yield "# No options were found that a sweep would set: put placeholders such as"
        yield "# {local_batch_size} into the command, or name variables under uses."
        return
    yield "# What its options seem to mean:"
    for row in rows:
        told = row.placeholder
        yield f"#   {row.option.flag}  {row.value if told else 'left alone'}"
        means = PLACEHOLDERS[told] if told else row.meaning.what
        yield f"#       {means}{_known_of(row)}"


def _known_of(row: Understood) -> str:
    """Return what a script says of an option, to follow what it means."""
    number = _number(row.option.default)
    default = "" if number is None else f", {number:g} by default"
    return f"{default}; {one_line(row.because)[:60]}" if row.because else default


def _command(words: list[str]) -> Iterator[str]:
    line = " ".join(words)
    if not line.isascii() or "  " in line:
        yield f"command: {json.dumps(line)}"  # folding would change it
        return
    yield "command: >-"
    folded = " "
    for word in words:
        if len(folded) + len(word) >= _WIDTH:
            yield folded
            folded = " "
        folded += f" {word}"
    yield folded


def _launcher(script: Script) -> Iterator[str]:
    if script.drives_all_devices:
        yield "launcher: none                 # one process drives all devices"
        return
    yield "launcher: torchrun             # one process per rank; none: one per trial"
    if not script.trains_on_several:
        yield "# Nothing in the script shows that it trains on several devices. Each of"
        yield "# its processes trains by itself unless it reads RANK and WORLD_SIZE."


def _code(path: Path, root: Path, script: Script, *, is_below: bool) -> str:
    files = sorted(_local_files(path, root, script))
    items = ", ".join(map(_quoted, files))
    where = "" if is_below else f"root: {_quoted(str(root))}, "
    return f"code: {{{where}snapshot: [{items}]}}   # copied when the sweep starts"


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _local_files(path: Path, root: Path, script: Script) -> set[str]:
    """Return the script, and files beside it that it imports or names."""
    found, waiting = {path}, [script.packages]
    named = (path.parent / text for text in script.texts if _FILE.fullmatch(text))
    found |= {each.resolve() for each in named if each.is_file()}
    while waiting:
        for package in waiting.pop():
            module, folder = path.parent / f"{package}.py", path.parent / package
            if any(folder.glob("*.py")):
                found.add(folder)
            if module.is_file() and module not in found:
                found.add(module)
                waiting.append(_packages_of(module))
    below = [each for each in found if each.is_relative_to(root)]
    return {
        each.relative_to(root).as_posix() + ("/" if each.is_dir() else "")
        for each in below
    }


def _packages_of(path: Path) -> frozenset[str]:
    """Return what a module beside the script imports; nothing where it is no Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(imported(list(ast.walk(tree))))


def _metrics(script: Script, log: LogReading | None, log_name: str) -> _Metrics:
    """Return how steps are read: what a sample shows, else what imports suggest."""
    if log and log.preset:
        comment = f"reads {log.num_steps} steps of {one_line(log_name)}"
        return _Metrics([_preset_line(log.preset, comment)])
    if log and log.expression:
        return _Metrics(
            [*_counted(one_line(log_name)), _expression_line(log.expression)]
        )
    if log:
        return _Metrics([*_not_read(log, one_line(log_name)), _REGEX], [_NO_REGEX])
    for row in PRESETS.values():
        if used := script.packages & {*row.packages}:
            comment = f"guessed: it imports {min(used)}; --log would tell"
            return _Metrics([_preset_line(row, comment)])
    return _Metrics([_REGEX, *_OTHERS], [_NO_REGEX])


def _preset_line(row: Preset, comment: str) -> str:
    return f"metrics: {row.name:<22}# {comment}"


def _expression_line(expression: str) -> str:
    quoted = expression.replace("'", "''")
    return f"metrics: {{regex: '{quoted}'}}"


def _counted(log_name: str) -> Iterator[str]:
    yield f"# No preset reads {log_name}. These lines count up to a length: if they"
    yield "# count optimiser steps of an epoch, not batches, write step_of_epoch and"
    yield "# steps_of_epoch. If the script evaluates in between, add an expression for"
    yield "# a line of that, evaluation: '...'. docs/recipes.md tells more of both."


def _not_read(log: LogReading, log_name: str) -> Iterator[str]:
    yield f"# No preset reads a step of {log_name}: write an expression that does."
    if log.example:
        yield f"# {log.example}"


def _job(options: Iterable[Understood]) -> str:
    epochs, steps = _default(options, EPOCHS), _default(options, STEPS)
    if steps:
        return f"job: {{steps: {steps}, global_batch_size: NUMBER}}"
    return f"job: {{epochs: {epochs or 'NUMBER'}, samples_per_epoch: NUMBER}}"


def _job_to_fill_in(options: Iterable[Understood]) -> str:
    is_in_steps = _default(options, STEPS)
    missing = "global_batch_size" if is_in_steps else "samples_per_epoch"
    return f"job.{missing}, and remove the # before job"


def _batch(options: Iterable[Understood]) -> int:
    batch = _default(options, LOCAL_BATCH) or _default(options, GLOBAL_BATCH) or 32
    return min(batch, _MOST_BATCH)


def _axes(options: list[Understood]) -> Iterator[str]:
    size = f"local_batch_size: [{_batch(options)}]"
    yield f"{size:<31}# of a rank; or auto: the largest that fits"
    if _placeholder(options, ACCUMULATION) == ACCUMULATION.placeholder:
        yield f"gradient_accumulation_steps: {_default(options, ACCUMULATION) or 1}"
    if _placeholder(options, RATE):
        rate = _rate(options)
        base = f"{{base: {rate}, at_batch: 256, rule: linear}}"
        yield f"{f'learning_rate: {rate}':<31}# or {base}"
    if _placeholder(options, SEED) and (seed := _default(options, SEED)):
        yield f"seed: {seed}"
    if _placeholder(options, PRECISION):
        yield f"precision: {_option(options, PRECISION).default}"


def _rate(options: Iterable[Understood]) -> float:
    rate = _number(_option(options, RATE).default)
    return rate if rate and rate > 0 else 0.1


def _option(options: Iterable[Understood], meaning: Meaning) -> ScriptOption:
    return next(each.option for each in options if each.meaning is meaning)


def _placeholder(options: Iterable[Understood], meaning: Meaning) -> str | None:
    return next((each.placeholder for each in options if each.meaning is meaning), None)


def _default(options: Iterable[Understood], meaning: Meaning) -> int | None:
    """Return the default of the option of a meaning, if it is a count."""
    for each in options:
        number = _number(each.option.default)
        if each.meaning is meaning and number is not None and 0 < number < 2**31:
            return int(number) if number == int(number) else None
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e15 else None


def _devices() -> list[int]:
    """Return the powers of two up to the devices of this machine, at most 8."""
    most = min(num_visible_gpus() or num_cores(), 8)
    return [count for count in (1, 2, 4, 8) if count <= most]
