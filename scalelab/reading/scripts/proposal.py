"""The experiment that is proposed for a script: what its options mean, as YAML."""

import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from jinja2 import Environment, PackageLoader, StrictUndefined

from scalelab.experiment.presets import PRESETS, Preset
from scalelab.experiment.spec import Experiment
from scalelab.inputs.lines import one_line
from scalelab.inputs.placeholders import PLACEHOLDERS
from scalelab.reading.logs.match import PLAIN, LogMatch
from scalelab.reading.reading import Reading
from scalelab.reading.scripts.options import ScriptOption
from scalelab.reading.scripts.script import Script, Surroundings, surroundings
from scalelab.reading.vocabulary import FLAGS
from scalelab.site.profile import num_cores, num_visible_gpus

_WIDTH = 84
_PLAIN_WORD = re.compile(r"[\w./-]+", re.ASCII)
_MOST_BATCH = 2**20
# Their steps are those of PyTorch's optimizers, which the probe sees.
_WITH_TORCH = frozenset(
    "torch accelerate lightning pytorch_lightning transformers trl diffusers timm "
    "torch_geometric monai fastai".split()
)
_UNKNOWN = "NUMBER"  # stands where the user is to write one
_OF_EVALUATION = ("eval", "val", "test", "infer")
_FILE_NAME = re.compile(r"\w[\w.-]{0,80}", re.ASCII)
_OF_A_FILE = re.compile(r".*file|.*_path|save(_to)?")
_IN_WORDS = {
    "precision": "number format",
    "steps": "steps of the training",
    "epochs": "epochs of the training",
}
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


