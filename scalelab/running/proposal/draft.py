"""The experiment that is proposed for a script: commented YAML."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from scalelab.experiment.presets import PRESETS
from scalelab.experiment.spec import Experiment
from scalelab.inputs.lines import one_line
from scalelab.running.proposal.meanings import understood
from scalelab.running.proposal.options import ScriptOption
from scalelab.running.proposal.sample_log import PLAIN, LogReading
from scalelab.running.proposal.script import Script
from scalelab.running.proposal.surroundings import Surroundings, surroundings
from scalelab.site.profile import num_cores, num_visible_gpus

_WIDTH = 84
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
    given = [(row.option, row.value) for row in rows if row.placeholder]
    filled = {row.meaning: row for row in reversed(rows) if row.placeholder}
    counts = {row.meaning: row.count for row in reversed(rows)}
    taken = [option for option, _ in given]
    kept = [option for option in script.options if option not in taken]
    required = [option for option in kept if option.is_required]
    around = surroundings(script, directory, kept)
    unknown = [
        (option, option.flag.lstrip("-").replace("-", "_").upper())
        for option in required
    ]
    steps, epochs = counts.get("steps"), counts.get("epochs")
    missing = "global_batch_size" if steps else "samples_per_epoch"
    guessed = [row for row in PRESETS.values() if script.packages & {*row.packages}]
    preset = log.preset if log else next(iter(guessed), None)
    expression = log.expression if log else None
    files = None if expression else script.files
    to_fill_in = [f"{each.flag} in the command" for each in required]
    if not counts.keys() & {"local_batch_size", "global_batch_size"}:
        to_fill_in.append("how the script takes its batch size, {local_batch_size}")
    if not (preset or files or expression):
        to_fill_in.append(
            "metrics.regex, the expression for a line that reports a step"
        )
    to_fill_in.append(f"job.{missing}, and remove the # before job")
    batch = counts.get("local_batch_size") or counts.get("global_batch_size") or 32
    accumulation, rate = "gradient_accumulation_steps", filled.get("learning_rate")
    accumulates = accumulation in {row.placeholder for row in rows}
    environment = Environment(
        loader=PackageLoader("scalelab.running.proposal"),
        undefined=StrictUndefined,
        trim_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )
    text = environment.get_template("experiment.yaml.j2").render(
        script=script,
        log=log,
        log_name=one_line(log_name),
        to_fill_in=to_fill_in,
        name=_name(script.path),
        rows=rows,
        python=python,
        command=_command(
            script, [*given, *around.elsewhere, *unknown], around.root, python
        ),
        code=_code(around, directory.resolve()),
        preset=preset and preset.name,
        imported=min(
            script.packages & {*(preset.packages if preset else ())}, default=""
        ),
        files=files and f"{{{files}}}",
        counted=log.counted if log else "",
        expression=expression or PLAIN,
        presets=", ".join(PRESETS),
        length=f"steps: {steps}" if steps else f"epochs: {epochs or 'NUMBER'}",
        missing=missing,
        gpus=_devices(script),
        batch=min(batch, _MOST_BATCH),
        accumulation=accumulates and (counts[accumulation] or 1),
        rate=rate and (rate.number if rate.number and rate.number > 0 else 0.1),
        seed="seed" in filled and counts["seed"],
        precision="precision" in filled and filled["precision"].option.default,
    )
    Experiment.from_text(text, source="the proposed experiment", directory=directory)
    found = tuple(option.with_value(value) for option, value in given)
    return Draft(text=text, found=found, to_fill_in=tuple(to_fill_in))


def _name(path: Path) -> str:
    generic = path.stem in ("train", "main", "run", "__main__")
    folder = path.parent.name
    name = f"{folder}-{path.stem}" if generic and folder else path.stem
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-_.")[:64] or "my-model"
    # YAML reads some names, such as 2024, as something else than text.
    is_text = plain[0].isalpha() and plain.lower() not in ("true", "false", "null")
    return plain if is_text else json.dumps(plain)


def _command(
    script: Script, given: list[tuple[ScriptOption, str]], root: Path, python: str
) -> str:
    # What has no flag is known by its place: such words come last, as defined.
    given.sort(key=lambda each: not each[0].joint and script.options.index(each[0]) + 1)
    path = script.path.relative_to(root).as_posix()
    words = [
        shlex.quote(python),
        *(("-m", script.module) if script.module else (shlex.quote(path),)),
        *(option.with_value(value) for option, value in given),
    ]
    line = " ".join(words)
    if not line.isascii() or "  " in line:  # folding would change it
        return json.dumps(line)
    unbroken = " ".join(word.replace(" ", "\0") for word in words)
    folded = textwrap.wrap(
        unbroken, _WIDTH, break_long_words=False, break_on_hyphens=False
    )
    return "\n  ".join([">-", *folded]).replace("\0", " ")


def _code(around: Surroundings, directory: Path) -> str:
    def quoted(text: str) -> str:
        return text if _PLAIN_WORD.fullmatch(text) else json.dumps(text)

    items, where = ", ".join(map(quoted, around.copied)), ""
    if around.root != directory:
        is_below = around.root.is_relative_to(directory)
        root = around.root.relative_to(directory) if is_below else around.root
        where = f"root: {quoted(str(root))}, "
    return f"{{{where}snapshot: [{items}]}}"


def _devices(script: Script) -> list[int]:
    if not (script.trains_on_several or script.drives_all_devices):
        return [1]
    most = min(num_visible_gpus() or num_cores(), 8)
    return [count for count in (1, 2, 4, 8) if count <= most]
