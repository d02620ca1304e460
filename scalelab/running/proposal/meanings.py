"""What the options of a script mean to a sweep, by the names that scripts use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from scalelab.inputs.lines import one_line
from scalelab.inputs.placeholders import PLACEHOLDERS
from scalelab.running.proposal.options import ScriptOption
from scalelab.running.proposal.script import Script

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
        name = self.placeholder or self.meaning
        means = PLACEHOLDERS.get(self.placeholder or "") or _IN_WORDS[name]
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