def match(script: Script) -> list[Understood]:
    """Return the options of a script that mean something to a sweep.

    Trials would overwrite what another one writes at a path, so each option of an
    output is filled in, and not only the surest of its meaning.
    """
    found = []
    for meaning in FLAGS:
        options = list(_named(meaning, script))
        paths = [
            option for option in options if not isinstance(option.default, int | float)
        ]
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

    names = [*FLAGS[meaning]]
    if meaning == "local_batch_size":
        known = {name for names in FLAGS.values() for name in names}
        others = (option.name.lower() for option in training)
        names += (
            name for name in others if name.endswith("batch_size") and name not in known
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
        file = _file_of(option)

    return Understood(option, meaning, placeholder, because, file)


def _file_of(option: ScriptOption) -> str:
    """Return the name of the file that an option of an output takes; else empty."""
    path = PurePosixPath(option.default if isinstance(option.default, str) else "")
    if not path.suffix and not _OF_A_FILE.fullmatch(option.name.lower()):
        return ""
    names = (path.name, option.name, "output")
    return next(name for name in names if _FILE_NAME.fullmatch(name))


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The experiment that is proposed for a script, a property for each key."""

    script: Script
    log: LogMatch | None
    log_name: str
    directory: Path  # of the experiment
    python: str = "python"

    @cached_property
    def rows(self) -> list[Understood]:
        """The options that mean something."""
        return match(self.script)

    @cached_property
    def filled(self) -> list[Understood]:
        """Those that trials fill in."""
        return [row for row in self.rows if row.placeholder]

    @cached_property
    def left(self) -> list[ScriptOption]:
        """The options that trials leave alone."""
        taken = [row.option for row in self.filled]
        return [option for option in self.script.options if option not in taken]

    @property
    def required(self) -> list[ScriptOption]:
        """Those of them without which the script does not start."""
        return [option for option in self.left if option.is_required]

    @cached_property
    def counts(self) -> dict[str, int | None]:
        """The defaults that are counts, by what they mean."""
        return {row.meaning: row.count for row in reversed(self.rows)}

    @property
    def name(self) -> str:
        """The name: the script's, and that of its folder where it says nothing."""
        name, folder = self.script.path.stem, self.script.path.parent.name
        if folder and name in ("train", "main", "run", "__main__"):
            name = f"{folder}-{name}"
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-_.")[:64] or "my-model"
        # YAML reads some names, such as 2024, as something else than text.
        is_text = name[0].isalpha() and name.lower() not in ("true", "false", "null")
        return name if is_text else json.dumps(name)

    @cached_property
    def _around(self) -> Surroundings:
        return surroundings(self.script, self.directory, self.left)

    @property
    def command(self) -> str:
        """The command line, as YAML has it."""
        script = self.script
        given = [
            *((row.option, row.value) for row in self.filled),
            *self._around.elsewhere,
            *(
                (option, option.flag.lstrip("-").replace("-", "_").upper())
                for option in self.required
            ),
        ]
        # What has no flag is known by its place: such words come last, as defined.
        given.sort(key=lambda pair: pair[0].joint == "" and _place(script, pair[0]))
        path = script.path.relative_to(self._around.root).as_posix()
        words = [
            shlex.quote(self.python),
            *(("-m", script.module) if script.module else (shlex.quote(path),)),
            *(option.with_value(value) for option, value in given),
        ]
        return _folded(words)

    @property
    def code(self) -> str:
        """What is copied, and the folder that it is in."""
        copied = ", ".join(map(_quoted, self._around.copied))
        directory, root = self.directory.resolve(), self._around.root
        if root == directory:
            return f"{{snapshot: [{copied}]}}"
        if root.is_relative_to(directory):
            root = root.relative_to(directory)
        return f"{{root: {_quoted(str(root))}, snapshot: [{copied}]}}"

    @cached_property
    def preset(self) -> Preset | None:
        """What reads the output: by a sample of it, else by what is imported."""
        if self.log:
            return self.log.preset
        packages = self.script.packages
        imported = (row for row in PRESETS.values() if packages & {*row.packages})
        return next(imported, None)

    @property
    def imported(self) -> str:
        """The package by which the preset was guessed."""
        packages = self.preset.packages if self.preset else ()
        return min(self.script.packages & {*packages}, default="")

    @property
    def sees_steps(self) -> bool:
        """Whether steps are seen inside, where an optimizer of PyTorch steps."""
        return bool(self.script.all_packages & _WITH_TORCH)

    @property
    def job(self) -> dict[str, int | str]:
        """The length of the job, and what only the user knows of it."""
        if steps := self.counts.get("steps"):
            return {"steps": steps, "global_batch_size": _UNKNOWN}
        epochs = {"epochs": self.counts.get("epochs") or _UNKNOWN}
        # Where steps are seen inside, so is the data loader.
        return (
            epochs
            if self.sees_steps and self.script.loads_data
            else {**epochs, "samples_per_epoch": _UNKNOWN}
        )

    @property
    def gpus(self) -> list[int]:
        """The devices: doublings up to those of this machine."""
        if not (self.script.trains_on_several or self.script.drives_all_devices):
            return [1]
        most = min(num_visible_gpus() or num_cores(), 8)
        return [count for count in (1, 2, 4, 8) if count <= most]

    @property
    def local_batch_size(self) -> int:
        """The samples of a rank, by default those of the script."""
        names = ("local_batch_size", "global_batch_size")
        batches = [*filter(None, map(self.counts.get, names)), 32]
        return min(batches[0], _MOST_BATCH)

    @property
    def settings(self) -> dict[str, object]:
        """The defaults of what else trials fill in, by key."""
        filled = {row.placeholder: row for row in reversed(self.filled)}
        found: dict[str, object] = {}
        if "gradient_accumulation_steps" in filled:
            found["gradient_accumulation_steps"] = (
                self.counts["gradient_accumulation_steps"] or 1
            )

        if row := filled.get("learning_rate"):
            is_rate = row.number is not None and row.number > 0
            found["learning_rate"] = row.number if is_rate else 0.1
        if "seed" in filled:
            found["seed"] = self.counts["seed"]
        if row := filled.get("precision"):
            found["precision"] = row.option.default

        return {key: value for key, value in found.items() if value}


def read(proposal: Proposal) -> Reading[str]:
    """Return the experiment as YAML, what it rests on, and what is to be filled in.

    Its evidence are the options that trials fill in, as the command has them.
    """
    environment = Environment(
        loader=PackageLoader("scalelab.reading.scripts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )

    lacking = doubt(proposal)
    text = environment.get_template("experiment.yaml.j2").render(
        proposal=proposal,
        to_fill_in=lacking,
        log_name=one_line(proposal.log_name),
        plain=PLAIN,
        unknown=_UNKNOWN,
        presets=", ".join(PRESETS),
    )

    source = "the proposed experiment"
    Experiment.from_text(text, source=source, directory=proposal.directory)
    filled = (row.option.with_value(row.value) for row in proposal.filled)
    return Reading(value=text, evidence=tuple(filled), doubts=tuple(lacking))


def doubt(proposal: Proposal) -> list[str]:
    """Return what a script does not say, so that the user has to."""
    lacking = [f"{option.flag} in the command" for option in proposal.required]
    if not proposal.counts.keys() & {"local_batch_size", "global_batch_size"}:
        lacking.append("how the script takes its batch size, {local_batch_size}")

    expression = proposal.log and proposal.log.expression
    reads_output = proposal.preset or expression or proposal.script.tables
    if not (reads_output or proposal.sees_steps):
        lacking.append("metrics.regex, the expression for a line that reports a step")

    unknown = [f"job.{key}" for key in proposal.job if proposal.job[key] == _UNKNOWN]
    if unknown:
        lacking.append(f"{' and '.join(unknown)}, and remove the # before job")
    return lacking


def _place(script: Script, option: ScriptOption) -> int:
    return script.options.index(option) + 1


def _folded(words: list[str]) -> str:
    line = " ".join(words)
    if not line.isascii() or "  " in line:  # folding would change it
        return json.dumps(line)
    unbroken = " ".join(word.replace(" ", "\0") for word in words)
    folded = textwrap.wrap(
        unbroken, _WIDTH, break_long_words=False, break_on_hyphens=False
    )
    return "\n  ".join([">-", *folded]).replace("\0", " ")


def _quoted(text: str) -> str:
    return text if _PLAIN_WORD.fullmatch(text) else json.dumps(text)
