"""What the options of a script mean to a sweep, by the names that scripts use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from scalelab.running.proposal.options import ScriptOption
from scalelab.running.proposal.script import Script

_OF_EVALUATION = ("eval", "val", "test", "infer")
_FILE_NAME = re.compile(r"\w[\w.-]{0,80}", re.ASCII)
_OF_A_FILE = re.compile(r".*file|.*_path|save(_to)?")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What options of certain names mean."""

    names: str  # the surest first
    placeholder: str | None = None
    what: str = ""  # in words, where no trial fills it in


LOCAL_BATCH = Meaning(
    "per_device_train_batch_size local_batch_size micro_batch_size train_batch_size "
    "batch_size batch_size_per_gpu per_gpu_batch_size batchsize bs",
    "local_batch_size",
)
GLOBAL_BATCH = Meaning(
    "global_batch_size total_batch_size effective_batch_size", "global_batch_size"
)
ACCUMULATION = Meaning(
    "gradient_accumulation_steps grad_accumulation_steps accumulation_steps "
    "accumulate_grad_batches grad_accum_steps grad_accum accum_steps accum_iter "
    "accumulate accum accum_freq update_freq",
    "gradient_accumulation_steps",
)
RATE = Meaning("learning_rate lr base_lr", "learning_rate")
SEED = Meaning("seed random_seed manual_seed", "seed")
OUTPUT = Meaning(
    "output_dir out_dir outdir save_dir checkpoint_dir log_dir logdir work_dir workdir "
    "results_dir run_dir output out outf output_file output_path out_file out_path "
    "outfile save save_file save_path save_to results_file log_file logfile",
    "trial_dir",
)
PRECISION = Meaning(
    "precision dtype amp_dtype mixed_precision", "precision", "number format"
)
STEPS = Meaning(
    "max_steps max_iters train_iters num_steps num_train_steps steps",
    what="steps of the training",
)
EPOCHS = Meaning(
    "num_train_epochs num_epochs max_epochs n_epochs epochs",
    what="epochs of the training",
)
MEANINGS = (
    LOCAL_BATCH,
    GLOBAL_BATCH,
    ACCUMULATION,
    RATE,
    SEED,
    OUTPUT,
    PRECISION,
    STEPS,
    EPOCHS,
)
# What a script that divides the value by all ranks, or by those of a node, is told.
_SHARES = {
    LOCAL_BATCH: ("global_batch_size", "batch_size_per_node"),
    ACCUMULATION: ("accumulation_steps_of_all_ranks",) * 2,
}


@dataclass(frozen=True, slots=True)
class Understood:
    """An option, and what it means."""

    option: ScriptOption
    meaning: Meaning
    placeholder: str | None  # None: a trial leaves it alone
    because: str = ""  # why not the usual placeholder
    file: str = ""  # in the folder that a trial fills in

    @property
    def value(self) -> str:
        """The value with its placeholder."""
        return f"{{{self.placeholder}}}{'/' if self.file else ''}{self.file}"

    @property
    def words(self) -> str:
        """The option with its placeholder, as it stands in a command."""
        return self.option.with_value(self.value)

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
        if number is None or not 0 < number < 2**31 or number != int(number):
            return None
        return int(number)


def default_batch(script: Script) -> int | None:
    """Return the batch size that a script takes by default; None: not known."""
    found = (each.count for each in understood(script) if each.meaning is LOCAL_BATCH)
    return next(found, None)


def understood(script: Script) -> list[Understood]:
    """Return the options of a script that mean something to a sweep.

    Trials would overwrite what another one writes at a path, so each option of an
    output is filled in, and not only the surest of its meaning.
    """
    found = []
    for meaning in MEANINGS:
        options = list(_named(meaning, script))
        paths = [each for each in options if not isinstance(each.default, int | float)]
        for option in paths if meaning is OUTPUT else options[:1]:
            found.append(_understood(option, meaning, script))
    return found


def _named(meaning: Meaning, script: Script) -> Iterator[ScriptOption]:
    """Yield the options of a meaning, the surest first, but those of an evaluation."""
    training = [
        option
        for option in script.options
        if not any(
            part.startswith(_OF_EVALUATION)
            for part in re.split(r"[^a-z]+", option.flag.lower())
        )
    ]
    names = meaning.names.split()
    if meaning is LOCAL_BATCH:
        known = {name for each in MEANINGS for name in each.names.split()}
        others = (option.name.lower() for option in training)
        names += (
            own for own in others if own.endswith("batch_size") and own not in known
        )
    for name in names:
        yield from (option for option in training if option.name.lower() == name)


def _understood(option: ScriptOption, meaning: Meaning, script: Script) -> Understood:
    placeholder, because, file = meaning.placeholder, "", ""
    if meaning is PRECISION and option.default not in ("fp32", "bf16", "fp16"):
        placeholder = None
        because = "its values have other names than fp32, bf16 and fp16"
    elif meaning is LOCAL_BATCH and script.drives_all_devices:
        placeholder, because = GLOBAL_BATCH.placeholder, "one process has all devices"
    elif meaning in _SHARES and option.name in script.divided:
        divisor = script.divided[option.name]
        is_of_all = "world" in divisor.lower() or "rank" in divisor.lower()
        placeholder = _SHARES[meaning][0 if is_of_all else 1]
        because = f"the script divides it by {divisor}"
    elif meaning is OUTPUT:
        path = PurePosixPath(option.default if isinstance(option.default, str) else "")
        if path.suffix or _OF_A_FILE.fullmatch(option.name.lower()):
            names = (path.name, option.name, "output")
            file = next(name for name in names if _FILE_NAME.fullmatch(name))
    return Understood(option, meaning, placeholder, because, file)
