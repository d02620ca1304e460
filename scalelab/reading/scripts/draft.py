"""The experiment that is proposed for a script: what its options mean, as YAML."""

import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from jinja2 import Environment, PackageLoader, StrictUndefined

from scalelab.experiment.presets import PRESETS
from scalelab.experiment.spec import Experiment
from scalelab.inputs.lines import one_line
from scalelab.inputs.placeholders import PLACEHOLDERS
from scalelab.reading.logs.sample import PLAIN, LogReading
from scalelab.reading.scripts.options import ScriptOption
from scalelab.reading.scripts.script import Script, Surroundings, surroundings
from scalelab.site.profile import num_cores, num_visible_gpus

_WIDTH = 84
_PLAIN_WORD = re.compile(r"[\w./-]+", re.ASCII)
_MOST_BATCH = 2**20
_OF_EVALUATION = ("eval", "val", "test", "infer")
_FILE_NAME = re.compile(r"\w[\w.-]{0,80}", re.ASCII)
_OF_A_FILE = re.compile(r".*file|.*_path|save(_to)?")
# Names of options, the surest first, by the placeholder that they usually get.
_NAMES = {
    "local_batch_size": (
        "per_device_train_batch_size local_batch_size micro_batch_size "
        "train_batch_size batch_size batch_size_per_gpu per_gpu_batch_size batchsize bs"
    ),
    "global_batch_size": "global_batch_size total_batch_size effective_batch_size",
    "gradient_accumulation_steps": (
        "gradient_accumulation_steps grad_accumulation_steps accumulation_steps "
        "accumulate_grad_batches grad_accum_steps grad_accum accum_steps accum_iter "
        "accumulate accum accum_freq update_freq"
    ),
    "learning_rate": "learning_rate lr base_lr",
    "seed": "seed random_seed manual_seed",
    "trial_dir": (
        "output_dir out_dir outdir save_dir checkpoint_dir log_dir logdir work_dir "
        "workdir results_dir run_dir output out outf output_file output_path out_file "
        "out_path outfile save save_file save_path save_to results_file log_file "
        "logfile"
    ),
    "precision": "precision dtype amp_dtype mixed_precision",
    "steps": "max_steps max_iters train_iters num_steps num_train_steps steps",
    "epochs": "num_train_epochs num_epochs max_epochs n_epochs epochs",
}
_IN_WORDS = {
    "precision": "number format",
    "steps": "steps of the training",
    "epochs": "epochs of the training",
}
# Their steps are those of PyTorch's optimizers, which the probe sees.
_WITH_TORCH = frozenset(
    "torch accelerate lightning pytorch_lightning transformers trl diffusers timm "
    "torch_geometric monai fastai".split()
)
# For a script that divides the value by all ranks, or by those of a node.
_SHARES = {
    "local_batch_size": ("global_batch_size", "batch_size_per_node"),
    "gradient_accumulation_steps": ("accumulation_steps_of_all_ranks",) * 2,
}


@dataclass(frozen=True, slots=True)
class Understood:
    """An option, and what it means."""

    option: ScriptOption
    meaning: str
    placeholder: str | None  # None: a trial leaves it alone
    because: str = ""  # why not the usual placeholder
    file: str = ""  # in the folder that a trial fills in

    @property
    def value(self) -> str:
        """The value with its placeholder."""
        return f"{{{self.placeholder}}}{'/' if self.file else ''}{self.file}"

    @property
    def number(self) -> float | None:
        """The default, if it is a number."""
        value = self.option.default
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value if abs(value) < 1e15 else None

    @property
    def count(self) -> int | None:
        """The default, if it is a count."""
        number = self.number
        is_count = number and 0 < number < 2**31 and number == int(number)
        return int(number) if number and is_count else None

    def __str__(self) -> str:
        means = PLACEHOLDERS.get(self.placeholder or "") or _IN_WORDS[self.meaning]
        known = "" if self.number is None else f", {self.number:g} by default"
        because = f"; {one_line(self.because)[:60]}" if self.because else ""
        return f"{means}{known}{because}"


def default_batch(script: Script) -> int | None:
    """Return the batch size that a script takes by default; None: not known."""
    batches = (
        each for each in understood(script) if each.meaning == "local_batch_size"
    )
    return next((each.count for each in batches), None)


def understood(script: Script) -> list[Understood]:
    """Return the options of a script that mean something to a sweep.

    Trials would overwrite what another one writes at a path, so each option of an
    output is filled in, and not only the surest of its meaning.
    """
    found = []
    for meaning in _NAMES:
        options = list(_named(meaning, script))
        paths = [each for each in options if not isinstance(each.default, int | float)]
        for option in paths if meaning == "trial_dir" else options[:1]:
            found.append(_understood(option, meaning, script))
    return found


def _named(meaning: str, script: Script) -> Iterator[ScriptOption]:
    training = [
        option
        for option in script.options
        if not any(
            part.startswith(_OF_EVALUATION)
            for part in re.split(r"[^a-z]+", option.flag.lower())
        )
    ]
    names = _NAMES[meaning].split()
    if meaning == "local_batch_size":
        known = " ".join(_NAMES.values()).split()
        others = (option.name.lower() for option in training)
        names += (
            own for own in others if own.endswith("batch_size") and own not in known
        )
    for name in names:
        yield from (option for option in training if option.name.lower() == name)


def _understood(option: ScriptOption, meaning: str, script: Script) -> Understood:
    placeholder = meaning if meaning in PLACEHOLDERS else None
    because, file = "", ""
    if meaning == "precision" and option.default not in ("fp32", "bf16", "fp16"):
        placeholder = None
        because = "its values have other names than fp32, bf16 and fp16"
    elif meaning == "local_batch_size" and script.drives_all_devices:
        placeholder, because = "global_batch_size", "one process has all devices"
    elif meaning in _SHARES and option.name in script.divided:
        divisor = script.divided[option.name]
        is_of_all = "world" in divisor.lower() or "rank" in divisor.lower()
        placeholder = _SHARES[meaning][0 if is_of_all else 1]
        because = f"the script divides it by {divisor}"
    elif meaning == "trial_dir":
        path = PurePosixPath(option.default if isinstance(option.default, str) else "")
        if path.suffix or _OF_A_FILE.fullmatch(option.name.lower()):
            names = (path.name, option.name, "output")
            file = next(name for name in names if _FILE_NAME.fullmatch(name))
    return Understood(option, meaning, placeholder, because, file)


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
    to_fill_in = [f"{each.flag} in the command" for each in required]
    if not counts.keys() & {"local_batch_size", "global_batch_size"}:
        to_fill_in.append("how the script takes its batch size, {local_batch_size}")
    sees_steps = bool(script.all_packages & _WITH_TORCH)
    if not any((preset, expression, script.tables, sees_steps)):
        to_fill_in.append(
            "metrics.regex, the expression for a line that reports a step"
        )
    to_fill_in.append(f"job.{missing}, and remove the # before job")
    batch = counts.get("local_batch_size") or counts.get("global_batch_size") or 32
    accumulation, rate = "gradient_accumulation_steps", filled.get("learning_rate")
    accumulates = accumulation in {row.placeholder for row in rows}
    environment = Environment(
        loader=PackageLoader("scalelab.reading.scripts"),
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
        counted=log.counted if log else "",
        expression=expression or PLAIN,
        sees_steps=sees_steps,
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
    name, folder = path.stem, path.parent.name
    if folder and name in ("train", "main", "run", "__main__"):
        name = f"{folder}-{name}"
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
