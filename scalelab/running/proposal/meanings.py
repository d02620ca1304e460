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


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """What options of certain names mean.

    Trials would overwrite what another one writes at a path, so each option of such a
    name is filled in, and not only the surest.
    """

    what: str  # in words, where no trial fills it in
    names: tuple[str, ...]  # the surest first
    placeholder: str | None = None
    is_path: bool = False
    ending: str | None = None  # of other names that mean the same


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LOCAL_BATCH = Meaning(
    what="batch size",
    names=_words(
        "per_device_train_batch_size local_batch_size micro_batch_size "
        "train_batch_size batch_size batch_size_per_gpu per_gpu_batch_size batchsize bs"
    ),
    placeholder="local_batch_size",
    ending="batch_size",
)
GLOBAL_BATCH = Meaning(
    what="global batch size",
    names=_words("global_batch_size total_batch_size effective_batch_size"),
    placeholder="global_batch_size",
)
ACCUMULATION = Meaning(
    what="accumulation steps",
    names=_words(
        "gradient_accumulation_steps grad_accumulation_steps accumulation_steps "
        "accumulate_grad_batches grad_accum_steps grad_accum accum_steps accum_iter "
        "accumulate accum accum_freq update_freq"
    ),
    placeholder="gradient_accumulation_steps",
)
RATE = Meaning(
    what="learning rate",
    names=_words("learning_rate lr base_lr"),
    placeholder="learning_rate",
)
SEED = Meaning(
    what="seed", names=_words("seed random_seed manual_seed"), placeholder="seed"
)
OUTPUT = Meaning(
    what="output folder",
    names=_words(
        "output_dir out_dir outdir save_dir checkpoint_dir log_dir logdir work_dir "
        "workdir results_dir run_dir output out outf"
    ),
    placeholder="trial_dir",
    is_path=True,
)
OUTPUT_FILE = Meaning(
    what="output file",
    names=_words(
        "output_file output_path out_file out_path outfile save save_file save_path "
        "save_to results_file log_file logfile"
    ),
    placeholder="trial_dir",
    is_path=True,
)
PRECISION = Meaning(
    what="number format",
    names=_words("precision dtype amp_dtype mixed_precision"),
    placeholder="precision",
)
STEPS = Meaning(
    what="steps of the training",
    names=_words("max_steps max_iters train_iters num_steps num_train_steps steps"),
)
EPOCHS = Meaning(
    what="epochs of the training",
    names=_words("num_train_epochs num_epochs max_epochs n_epochs epochs"),
)
WORKERS = Meaning(
    what="workers that load data",
    names=_words("dataloader_num_workers num_workers n_workers workers"),
)
MEANINGS = (
    LOCAL_BATCH,
    GLOBAL_BATCH,
    ACCUMULATION,
    RATE,
    SEED,
    OUTPUT,
    OUTPUT_FILE,
    PRECISION,
    STEPS,
    EPOCHS,
    WORKERS,
)

# What a script that divides the value by all ranks, or by those of a node, is told.
_SHARES = {
    LOCAL_BATCH: ("global_batch_size", "batch_size_per_node"),
    ACCUMULATION: ("accumulation_steps_of_all_ranks",) * 2,
}


@dataclass(frozen=True, kw_only=True, slots=True)
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


def default_batch(script: Script) -> int | None:
    """Return the batch size that a script takes by default; None: not known."""
    found = (each.option for each in understood(script) if each.meaning is LOCAL_BATCH)
    default = next((option.default for option in found), None)
    return default if isinstance(default, int) else None


def understood(script: Script) -> list[Understood]:
    """Return the options of a script that mean something to a sweep."""
    found = []
    for meaning in MEANINGS:
        options = list(_named(meaning, script.options))
        paths = [each for each in options if not isinstance(each.default, int | float)]
        for option in paths if meaning.is_path else options[:1]:
            found.append(_understood(option, meaning, script))
    return found


def _named(
    meaning: Meaning, options: tuple[ScriptOption, ...]
) -> Iterator[ScriptOption]:
    """Yield the options of a meaning, the surest first."""
    training = [each for each in options if not _is_of_evaluation(each)]
    for name in meaning.names:
        yield from (option for option in training if option.name.lower() == name)
    if meaning.ending:
        known = {name for each in MEANINGS for name in each.names}
        yield from (
            option
            for option in training
            if option.name.lower().endswith(meaning.ending)
            and option.name.lower() not in known
        )


def _is_of_evaluation(option: ScriptOption) -> bool:
    """Tell whether a part of an option's name says that it is of an evaluation."""
    parts = re.split(r"[^a-z]+", option.flag.lower())
    return any(part.startswith(_OF_EVALUATION) for part in parts)


def _file(option: ScriptOption, meaning: Meaning) -> str:
    """Return the name of the file that an option asks for; empty: it is a folder."""
    default = option.default if isinstance(option.default, str) else ""
    path = PurePosixPath(default)
    if meaning is not OUTPUT_FILE and not path.suffix:
        return ""
    names = (path.name, option.name, "output")
    return next(name for name in names if _FILE_NAME.fullmatch(name))


def _understood(option: ScriptOption, meaning: Meaning, script: Script) -> Understood:
    placeholder, because = meaning.placeholder, ""
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
    return Understood(
        option=option,
        meaning=meaning,
        placeholder=placeholder,
        because=because,
        file=_file(option, meaning) if meaning.is_path else "",
    )
