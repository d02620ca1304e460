"""The experiment that is proposed for a script: commented YAML."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scalelab.experiment.presets import PRESETS
from scalelab.experiment.program import BATCH_OF_EPOCH, SAMPLES_OF_EPOCH
from scalelab.experiment.spec import Experiment
from scalelab.inputs.lines import one_line
from scalelab.inputs.placeholders import PLACEHOLDERS
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
from scalelab.running.proposal.sample_log import PLAIN, LogReading
from scalelab.running.proposal.script import Script
from scalelab.running.proposal.surroundings import Surroundings, surroundings
from scalelab.site.profile import num_cores, num_visible_gpus

_WIDTH = 86
_NO_REGEX = "metrics.regex, the expression for a line that reports a step"
_OTHERS = textwrap.wrap(
    f"or one of {', '.join(PRESETS)}: init --from SCRIPT --log LOG finds out which; "
    "docs/recipes.md tells of them",
    _WIDTH,
    initial_indent="# ",
    subsequent_indent="# ",
    break_on_hyphens=False,
)
_MEASURE = (
    "# A trial ends by itself when it has measured enough; the script must not end",
    "# before it has made warmup_steps + steps.",
    "measure: {kind: throughput, warmup_steps: 5, steps: 50, repeats: 3}",
)
# What a count is taken for, and what to write where it is something else.
_COUNTED = {
    "step": (
        "steps of the whole training. If they begin anew in each",
        "epoch: batch_of_epoch, or step_of_epoch where they are optimiser steps.",
    ),
    BATCH_OF_EPOCH: (
        "batches of each epoch anew. If they are optimiser",
        "steps: step_of_epoch and steps_of_epoch.",
    ),
    SAMPLES_OF_EPOCH: (
        "samples of each epoch anew, by their rises. If they",
        "are batches: batch_of_epoch and batches_of_epoch.",
    ),
}
_PLAIN_WORD = re.compile(r"[\w./-]+", re.ASCII)
_MOST_BATCH = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A proposed experiment: its YAML, options that trials fill in, what to write."""

    text: str
    found: tuple[str, ...]
    to_fill_in: tuple[str, ...]


def draft(
    script: Script,
    log: LogReading | None,
    *,
    log_name: str,
    directory: Path,
    python: str = "python",
) -> Draft:
    """Return the experiment that is proposed for a script."""
    rows = understood(script)
    filled = [row for row in rows if row.placeholder]
    taken = [row.option for row in filled]
    kept = [option for option in script.options if option not in taken]
    around = surroundings(script, directory, kept)
    by_meaning = {row.meaning: row for row in reversed(rows)}
    metrics = list(_metrics(script, log, one_line(log_name)))
    job, missing = _job(by_meaning)
    to_fill_in = [f"{each.flag} in the command" for each in kept if each.is_required]
    if not by_meaning.keys() & {LOCAL_BATCH, GLOBAL_BATCH}:
        to_fill_in.append("how the script takes its batch size, {local_batch_size}")
    if any(PLAIN in line for line in metrics) and not (log and log.expression):
        to_fill_in.append(_NO_REGEX)
    to_fill_in.append(f"job.{missing}, and remove the # before job")
    given = [
        *((row.option, row.words) for row in filled),
        *((each, each.with_value(value)) for each, value in around.elsewhere),
        *(
            (each, each.with_value(each.placeholder))
            for each in kept
            if each.is_required
        ),
    ]
    # What has no flag is known by its place: such words come last, as defined.
    given.sort(key=lambda each: not each[0].joint and script.options.index(each[0]) + 1)
    words = [
        shlex.quote(python),
        *_script_words(script, around),
        *(words for _, words in given),
    ]
    lines = [
        "# yaml-language-server: $schema=experiment.schema.json (scalelab schema)",
        f"# Proposed for {script.path.name}, which was read and not run: check each "
        "line.",
        *(f"# Fill in: {each}." for each in to_fill_in),
        f"name: {_name(script.path)}",
        "",
        *_said_of(rows),
        *_command(words),
        *_launcher(script),
        _code(around, directory.resolve()),
        *metrics,
        "",
        *_MEASURE,
        "",
        "# The job the answer is for: epochs, steps, samples, tokens, or a target.",
        "# Only you know it: fill it in, and remove the # before it.",
        f"# {job}",
        "",
        "# The axes: one value or a list each; more GPUs with a cluster's site: NAME.",
        f"gpus: [{', '.join(map(str, _devices(script)))}]",
        *_axes(by_meaning),
        "",
    ]
    text = "\n".join(lines)
    Experiment.from_text(text, source="the proposed experiment", directory=directory)
    found = tuple(row.words for row in filled)
    return Draft(text=text, found=found, to_fill_in=tuple(to_fill_in))


def _script_words(script: Script, around: Surroundings) -> tuple[str, ...]:
    if script.module:
        return ("-m", script.module)
    return (shlex.quote(script.path.relative_to(around.root).as_posix()),)


def _name(path: Path) -> str:
    generic = path.stem in ("train", "main", "run", "__main__")
    folder = path.parent.name
    name = f"{folder}-{path.stem}" if generic and folder else path.stem
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-_.")[:64] or "my-model"
    # YAML reads some names, such as 2024, as something else than text.
    is_text = plain[0].isalpha() and plain.lower() not in ("true", "false", "null")
    return plain if is_text else json.dumps(plain)


