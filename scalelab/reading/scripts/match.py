"""The options of a script that mean something to a sweep."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from scalelab.inputs.lines import one_line
from scalelab.inputs.placeholders import PLACEHOLDERS
from scalelab.reading.scripts.options import ScriptOption
from scalelab.reading.scripts.script import Script
from scalelab.reading.vocabulary import FLAGS

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
