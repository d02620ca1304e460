"""What the options of a script mean to a sweep, by the names that scripts use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from scalelab.running.proposal.script import Script, ScriptOption

_FILE_NAME = re.compile(r"\w[\w.-]{0,80}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """What options of certain names mean.

    Parameters
    ----------
    what
        In words, for the comments of an experiment where no trial fills it in.
    names
        Names of such options, the surest first.
    placeholder
        What a trial fills in; None: a trial leaves the option alone.
    is_path
        Trials would overwrite what another one writes there, so each option of such a
        name is filled in, and not only the surest.
    """

    what: str
    names: tuple[str, ...]
    placeholder: str | None = None
    is_path: bool = False


LOCAL_BATCH = Meaning(
    what="batch size",
    names=(
        "per_device_train_batch_size",
        "local_batch_size",
        "micro_batch_size",
        "train_batch_size",
        "batch_size",
        "batch_size_per_gpu",
        "per_gpu_batch_size",
        "batchsize",
        "bs",
    ),
    placeholder="local_batch_size",
)
GLOBAL_BATCH = Meaning(
    what="global batch size",
    names=("global_batch_size", "total_batch_size", "effective_batch_size"),
    placeholder="global_batch_size",
)
ACCUMULATION = Meaning(
    what="accumulation steps",
    names=(
        "gradient_accumulation_steps",
        "grad_accumulation_steps",
        "accumulation_steps",
        "accumulate_grad_batches",
        "grad_accum_steps",
        "grad_accum",
        "accum_steps",
        "accum_iter",
        "accumulate",
        "accum",
        "update_freq",
    ),
    placeholder="gradient_accumulation_steps",
)
RATE = Meaning(
    what="learning rate", names=("learning_rate", "lr"), placeholder="learning_rate"
)
SEED = Meaning(
    what="seed", names=("seed", "random_seed", "manual_seed"), placeholder="seed"
)
OUTPUT = Meaning(
    what="output folder",
    names=(
        "output_dir",
        "out_dir",
        "outdir",
        "save_dir",
        "checkpoint_dir",
        "log_dir",
        "logdir",
        "work_dir",
        "workdir",
        "results_dir",
        "run_dir",
        "output",
        "out",
        "outf",
    ),
    placeholder="trial_dir",
    is_path=True,
)
OUTPUT_FILE = Meaning(
    what="output file",
    names=(
        "output_file",
        "output_path",
        "out_file",
        "out_path",
        "outfile",
        "save",
        "save_file",
        "save_path",
        "save_to",
        "results_file",
        "log_file",
        "logfile",
    ),
    placeholder="trial_dir",
    is_path=True,
)
PRECISION = Meaning(
    what="number format",
    names=("precision", "dtype", "amp_dtype", "mixed_precision"),
    placeholder="precision",
)
STEPS = Meaning(
    what="steps of the training",
    names=("max_steps", "max_iters", "train_iters", "num_steps", "steps"),
)
EPOCHS = Meaning(
    what="epochs of the training",
    names=("num_train_epochs", "num_epochs", "max_epochs", "n_epochs", "epochs"),
)
WORKERS = Meaning(
    what="workers that load data",
    names=("dataloader_num_workers", "num_workers", "n_workers", "workers"),
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
    """An option, and what it means.

    Parameters
    ----------
    option
        The option of the script.
    meaning
        What it means.
    placeholder
        What a trial fills in; None: it leaves the option alone.
    because
        Why that placeholder and not the usual one; empty for the usual one.
    file
        Name of a file in the folder that a trial fills in; empty: the folder itself.
    """

    option: ScriptOption
    meaning: Meaning
    placeholder: str | None
    because: str = ""
    file: str = ""

    @property
    def value(self) -> str:
        """The value with its placeholder."""
        return f"{{{self.placeholder}}}{'/' if self.file else ''}{self.file}"

    @property
    def words(self) -> str:
        """The option with its placeholder, as it stands in a command."""
        return self.option.with_value(self.value)


def understood(script: Script) -> list[Understood]:
    """Return the options of a script that mean something to a sweep."""
    found = []
    for meaning in MEANINGS:
        options = list(_named(meaning.names, script.options))
        for option in options if meaning.is_path else options[:1]:
            found.append(_understood(option, meaning, script))
    return found


def _named(
    names: Iterable[str], options: tuple[ScriptOption, ...]
) -> Iterator[ScriptOption]:
    for name in names:
        yield from (option for option in options if option.name.lower() == name)


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