def _said_of(rows: Iterable[Understood]) -> Iterator[str]:
    """Yield a comment for each option that means something to a sweep."""
    if not rows:
        yield "# No options were found that a sweep would set: put placeholders such as"
        yield "# {local_batch_size} into the command, or name variables under uses."
        return
    yield "# What its options seem to mean:"
    for row in rows:
        told, default = row.placeholder, _number(row.option.default)
        yield f"#   {row.option.flag}  {row.value if told else 'left alone'}"
        means = PLACEHOLDERS[told] if told else row.meaning.what
        known = "" if default is None else f", {default:g} by default"
        because = f"; {one_line(row.because)[:60]}" if row.because else ""
        yield f"#       {means}{known}{because}"


def _command(words: list[str]) -> Iterator[str]:
    if "/" in words[0]:
        yield "# The Python of the active environment, which is not ScaleLab's own."
    line = " ".join(words)
    if not line.isascii() or "  " in line:
        yield f"command: {json.dumps(line)}"  # folding would change it
        return
    yield "command: >-"
    unbroken = " ".join(word.replace(" ", "\0") for word in words)
    folded = textwrap.wrap(
        unbroken, _WIDTH - 2, break_long_words=False, break_on_hyphens=False
    )
    yield from ("  " + each.replace("\0", " ") for each in folded)


def _launcher(script: Script) -> Iterator[str]:
    if script.drives_all_devices:
        yield "launcher: none                 # one process drives all devices"
    elif script.trains_on_several:
        name = "mpirun" if script.all_packages & {"mpi4py", "horovod"} else "torchrun"
        yield f"{f'launcher: {name}':<31}# one process per rank"
    else:
        yield "# One process on one device: nothing in the script, or in modules beside"
        yield "# it, joins ranks. If something does: launcher: torchrun, and more gpus."
        yield "launcher: none"


def _code(around: Surroundings, directory: Path) -> str:
    items, where = ", ".join(map(_quoted, around.copied)), ""
    if around.root != directory:
        is_below = around.root.is_relative_to(directory)
        root = around.root.relative_to(directory) if is_below else around.root
        where = f"root: {_quoted(str(root))}, "
    return f"code: {{{where}snapshot: [{items}]}}   # copied when the sweep starts"


def _quoted(text: str) -> str:
    return text if _PLAIN_WORD.fullmatch(text) else json.dumps(text)


def _metrics(script: Script, log: LogReading | None, log_name: str) -> Iterator[str]:
    """Yield how steps are read: what a sample shows, else what imports suggest."""
    guessed = (row for row in PRESETS.values() if script.packages & {*row.packages})
    row, comment = next(guessed, None), ""
    if log:
        row, comment = log.preset, f"reads {log.num_steps} steps of {log_name}"
    elif row:
        used = min(script.packages & {*row.packages})
        comment = f"guessed: it imports {used}; --log would tell"
    if row:
        yield f"metrics: {row.name:<22}# {comment}"
        return
    if script.files and not (log and log.expression):
        told = f"{log_name} shows no step" if log else "--log of its output tells"
        yield f"# Guessed: it seems to write them there; {told}."
        yield f"metrics: {{{script.files}}}"
        return
    if log and log.expression:
        first, second = _COUNTED[log.counted]
        yield f"# {log_name} counts {first}"
        yield f"# {second}"
        yield "# If it evaluates in between, add evaluation: 'words of a line of that'."
    elif log:
        yield f"# Nothing reads a step of {log_name}: write an expression that does."
        if log.example:
            yield f"# {log.example}"
    expression = (log and log.expression) or PLAIN
    quoted = expression.replace("'", "''")
    yield f"metrics: {{regex: '{quoted}'}}"
    if not log:
        yield from _OTHERS


def _job(rows: Mapping[Meaning, Understood]) -> tuple[str, str]:
    """Return the job, and which of its keys nobody but the user knows."""
    if steps := _default(rows, STEPS):
        missing = "global_batch_size"
        return f"job: {{steps: {steps}, {missing}: NUMBER}}", missing
    epochs, missing = _default(rows, EPOCHS) or "NUMBER", "samples_per_epoch"
    return f"job: {{epochs: {epochs}, {missing}: NUMBER}}", missing


def _axes(rows: Mapping[Meaning, Understood]) -> Iterator[str]:
    batch = _default(rows, LOCAL_BATCH) or _default(rows, GLOBAL_BATCH) or 32
    size = f"local_batch_size: [{min(batch, _MOST_BATCH)}]"
    yield f"{size:<31}# of a rank; or auto: the largest that fits"
    filled = {meaning for meaning, row in rows.items() if row.placeholder}
    if ACCUMULATION in filled:
        if rows[ACCUMULATION].placeholder == ACCUMULATION.placeholder:
            yield f"gradient_accumulation_steps: {_default(rows, ACCUMULATION) or 1}"
    if RATE in filled:
        rate = _number(rows[RATE].option.default)
        rate = rate if rate and rate > 0 else 0.1
        base = f"{{base: {rate}, at_batch: 256, rule: linear}}"
        yield f"{f'learning_rate: {rate}':<31}# or {base}"
    if SEED in filled and (seed := _default(rows, SEED)):
        yield f"seed: {seed}"
    if PRECISION in filled:
        yield f"precision: {rows[PRECISION].option.default}"


def _default(rows: Mapping[Meaning, Understood], meaning: Meaning) -> int | None:
    """Return the default of the option of a meaning, if it is a count."""
    number = _number(rows[meaning].option.default) if meaning in rows else None
    if number is None or not 0 < number < 2**31 or number != int(number):
        return None
    return int(number)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e15 else None


def _devices(script: Script) -> list[int]:
    """Return the powers of two up to the devices of this machine, at most 8."""
    if not (script.trains_on_several or script.drives_all_devices):
        return [1]
    most = min(num_visible_gpus() or num_cores(), 8)
    return [count for count in (1, 2, 4, 8) if count <= most]
